"""Two runs of the same requests, compared: ``reprise compare``, and ``reprise replay``, which makes the second one."""
