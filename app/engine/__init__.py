"""How an engine is launched, and what runs inside its processes."""
