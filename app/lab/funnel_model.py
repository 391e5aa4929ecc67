"""A small decoder in exact arithmetic: whatever a layer of the funnel does to it is then the layer's doing alone.

States and weights are whole multiples of 2 to the power of -14. A sum of products of two such numbers fits into the 53
bits of float64, so a matrix product here has no rounding, whatever the order in which the library adds and however many
rows there are. What follows a product (square root, division, rounding to the grid) is element by element.
"""

from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

HIDDEN: Final = 64
VOCABULARY: Final = 512
EXPERTS: Final = 8
TOPICS: Final = 16
FALLBACK: Final = EXPERTS

_GRID: Final = 16384.0
_MEMORY: Final = 0.7
"""What the state keeps of the one before: a token counts for some steps and fades."""
_LOGIT_SIZE: Final = 3.0
_LOGIT_LEVEL: Final = 8.0
"""Added to every logit: the largest are then about 17, where a step of bfloat16 is 0.125, as at forks of real ones."""
_TOPIC: Final = 0.7
_WARM_UP: Final = 8

Numbers: TypeAlias = NDArray[np.float64]
Tokens: TypeAlias = NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class Model:
    """Weights, all of them on the grid.

    ``embedding (vocabulary, hidden)``, ``positions (longest, hidden)``, ``gate (hidden, experts)``, ``experts (experts
    + 1, hidden, hidden)`` with the fallback last, and ``unembedding (hidden, vocabulary)``. Token ``t`` has the topic
    ``t % TOPICS``; the vectors of a topic's tokens resemble each other.
    """

    embedding: Numbers
    positions: Numbers
    gate: Numbers
    experts: Numbers
    unembedding: Numbers

    @classmethod
    def drawn(cls, random: np.random.Generator, longest: int) -> "Model":
        """A model for texts of up to ``longest`` tokens."""
        topics = random.standard_normal((2, TOPICS, HIDDEN))
        own = random.standard_normal((2, VOCABULARY, HIDDEN))
        read, write = _TOPIC * topics[:, np.arange(VOCABULARY) % TOPICS] + (1 - _TOPIC**2) ** 0.5 * own
        narrow = HIDDEN**0.5
        unembedding = write.T * _LOGIT_SIZE / narrow
        unembedding[0] = _LOGIT_LEVEL
        return cls(
            on_grid(read),
            on_grid(random.standard_normal((longest, HIDDEN)) / 2),
            on_grid(random.standard_normal((HIDDEN, EXPERTS)) / narrow),
            on_grid(random.standard_normal((EXPERTS + 1, HIDDEN, HIDDEN)) / narrow),
            on_grid(unembedding),
        )

    def next_state(self, state: Numbers, token: Tokens, position: int) -> Numbers:
        """The state after one more token; ``(rows, hidden)`` and ``(rows,)``."""
        return _unit(_MEMORY * np.roll(state, 1, axis=-1) + self.embedding[token] + self.positions[position])

    def expert(self, state: Numbers) -> Tokens:
        """The expert of each row: the gate's largest score."""
        best: Tokens = np.argmax(state @ self.gate, axis=-1)
        return best

    def features(self, state: Numbers, expert: Tokens) -> Numbers:
        """What an expert, its number per row, makes of the state: the input of the last product, the first being 1."""
        inner = np.matmul(state[:, np.newaxis], self.experts[expert])[:, 0]
        found = _unit(state + np.maximum(inner, 0.0))
        found[:, 0] = 1.0
        return found

    def states_of(self, random: np.random.Generator, rows: int) -> Numbers:
        """States after some random tokens: of prompts, and of the requests that share a batch."""
        state = np.zeros((rows, HIDDEN))
        for position, token in enumerate(random.integers(VOCABULARY, size=(_WARM_UP, rows))):
            state = self.next_state(state, token, position % len(self.positions))
        return state


def on_grid(values: Numbers) -> Numbers:
    """Each value, rounded to a multiple of 2 to the power of -14."""
    return np.rint(values * _GRID) / _GRID


def _unit(values: Numbers) -> Numbers:
    """Rows of mean square 1, on the grid before and after, so that the sum of the squares is exact."""
    values = on_grid(values)
    return on_grid(values / np.sqrt(np.mean(np.square(values), axis=-1, keepdims=True)))
