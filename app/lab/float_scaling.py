"""Dynamic FP8 scaling: the largest value of a tensor sets the scale at which every other one is rounded."""

from typing import Any, Final, NamedTuple

import numpy as np

from app.determinism.statistics import rate_text
from app.lab.demonstration import Sheet
from app.lab.part import Part
from app.lab.precision import Array, limits, rounded

_FP8: Final = "float8_e4m3fn"
_NEIGHBOURS: Final = (1.0, 1.25, 1.5, 1.75, 2.0, 4.0, 6.0, 10.0, 40.0, 100.0, 1000.0)
_CURVE_DOUBLINGS: Final = 3.0
_CURVE_POINTS: Final = 1_000

_OTHER: Final = (4.0, 6.0)
_DOUBLE: Final = (2.0, 4.0)
"""Twice the scale shifts exponents and nothing else, except among the subnormal numbers of FP8: the control."""


class Rounding(NamedTuple):
    """What one value becomes beside a neighbour: ``scale`` is of the tensor, ``stored`` is the FP8 number."""

    neighbour: float
    largest: float
    scale: float
    stored: float
    value: float


def quantised(tensor: Array) -> tuple[Array, Array, Array]:
    """The tensor as it comes back from FP8, its stored numbers and its scales: one scale per row of ``(..., n)``.

    The scale is ``max(abs(row)) / 448``, computed in float32 from the values of the moment: dynamic per-tensor scaling
    of activations. A row of zeros has scale 1.
    """
    values = np.asarray(tensor, np.float32)
    largest = np.max(np.abs(values), axis=-1, keepdims=True)
    scales = np.where(largest > 0, largest / np.float32(limits(_FP8).max), np.float32(1.0))
    stored = rounded(values / scales, _FP8)
    return stored.astype(np.float32) * scales, stored, scales


def beside(value: float, neighbour: float) -> Rounding:
    """The value in a tensor of two."""
    back, stored, scales = quantised(np.array([value, neighbour]))
    largest = max(abs(value), abs(neighbour))
    return Rounding(neighbour, largest, float(scales[0]), float(stored[0]), float(back[0]))


def moves(values: Array, one: float, other: float) -> Array:
    """By which share of itself each value moves when its neighbour changes; no value is 0."""
    first, second = (
        quantised(np.stack((values, np.full(len(values), neighbour)), axis=-1))[0][:, 0] for neighbour in (one, other)
    )
    return np.abs(first.astype(np.float64) - second) / np.abs(values)


def scaling(value: float, trials: int, random: np.random.Generator) -> Part:
    """One value beside several neighbours, and ``trials`` values of 0.1 to 1 beside one neighbour and another."""
    rows = [beside(value, neighbour) for neighbour in _NEIGHBOURS]
    results = len({row.value for row in rows})
    values = random.uniform(0.1, 1.0, trials)
    moved = {pair: moves(values, *pair) for pair in (_OTHER, _DOUBLE)}
    return Part(
        (_sheet(value, rows),),
        (_sentence(value, rows, results), *(_often(pair, shares) for pair, shares in moved.items())),
        {
            "scaling": {
                "value": value,
                "neighbours": [row._asdict() for row in rows],
                "distinct_results": results,
                "random_values": [_plain(pair, shares) for pair, shares in moved.items()],
            }
        },
    )


def curve(value: float) -> tuple[Array, Array]:
    """What the value becomes as its neighbour grows eightfold from its own size, or from 1; both of shape ``(n,)``."""
    neighbours = max(1.0, abs(value)) * np.logspace(0.0, _CURVE_DOUBLINGS, _CURVE_POINTS, base=2.0)
    back, _, _ = quantised(np.stack((np.full(_CURVE_POINTS, value), neighbours), axis=-1))
    return neighbours, back[:, 0]


def _often(pair: tuple[float, float], shares: Array) -> str:
    one, other = pair
    moved = rate_text(int(np.count_nonzero(shares)), len(shares))
    mean = 100.0 * float(shares.mean())
    end = f", by {mean:.2g} % on average" if mean else ""
    return f"Random values from 0.1 to 1 that moved when their neighbour {one:g} became {other:g}: {moved}{end}."


def _plain(pair: tuple[float, float], shares: Array) -> dict[str, Any]:
    one, other = pair
    return {
        "neighbour": one,
        "other_neighbour": other,
        "values": len(shares),
        "moved": int(np.count_nonzero(shares)),
        "mean_move_relative": float(shares.mean()),
    }


def _sheet(value: float, rows: list[Rounding]) -> Sheet:
    title = f"{value:g} in FP8-E4M3 with a scale per tensor, beside one neighbour"
    columns = ("neighbour", "largest of the tensor", "scale", "stored", "read back", "error")
    cells = tuple(
        (
            f"{row.neighbour:g}",
            f"{row.largest:g}",
            f"{row.scale:.6g}",
            f"{row.stored:g}",
            f"{row.value:.7g}",
            f"{row.value - value:+.2g}",
        )
        for row in rows
    )
    return Sheet(title, columns, cells)


def _sentence(value: float, rows: list[Rounding], results: int) -> str:
    if results == 1:
        return f"{value:g} became the same number beside every neighbour; no difference was seen."
    low, high = min(rows, key=lambda row: row.value), max(rows, key=lambda row: row.value)
    return (
        f"{value:g} became {results} different numbers beside {len(rows)} neighbours, from {low.value:.5g} (largest of "
        f"the tensor {low.largest:g}) to {high.value:.5g} (largest {high.largest:g}); its own bits never changed."
    )
