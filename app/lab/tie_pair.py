"""Two logits close together, and a disturbance of the second: what each number format makes of it."""

from typing import Final, NamedTuple

import numpy as np

from app.lab.precision import rounded, spacing

FORMATS: Final = ("float64", "float32", "bfloat16")
LEVELS: Final = (0.5, 4.0, 16.0)
"""Sizes of a logit: the spacing of a format grows with them."""


class Pair(NamedTuple):
    """Two logits as a format holds them: the first at ``level``, the second half the noise below it.

    ``disturbed`` is the second with the noise added and rounded again. ``before`` and ``after`` are the argmax of the
    two, 0 or 1, the lowest index among equals. ``step`` is the format's spacing above ``level``.
    """

    format: str
    level: float
    step: float
    second: float
    disturbed: float
    before: int
    after: int

    @property
    def flipped(self) -> bool:
        """Whether the other of the two is chosen after the noise."""
        return self.before != self.after


def pairs(noise: float) -> tuple[Pair, ...]:
    """Every format at every level, the noise being larger than 0."""
    return tuple(_pair(name, level, noise) for name in FORMATS for level in LEVELS)


def _pair(name: str, level: float, noise: float) -> Pair:
    first, second = _stored(level, name), _stored(level - noise / 2, name)
    disturbed = _stored(second + noise, name)
    step = float(np.spacing(level)) if name == "float64" else spacing(level, name)
    before, after = (int(np.argmax(np.array([first, other]))) for other in (second, disturbed))
    return Pair(name, level, step, second, disturbed, before, after)


def _stored(value: float, name: str) -> float:
    return value if name == "float64" else float(rounded(value, name))
