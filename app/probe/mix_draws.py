"""Mixed traffic as a sequence: which request is isolated, and how long its answer is. Pure.

The probe sends this sequence and the simulation replays it, so that both see the same traffic.

* Requests are drawn in blocks of 20. Each block holds as many isolated ones as the percentage is due, at places that a
  seed shuffles: the percentage is met closely even in a short run (within one block's worth), while isolated requests
  still come in clusters and gaps as other people's do. A strictly regular sequence would hide the cost of a cluster.
* Lengths are drawn for each class on its own, in blocks that hold each length once: both classes have the same
  distribution of lengths, exactly so after every block, whatever the percentage. Their order is shuffled too, because
  lengths that go round in one order make few clients fall into step with each other.
"""

import random
from typing import Final, NamedTuple

from app.probe.prompts import load_prompt, load_tokens

DEFAULT_SEED: Final = 1

LENGTHS: Final = tuple(load_tokens(0, number) for number in range(8))
"""The tokens that requests ask for, each as often as the others; those of the probe's background load."""

_BLOCK: Final = 20
_ROUNDING: Final = 1e-9


class Draw(NamedTuple):
    """One request of the traffic: ``number`` counts those of its class, from 0; ``tokens`` is what it asks for."""

    isolated: bool
    number: int
    tokens: int

    @property
    def prompt(self) -> str:
        """What it asks: never the same twice in a run."""
        return load_prompt(int(self.isolated), self.number)


class Draws:
    """An endless sequence of draws; equal seeds and percentages give equal ones. ``percent``: 0 to 100."""

    def __init__(self, percent: float = 0.0, *, seed: int = DEFAULT_SEED) -> None:
        self._seed = seed
        self._numbers = [0, 0]
        self.mix(percent)

    def mix(self, percent: float) -> None:
        """Go on at another percentage. Numbers go on too, so that no prompt comes twice."""
        self._percent = percent
        # Not for secrets: the same seed must give the same traffic.
        self._random = random.Random(f"{self._seed}/{percent:g}")  # noqa: S311 - see above
        self._drawn = 0
        self._classes: list[bool] = []
        self._lengths: tuple[list[int], list[int]] = ([], [])

    def draw(self) -> Draw:
        """The next request."""
        if not self._classes:
            isolated = self._due(self._drawn + _BLOCK) - self._due(self._drawn)
            self._classes = [True] * isolated + [False] * (_BLOCK - isolated)
            self._random.shuffle(self._classes)
        self._drawn += 1
        next_class = self._classes.pop()
        lengths = self._lengths[next_class]
        if not lengths:
            lengths += LENGTHS
            self._random.shuffle(lengths)
        number = self._numbers[next_class]
        self._numbers[next_class] = number + 1
        return Draw(next_class, number, lengths.pop())

    def _due(self, requests: int) -> int:
        """How many of so many requests are isolated."""
        return int(requests * self._percent / 100 + _ROUNDING)


def mean_tokens() -> float:
    """The mean number of tokens of a request, in either class."""
    return sum(LENGTHS) / len(LENGTHS)
