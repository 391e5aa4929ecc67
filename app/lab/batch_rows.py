"""Row 0 of a batch, alone and with neighbours: whether an operation's kernel lets the batch size into the row."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

Rows: TypeAlias = NDArray[np.float32]
"""A batch of hidden states, ``(batch, size)``."""

RowOfBatch: TypeAlias = Callable[[Rows], NDArray[np.float64]]
"""Runs the operation once on the whole batch; gives row 0 of its result, widened to float64, which loses nothing."""

_SPANS_SHOWN: Final = 4


class Operation(NamedTuple):
    """One operation of one library in one number format."""

    library: str
    name: str
    dtype: str
    row: RowOfBatch

    @property
    def label(self) -> str:
        """What a sentence calls it."""
        return f"{self.library} {self.dtype} {self.name}"


@dataclass(frozen=True, slots=True)
class Survey:
    """What became of row 0 at the batch sizes 1, 2, 3 and so on; every tuple has one element for each of them.

    ``results`` numbers the distinct results in order of appearance, 0 being the row alone; equal numbers mean equal
    bits. ``differences`` holds the largest absolute difference to the row alone, ``changed`` how many of the
    ``values`` have other bits. ``by_content`` are the batch sizes at which other numbers in the neighbours changed it.
    """

    operation: Operation
    values: int
    results: tuple[int, ...]
    differences: tuple[float, ...]
    changed: tuple[int, ...]
    by_content: tuple[int, ...]

    @property
    def sizes(self) -> tuple[int, ...]:
        """The batch sizes at which row 0 has other bits than alone; 1 is among them if it does not repeat itself."""
        return tuple(size for size, result in enumerate(self.results, 1) if result)

    @property
    def distinct(self) -> int:
        """How many different results row 0 had."""
        return max(self.results) + 1


def survey(operation: Operation, firsts: Rows, neighbours: Rows, others: Rows) -> Survey:
    """Run the operation at every batch size from 1 to ``len(neighbours) + 1`` and compare row 0 bit by bit with alone.

    Each of ``firsts`` is row 0 in turn, and all of them together are one result. ``others`` has the shape of
    ``neighbours``: at each size everything is repeated with them in their place.
    """
    alone = _first_rows(operation, firsts, neighbours[:0])
    known = {alone.tobytes(): 0}
    results, differences, changed, by_content = [], [], [], []
    for size in range(1, len(neighbours) + 2):
        found = _first_rows(operation, firsts, neighbours[: size - 1])
        results.append(known.setdefault(found.tobytes(), len(known)))
        differences.append(float(np.max(np.abs(found - alone))))
        changed.append(int(np.count_nonzero(found.view(np.uint64) != alone.view(np.uint64))))
        if _first_rows(operation, firsts, others[: size - 1]).tobytes() != found.tobytes():
            by_content.append(size)
    return Survey(operation, alone.size, tuple(results), tuple(differences), tuple(changed), tuple(by_content))


def _first_rows(operation: Operation, firsts: Rows, neighbours: Rows) -> NDArray[np.float64]:
    return np.concatenate([operation.row(np.concatenate((first[np.newaxis], neighbours))) for first in firsts])


def spans(numbers: Iterable[int]) -> str:
    """Whole numbers in ascending order as ``2-16, 32``; of many spans the first four."""
    found: list[tuple[int, int]] = []
    for number in numbers:
        if found and found[-1][1] == number - 1:
            found[-1] = (found[-1][0], number)
        else:
            found.append((number, number))
    texts = [f"{low}-{high}" if high > low else f"{low}" for low, high in found[:_SPANS_SHOWN]]
    if len(found) > _SPANS_SHOWN:
        texts.append(f"and {len(found) - _SPANS_SHOWN} more")
    return ", ".join(texts) or "none"
