"""The modelled engine: how long a step takes, by how many requests share it.

A batch of b requests makes one token for each in ``fixed + each * b`` seconds, and a request that begins stops the
whole batch for ``prefill`` seconds first, as a prompt does that is computed among the others' steps.

Why linear: of a step one part is the same for every batch (weights are read once, kernels are launched), one grows with
each sequence. The fit says how well that describes the engine that was measured. What a request costs outside the
engine (HTTP, gateway) counts as prefill: from latencies the two cannot be told apart.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EngineModel:
    """Its parameters, in seconds."""

    fixed: float
    each: float
    prefill: float = 0.0

    def step(self, batch: float) -> float:
        """Seconds that one token takes in a batch of that many."""
        return self.fixed + self.each * batch

    def latency(self, clients: float, tokens: float) -> float:
        """Seconds of an answer of that many tokens while so many clients send one request after the other.

        In the time of an answer every one of the batch begins once.
        """
        return tokens * self.step(clients) + self.prefill * clients

    def throughput(self, clients: float, tokens: float) -> float:
        """Tokens per second of so many clients, all shared, with answers of that many tokens."""
        return clients * tokens / self.latency(clients, tokens)
