"""Reprise: a gateway before vLLM that lets each request choose how deterministic it must be."""

__version__ = "0.1.0"
