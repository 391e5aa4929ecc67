"""``reprise diagnose``: which of the four layers acts on a deployment, and what the cheapest cure is."""
