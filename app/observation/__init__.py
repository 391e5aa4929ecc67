"""What was seen: repeats, verdicts, metrics."""
