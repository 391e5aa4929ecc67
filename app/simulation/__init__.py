"""``reprise simulate``: the cost of isolation on fleets that nobody has to own, from one measured run."""
