"""``reprise probe``: asks a server the same things again, mode by mode and under load, and counts what differs."""
