"""What the gateway sends on its own account, so that there is something to measure: canaries and shadows."""
