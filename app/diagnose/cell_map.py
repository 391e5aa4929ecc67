"""A map of cells, coloured by a value each, as one inline SVG. Pure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from app.diagnose.axes import LINE, WIDTH, drawing, words
from app.diagnose.markup import element

_TOP: Final = 34.0
_LABELS_LEFT: Final = 200.0
_CELL: Final = 46.0
_NARROWEST_CELL, _WIDEST_CELL = 66.0, 110.0
_PALEST, _STRONGEST = 0.08, 0.5
"""Opacity of cells: the text on them must stay readable."""

_DECADES: Final = 2.0
_SWATCHES: Final = 4


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell of a map. ``value`` decides its colour: 0 has none, None is not known. ``lines`` are written on it."""

    value: float | None
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Shade:
    """How dark a value is: from ``low`` to ``high`` by its logarithm."""

    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Shade":
        """Over the range of some values above 0, and over two decades at least."""
        high = max(values, default=1.0)
        return cls(min([*values, high * 10**-_DECADES]), high)

    def __call__(self, value: float) -> float:
        """The opacity, 0 for 0."""
        if value <= 0:
            return 0.0
        part = math.log(value / self.low) / math.log(self.high / self.low)
        return _PALEST + (_STRONGEST - _PALEST) * min(1.0, max(0.0, part))


def cell_map(
    title: str,
    description: str,
    rows: Sequence[str],
    columns: Sequence[str],
    cells: Sequence[Sequence[Cell]],
    axis: str,
) -> str:
    """A table of cells, row by row, darker where their value is larger, on a logarithmic scale that is shown below."""
    if not rows or not columns:
        raise ValueError("a map needs cells")
    width = max(_NARROWEST_CELL, min(_WIDEST_CELL, (WIDTH - _LABELS_LEFT) / len(columns)))
    right, bottom = _LABELS_LEFT + width * len(columns), _TOP + LINE + _CELL * len(rows)
    shade = Shade.of([cell.value for row in cells for cell in row if cell.value])
    parts = [words(axis, _LABELS_LEFT, _TOP - LINE / 2, "name")]
    for place, column in enumerate(columns):
        parts.append(words(column, _LABELS_LEFT + width * (place + 0.5), _TOP + LINE / 2, "tick", "middle"))
    for number, (row, across) in enumerate(zip(rows, cells, strict=True)):
        y = _TOP + LINE + _CELL * number
        parts.append(words(row, _LABELS_LEFT - 10, y + _CELL / 2 + 5, "tick", "end"))
        for place, cell in enumerate(across):
            parts.append(_cell(cell, shade, _LABELS_LEFT + width * place, y, width))
    if any(cell.value for row in cells for cell in row):
        parts.append(_shades(shade, _LABELS_LEFT, bottom + LINE, right))
    return drawing(title, description, bottom + 2 * LINE, *parts, width=max(WIDTH, right))


def _cell(cell: Cell, shade: Shade, x: float, y: float, width: float) -> str:
    known = cell.value is not None
    place = {"x": x + 1, "y": y + 1, "width": width - 2, "height": _CELL - 2}
    opacity = shade(cell.value) if cell.value is not None else 0.0
    parts = [
        element("rect", **place, class_="mark hot", fill_opacity=opacity),
        element("rect", **place, class_="frame" if known else "frame missing"),
    ]
    first = y + _CELL / 2 + 5 - LINE / 2 * (len(cell.lines) - 1) * 0.85
    for line, said in enumerate(cell.lines):
        parts.append(words(said, x + width / 2, first + line * LINE * 0.85, "small" if line else None, "middle"))
    return element("g", *parts)


def _shades(shade: Shade, x: float, y: float, right: float) -> str:
    """The scale of colours: some values between the least and the largest, each with its colour."""
    parts = []
    width = (right - x) / _SWATCHES
    for place in range(_SWATCHES):
        value = shade.low * (shade.high / shade.low) ** (place / (_SWATCHES - 1))
        at = x + width * place
        parts.append(element("rect", x=at, y=y - 8, width=14, height=14, class_="hot", fill_opacity=shade(value)))
        parts.append(words(f"{value:.1g}", at + 20, y + 4, "tick"))
    return element("g", *parts, class_="legend")
