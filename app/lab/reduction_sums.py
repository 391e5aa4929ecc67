"""The same numbers summed in four orders, each addition rounded to the format, against the exact sum."""

import math
from typing import Any, Final, NamedTuple

import numpy as np

from app.lab.demonstration import Sheet
from app.lab.part import Part
from app.lab.precision import Array, raw, rounded
from app.lab.summation import chunked, edges_by_number, sequential, tree

FEW, MANY = 4, 7
ORDERS: Final = ("in order", f"{FEW} chunks", f"{MANY} chunks", "tree")


class Sums(NamedTuple):
    """What one list of numbers adds up to: the exact sum, and the sum in each of ``ORDERS``."""

    name: str
    size: int
    exact: float
    by_order: tuple[Array, ...]

    @property
    def distinct(self) -> int:
        """How many different numbers the orders gave."""
        return len({int(raw(total)) for total in self.by_order})

    def error(self, total: Array) -> float:
        """The relative error; infinite where the sum left the range of the format."""
        return abs(float(total) - self.exact) / self.exact


def sums_of(values: Array, name: str) -> Sums:
    """The sums of positive values of shape ``(n,)``; they are rounded to the format first, and that is no error here.

    ``math.fsum`` adds without rounding until the end, so it is the truth.
    """
    numbers = rounded(values, name)
    few, many = (edges_by_number(len(numbers), slices) for slices in (FEW, MANY))
    with np.errstate(over="ignore", invalid="ignore"):
        totals = (sequential(numbers), chunked(numbers, few), chunked(numbers, many), tree(numbers))
    return Sums(name, len(numbers), math.fsum(numbers.astype(np.float64).tolist()), totals)


def sums(names: tuple[str, ...], sizes: tuple[int, ...], random: np.random.Generator) -> Part:
    """A row per format and size; the numbers lie between 0 and 1: squares and softmax weights are positive too."""
    values = random.uniform(0.0, 1.0, max(sizes))
    rows = [sums_of(values[:size], name) for name in names for size in sizes]
    largest = [row for row in rows if row.size == max(sizes)]
    return Part((_sheet(rows),), tuple(_sentence(row) for row in largest), {"sums": [_plain(row) for row in rows]})


def _sheet(rows: list[Sums]) -> Sheet:
    cells = tuple(
        (
            row.name,
            str(row.size),
            f"{row.exact:.9g}",
            *(f"{float(total):.9g}" for total in row.by_order),
            str(row.distinct),
        )
        for row in rows
    )
    title = "The same numbers in four orders; the accumulator has the format of the numbers"
    return Sheet(title, ("format", "numbers", "exact", *ORDERS, "distinct"), cells)


def _sentence(row: Sums) -> str:
    if row.distinct == 1:
        return f"{row.name}: {row.size} numbers gave one sum in all four orders; no difference was seen."
    errors = {order: row.error(total) for order, total in zip(ORDERS, row.by_order, strict=True)}
    worst, best = max(errors, key=lambda order: errors[order]), min(errors, key=lambda order: errors[order])
    return (
        f"{row.name}: {row.size} numbers gave {row.distinct} sums in four orders; {worst} {_off(errors[worst])}, "
        f"{best} {_off(errors[best])}."
    )


def _off(error: float) -> str:
    return f"is off by {100.0 * error:.2g} %" if math.isfinite(error) else "left the range of the format"


def _plain(row: Sums) -> dict[str, Any]:
    errors = [row.error(total) for total in row.by_order]
    return {
        "format": row.name,
        "numbers": row.size,
        "exact": row.exact,
        "distinct": row.distinct,
        "error_relative": {
            order: error if math.isfinite(error) else None for order, error in zip(ORDERS, errors, strict=True)
        },
    }
