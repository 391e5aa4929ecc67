"""How close the two largest of many logits are, and how often noise or rounding exchanges them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from app.lab.precision import rounded, spacing

FORMATS: Final = ("float32", "float16", "bfloat16")

_LOGITS_AT_ONCE: Final = 2_000_000
"""8 MB of float32; the masks and the candidates come on top of it."""

_SMALL: Final = 1e-4


class Flips(NamedTuple):
    """Rows whose argmax changed under noise uniform in ``[-noise, noise]``, the sums stored in either format.

    ``in_reach`` are the rows whose two largest logits are at most ``2 * noise`` apart: only there can it happen.
    """

    noise: float
    in_reach: int
    float32: int
    bfloat16: int


class Ties(NamedTuple):
    """Rows whose two largest logits are equal once rounded to a format.

    ``moved`` are the rows whose argmax after rounding, the lowest index among equals, is another than before.
    ``step`` is the format's spacing at the mean of the largest logits.
    """

    format: str
    step: float
    equal: int
    moved: int


@dataclass(frozen=True, slots=True)
class Margins:
    """What was counted over the rows: their margins (in units of a logit, ascending) and who changed places."""

    margins: NDArray[np.float64]
    largest_mean: float
    flips: tuple[Flips, ...]
    ties: tuple[Ties, ...]

    @property
    def rows(self) -> int:
        """How many rows there were."""
        return len(self.margins)

    @property
    def mean(self) -> float:
        """The mean margin."""
        return float(np.mean(self.margins))

    def share_below(self, margin: float) -> float:
        """The share of the rows whose margin is smaller."""
        return float(np.searchsorted(self.margins, margin)) / self.rows


class _Candidates(NamedTuple):
    """The logits that can still win, row after row: each value, the row that it is of, and where each row starts."""

    values: NDArray[np.float32]
    row: NDArray[np.intp]
    starts: NDArray[np.intp]

    def winners(self, values: NDArray[Any]) -> NDArray[np.intp]:
        """Per row the first of the largest, as a position among the candidates; ``values`` stand for their own."""
        # NumPy's reduceat knows no bfloat16; float64 holds every one of these formats exactly.
        wide = values.astype(np.float64)
        hits = np.flatnonzero(wide == np.maximum.reduceat(wide, self.starts)[self.row])
        return hits[np.searchsorted(hits, self.starts)]

    def equal(self, values: NDArray[Any]) -> int:
        """The rows in which more than one of ``values`` is the largest."""
        wide = values.astype(np.float64)
        hits = wide == np.maximum.reduceat(wide, self.starts)[self.row]
        return int(np.count_nonzero(np.add.reduceat(hits.astype(np.intp), self.starts) > 1))


def measure(random: np.random.Generator, rows: int, vocabulary: int, scale: float, noises: Sequence[float]) -> Margins:
    """Draw rows of normal logits with the standard deviation ``scale`` and disturb them with each noise in turn."""
    at_once = max(1, _LOGITS_AT_ONCE // vocabulary)
    margins: list[NDArray[np.float32]] = []
    largest: list[NDArray[np.float32]] = []
    flips = np.zeros((len(noises), 2), np.intp)
    ties = np.zeros((len(FORMATS), 2), np.intp)
    for start in range(0, rows, at_once):
        logits = random.standard_normal((min(at_once, rows - start), vocabulary), np.float32) * np.float32(scale)
        top, second = _top_two(logits)
        largest.append(top)
        margins.append(top - second)
        candidates = _candidates(logits, top, max(noises))
        flips += [_flips(random, candidates, noise) for noise in noises]
        ties += [_ties(candidates, name) for name in FORMATS]
    every = np.sort(np.concatenate(margins).astype(np.float64))
    mean = float(np.mean(np.concatenate(largest), dtype=np.float64))
    reach = [int(np.searchsorted(every, 2 * noise, side="right")) for noise in noises]
    return Margins(
        every,
        mean,
        tuple(Flips(noise, near, int(a), int(b)) for noise, near, (a, b) in zip(noises, reach, flips, strict=True)),
        tuple(Ties(name, spacing(abs(mean), name), int(a), int(b)) for name, (a, b) in zip(FORMATS, ties, strict=True)),
    )


def _top_two(logits: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    places = (np.arange(len(logits)), np.argmax(logits, axis=1))
    top = logits[places]
    logits[places] = -np.inf
    second = np.max(logits, axis=1)
    logits[places] = top
    return top, second


def _candidates(logits: NDArray[np.float32], top: NDArray[np.float32], noise: float) -> _Candidates:
    # Noise moves two logits by 2 * noise towards each other, and rounding by one step of the coarsest format, which
    # may be that of the next power of two.
    steps = np.spacing(rounded(np.abs(top) + np.float32(noise), "bfloat16")).astype(np.float32)
    near = logits >= (top - np.float32(2 * noise) - 2 * steps)[:, np.newaxis]
    row, column = np.nonzero(near)
    return _Candidates(logits[row, column], row, np.searchsorted(row, np.arange(len(logits))))


def _flips(random: np.random.Generator, candidates: _Candidates, noise: float) -> tuple[int, int]:
    """Rows whose argmax changed with the sums in float32, and in bfloat16."""
    values = candidates.values
    noisy = values + random.uniform(-noise, noise, len(values)).astype(np.float32)
    exact = candidates.winners(values) != candidates.winners(noisy)
    coarse = candidates.winners(rounded(values, "bfloat16")) != candidates.winners(rounded(noisy, "bfloat16"))
    return int(np.count_nonzero(exact)), int(np.count_nonzero(coarse))


def _ties(candidates: _Candidates, name: str) -> tuple[int, int]:
    """Rows whose largest two are equal in the format, and rows whose argmax is another than before rounding."""
    stored = rounded(candidates.values, name)
    moved = candidates.winners(candidates.values) != candidates.winners(stored)
    return candidates.equal(stored), int(np.count_nonzero(moved))


def expected_flip_share(noise: float, mean_margin: float) -> float:
    """The probability that noise exchanges the two largest logits, if margins are exponential with this mean.

    Noise is uniform in ``[-noise, noise]`` on each of the two, so their difference moves by ``d`` with the triangular
    density on ``[-2 * noise, 2 * noise]``; this is ``P(d > margin)``. For small noise it is ``noise / (3 * mean)``.
    The spacing of the largest two of many normal values tends to an exponential one. Source: I. Weissman, "Estimation
    of parameters and large quantiles based on the k largest observations", Journal of the American Statistical
    Association 73 (1978) 812-815.
    """
    a = 2.0 * noise / mean_margin
    if a < _SMALL:
        return a / 6.0  # the closed form would subtract numbers of 1 / a; the next term is smaller by a / 4
    return 0.5 * (1.0 - 2.0 / a - 2.0 * math.expm1(-a) / (a * a))


def answers_with_a_flip(share: float, tokens: int) -> float:
    """The probability of at least one flip in an answer, if each token flips with ``share`` on its own."""
    return -math.expm1(tokens * math.log1p(-share))
