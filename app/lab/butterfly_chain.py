"""A small Markov model that decodes greedily, for many prompts at once, and can be made to take its second choice.

The model of order k gives the next token from the last k tokens alone. Its table of ``vocabulary ** k`` contexts is
never stored: a hash of the seed, the prompt and the context says which few tokens may follow and with which logits.
Equal contexts always have equal successors, and every prompt has a table of its own, as its topic is part of what a
language model sees; so an average over prompts is one over tables.

Source of the hash: G. L. Steele, D. Lea and C. H. Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014
(the finalizer of SplitMix64).
"""

from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

Tokens = NDArray[np.int64]

SUCCESSORS: Final = 8
"""Tokens that may follow a context, at most."""

LOGIT_SPAN: Final = 8.0
"""Logits are uniform below this, so that the top two are ``LOGIT_SPAN / 9`` apart on average, and some nearly equal."""

_GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)
_FIRST: Final = np.uint64(0xBF58476D1CE4E5B9)
_SECOND: Final = np.uint64(0x94D049BB133111EB)
_UNIT: Final = 2.0**-53


class Step(NamedTuple):
    """The two likeliest successors of each context, and the distance of their logits."""

    best: Tokens
    runner_up: Tokens
    margin: NDArray[np.float64]


class Answers(NamedTuple):
    """What was decoded for each prompt, ``(prompts, tokens)``, and the margin at every position."""

    tokens: Tokens
    margins: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Chain:
    """The model: ``order`` tokens of memory, a vocabulary of at least 2, and the seed of its table."""

    order: int
    vocabulary: int
    seed: int

    @property
    def contexts(self) -> int:
        """How many states it has."""
        return int(self.vocabulary**self.order)

    def step(self, contexts: Tokens) -> Step:
        """What follows these contexts, ``(prompts, order)``, each by the table of its prompt."""
        state = _mixed(np.uint64(self.seed) + np.arange(1, len(contexts) + 1, dtype=np.uint64) * _GOLDEN)
        for column in contexts.T:
            state = _mixed(state ^ (column.astype(np.uint64) + _GOLDEN))
        count = min(SUCCESSORS, self.vocabulary)
        number = np.arange(count, dtype=np.uint64)
        scores = _mixed(state[:, np.newaxis] + (number + np.uint64(1)) * _GOLDEN) >> np.uint64(11)
        order = np.argsort(scores, axis=1, kind="stable")
        rows = np.arange(len(contexts))
        first, second = order[:, -1], order[:, -2]
        base = (state % np.uint64(self.vocabulary)).astype(np.int64)
        logits = scores.astype(np.float64) * _UNIT * LOGIT_SPAN
        return Step(
            (base + first) % self.vocabulary,
            (base + second) % self.vocabulary,
            logits[rows, first] - logits[rows, second],
        )

    def decode(self, prompts: Tokens, tokens: int, flip_at: int | None = None) -> Answers:
        """Decode so many tokens after each prompt, ``(prompts, order)``; at ``flip_at`` the second choice is taken."""
        answers = np.empty((len(prompts), tokens), np.int64)
        margins = np.empty((len(prompts), tokens))
        contexts = prompts
        for position in range(tokens):
            step = self.step(contexts)
            answers[:, position] = step.runner_up if position == flip_at else step.best
            margins[:, position] = step.margin
            contexts = np.column_stack((contexts[:, 1:], answers[:, position]))
        return Answers(answers, margins)


def _mixed(state: NDArray[np.uint64]) -> NDArray[np.uint64]:
    state = (state ^ (state >> np.uint64(30))) * _FIRST
    state = (state ^ (state >> np.uint64(27))) * _SECOND
    return state ^ (state >> np.uint64(31))
