"""Where answers part, and how close the choice was: ties are the fourth layer's, clear margins are a fault. Pure."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from app.determinism.divergence import NEAR_NATS, TIE_NATS, Closeness
from app.diagnose.sample import Fork, Sample, deltas_of, distance, fork_of

CHANCE: Final = 0.05
"""Ties among the forks are the fourth layer's when chance alone would give so many with at most this probability."""

_SIXTEEN_BITS: Final = 2.0**-10
"""Nats of noise above which an engine computes in 16 bits; float32 was measured at 1e-5, bfloat16 at 0.1."""

_NOISE_QUANTILE: Final = 0.99


@dataclass(frozen=True, slots=True)
class Forks:
    """The distinct forks of a run, and how close a choice must be for rounding to turn it here.

    ``noise`` is the 99th percentile of the differences, in nats, between the logprobs of tokens that two answers share
    (None where no logprob differs); ``limit`` the margin up to which a fork is a tie. ``exposed`` of ``tokens`` had a
    margin of at most that: rounding may turn any of them.
    """

    forks: tuple[Fork, ...]
    noise: float | None
    limit: float
    exposed: int
    tokens: int

    def closeness(self, fork: Fork) -> Closeness:
        """How close the choice was at a fork, by this engine's own noise."""
        return closeness(fork.margin, self.limit)

    def count(self, kind: Closeness) -> int:
        """How many forks are of that kind."""
        return sum(self.closeness(fork) is kind for fork in self.forks)

    @property
    def judged(self) -> int:
        """Forks whose margin is known."""
        return len(self.forks) - self.count(Closeness.UNKNOWN)

    @property
    def by_chance(self) -> float:
        """How likely so many ties are among the forks, if forks fell on any token alike.

        A fork is a tie only where both sides saw a close choice, and answers that part for another reason owe each
        other nothing.
        """
        ties, forks = self.count(Closeness.TIE), self.judged
        share = (self.exposed / self.tokens) ** 2 if self.tokens else 1.0
        return sum(math.comb(forks, k) * share**k * (1 - share) ** (forks - k) for k in range(ties, forks + 1))


def closeness(margin: float | None, limit: float) -> Closeness:
    """That of a margin in nats, where ties reach up to a limit."""
    if margin is None:
        return Closeness.UNKNOWN
    if margin <= limit:
        return Closeness.TIE
    return Closeness.NEAR if margin <= max(NEAR_NATS, limit) else Closeness.CLEAR


def medoid(samples: Sequence[Sample]) -> Sample:
    """The answer that is nearest to all the others; the first of them. Raises ValueError for none."""
    return nearest(samples, samples)


def nearest(candidates: Sequence[Sample], samples: Sequence[Sample]) -> Sample:
    """The candidate that is nearest to all the samples; the first of them. Raises ValueError for none."""
    if len(candidates) == 1:
        return candidates[0]
    return min(candidates, key=lambda one: sum(distance(one, other) for other in samples if other is not one))


def clear_fork(reference: Sample, sample: Sample) -> bool:
    """Whether two answers part where the choice was clear, which no rounding explains."""
    fork = fork_of(reference, sample)
    return fork is not None and closeness(fork.margin, TIE_NATS) is Closeness.CLEAR


def gather(groups: Iterable[Sequence[Sample]]) -> Forks:
    """From groups of answers to one prompt each: every answer against the group's reference."""
    forks: dict[tuple[int, int, tuple[str, ...]], Fork] = {}
    deltas: list[float] = []
    margins: list[float] = []
    for group in groups:
        if len(group) < 2:  # noqa: PLR2004 - one answer is compared with nothing
            continue
        reference = medoid(group)
        margins.extend(margin for margin in reference.choice.margins or () if not math.isnan(margin))
        for sample in group:
            deltas.extend(delta for delta in deltas_of(reference, sample) if delta)
            if (fork := fork_of(reference, sample)) is not None:
                forks.setdefault((fork.prompt, fork.token, fork.taken), fork)
    noise = _quantile(deltas) if deltas else None
    limit = tie_limit(noise)
    return Forks(tuple(forks.values()), noise, limit, sum(margin <= limit for margin in margins), len(margins))


def tie_limit(noise: float | None) -> float:
    """The margin in nats up to which rounding may turn a choice: both tokens may move by the noise.

    In 16 bits at least two rounding steps (`TIE_NATS`), and never more than what is near; in float32 the noise alone.
    """
    if noise is None:
        return TIE_NATS
    if noise < _SIXTEEN_BITS:
        return 2 * noise
    return min(max(TIE_NATS, 2 * noise), NEAR_NATS)


def _quantile(values: list[float]) -> float:
    ordered = sorted(values)
    return ordered[math.ceil(_NOISE_QUANTILE * len(ordered)) - 1]
