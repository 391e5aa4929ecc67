"""The pictures of ``reprise lab reduction``: the error layer by layer and of one sum, by order and format."""

import math
from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import TYPE_CHECKING, Any, Final, Literal

from app.lab.reduction_sums import ORDERS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LINES: Final = ("-", "--", "-.")
_MARKS: Final = ("o", "s", "^", "x")


def draw(data: Mapping[str, Any], figure: "Figure") -> None:
    """A column per format: above the residual stack, below the sums."""
    names = list(data["layers"])
    grid = figure.subplots(2, len(names), squeeze=False)
    for column, name in enumerate(names):
        _stack(grid[0, column], name, data["layers"][name])
        _sums(grid[1, column], [row for row in data["sums"] if row["format"] == name])
    for row, what in enumerate(("state", "sum")):
        grid[row, 0].set_ylabel(f"relative to the {what}")
        # By label, as a format may lack an order.
        lines = {str(line.get_label()): line for axes in grid[row] for line in axes.get_lines()}
        place: Literal["outside lower center", "outside upper center"]
        place = "outside lower center" if row else "outside upper center"
        figure.legend(list(lines.values()), list(lines), fontsize="small", ncols=len(lines), loc=place)


# A logarithmic axis has no place for 0, and JSON's null is a sum that overflowed: NaN leaves a gap for both.
def _stack(axes: "Axes", name: str, run: Sequence[Mapping[str, Any]]) -> None:
    numbers = [layer["number"] for layer in run]
    for style, order in zip(cycle(_LINES), run[0]["error_relative"], strict=False):
        errors = [layer["error_relative"][order] for layer in run]
        axes.plot(numbers, errors, "k" + style, linewidth=1.0, label=f"error, {order}")
    for mark, order in zip(cycle(_MARKS), run[0]["differs_from_first_order"], strict=False):
        apart = [layer["differs_from_first_order"][order]["relative"] or math.nan for layer in run]
        line = axes.plot(numbers, apart, marker=mark, color="0.4", linewidth=0.8, label=f"{order} from the first")
        line[0].set(markersize=3.5, fillstyle="none")
    axes.set_yscale("log")
    axes.set_title(f"{name}, by layer")
    axes.set_xlabel("layer")


def _sums(axes: "Axes", rows: Sequence[Mapping[str, Any]]) -> None:
    sizes = [row["numbers"] for row in rows]
    for mark, order in zip(_MARKS, ORDERS, strict=True):
        errors = [row["error_relative"][order] or math.nan for row in rows]
        axes.plot(sizes, errors, color="black", marker=mark, fillstyle="none", linewidth=0.8, label=order)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_title(f"{rows[0]['format']}, one sum")
    axes.set_xlabel("numbers in the sum")
