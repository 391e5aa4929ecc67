"""Who runs when, and on which replica."""
