"""What ``deploy/up`` and ``deploy/test`` do: standard library only, because nothing is installed when they start."""
