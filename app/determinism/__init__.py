"""Pure decisions about determinism: no await, no framework, no clock, no randomness."""
