"""What each layer does to one step of the decoder, and the traffic that makes it do so."""

from dataclasses import dataclass
from functools import reduce
from typing import Final, NamedTuple

import numpy as np

from app.lab.funnel_model import EXPERTS, FALLBACK, HIDDEN, VOCABULARY, Model, Numbers, Tokens
from app.lab.moe_routing import capacity
from app.lab.precision import DTYPES, Array, rounded

LAYERS: Final = ("L1", "L2", "L3", "L4")
RANKS: Final = 4
CAPACITY_FACTOR: Final = 1.25
_SLICES_ALONE: Final = 4
_POOL: Final = 512


class Step(NamedTuple):
    """What the server happened to be doing at one step, per row (a request that is repeated).

    ``size`` is how many requests share the batch; ``ahead (rows, most)`` are the experts that those before this one
    want, -1 where there is none; ``arrival (rows, ranks)`` is the order in which the partial sums arrive.
    """

    size: Tokens
    ahead: Tokens
    arrival: Tokens


@dataclass(frozen=True, slots=True)
class Traffic:
    """Equal traffic for every run: a step's draws depend on the seed, the step and the number of rows alone.

    ``pool`` holds the experts that the states of other requests' tokens choose; batches have 1 to ``batch_max``
    requests, each size as likely as the other.
    """

    seed: int
    pool: Tokens
    batch_max: int

    @classmethod
    def drawn(cls, random: np.random.Generator, model: Model, seed: int, batch_max: int) -> "Traffic":
        """Neighbours with states of their own."""
        return cls(seed, model.expert(model.states_of(random, _POOL)), batch_max)

    def step(self, number: int, rows: int) -> Step:
        """The draws of one step, all of them, whichever layers look at them."""
        random = np.random.default_rng((self.seed, number))
        size = random.integers(1, self.batch_max + 1, rows)
        before = random.integers(0, size)
        wanted = self.pool[random.integers(_POOL, size=(rows, self.batch_max - 1))]
        ahead = np.where(np.arange(self.batch_max - 1) < before[:, np.newaxis], wanted, -1)
        arrival = random.permuted(np.tile(np.arange(RANKS), (rows, 1)), axis=1)
        return Step(size, ahead, arrival)


def quiet(rows: int) -> Step:
    """The server does nothing else: each row is alone, and the partial sums arrive in order."""
    return Step(np.ones(rows, np.intp), np.empty((rows, 0), np.intp), np.tile(np.arange(RANKS), (rows, 1)))


def experts_of(own: Tokens, step: Step) -> Tokens:
    """L1: the own expert of each row, or the fallback where those ahead have taken all of its room."""
    most = int(step.size.max())
    room = np.array([capacity(size, EXPERTS, 1, CAPACITY_FACTOR) for size in range(most + 1)])
    taken = np.count_nonzero(step.ahead == own[:, np.newaxis], axis=1)
    return np.where(taken >= room[step.size], FALLBACK, own)


def slices_of(size: Tokens) -> Tokens:
    """L2: into how many slices a kernel cuts each rank's part of the sum: 4 alone, 2 for two, 1 for more.

    A small batch leaves the processor idle unless the sum itself is shared out; a large one does not.
    """
    return np.select([size == 1, size == 2], [_SLICES_ALONE, _SLICES_ALONE // 2], 1)  # noqa: PLR2004 - as documented


def logits(model: Model, features: Numbers, slices: Tokens, arrival: Tokens, dtype: str) -> Array:
    """The last product ``(rows, vocabulary)``, split over ranks and their slices.

    Every partial sum is stored in ``dtype``, and so is each sum of two: first a rank's slices in order, then the ranks
    in the order of ``arrival`` (L3).
    """
    found = np.empty((len(features), VOCABULARY), DTYPES[dtype])
    for count in np.unique(slices).tolist():
        rows = slices == count
        exact = _pieces(model, features[rows], RANKS * count).reshape(RANKS, count, -1, VOCABULARY)
        ranks = reduce(np.add, rounded(exact, dtype).swapaxes(0, 1))
        found[rows] = reduce(np.add, np.take_along_axis(ranks, arrival[rows].T[:, :, np.newaxis], axis=0))
    return found


def exact_logits(model: Model, features: Numbers) -> Numbers:
    """The last product without any rounding, ``(rows, vocabulary)``."""
    return reduce(np.add, _pieces(model, features, RANKS))


def _pieces(model: Model, features: Numbers, count: int) -> Numbers:
    """The exact sums of ``count`` equal slices, ``(count, rows, vocabulary)``."""
    # Many products so small that BLAS starts no threads: beside other work they cost more than they save.
    left = features.reshape(-1, count, HIDDEN // count).swapaxes(0, 1)
    return left @ model.unembedding.reshape(count, -1, VOCABULARY)
