"""The four pictures of ``reprise lab float``."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from app.lab.float_scaling import curve
from app.lab.precision import limits

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_SPACED: Final = (("float16", "-"), ("bfloat16", "--"), ("float8_e4m3fn", ":"))
_EXPONENTS: Final = (-10, 18)


def draw(data: Mapping[str, Any], figure: "Figure") -> None:
    """The number line, the spacing of three formats, one value under dynamic scaling, and the share of triples."""
    grid = figure.subplots(2, 2)
    _number_line(grid[0, 0], data["toy"]["numbers"])
    _spacing(grid[0, 1])
    _scaled(grid[1, 0], data["scaling"])
    _shares(grid[1, 1], data["random_triples"])


def _number_line(axes: "Axes", numbers: list[float]) -> None:
    axes.plot(numbers, np.zeros(len(numbers)), "k|", markersize=18)
    axes.axhline(0.0, color="0.6", linewidth=0.8)
    axes.set_yticks([])
    axes.set_ylim(-1.0, 1.0)
    axes.set_title(f"All {len(numbers)} numbers of a five-bit float")
    axes.set_xlabel("value")


def _spacing(axes: "Axes") -> None:
    for name, style in _SPACED:
        form = limits(name)
        exponents = np.arange(*_EXPONENTS)
        starts = 2.0**exponents
        steps = np.maximum(starts, float(form.smallest_normal)) * float(form.eps)
        held = starts <= float(form.max)
        axes.step(starts[held], steps[held], "k" + style, where="post", label=name)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.set_title("Distance to the next number")
    axes.set_xlabel("value")
    axes.set_ylabel("distance")
    axes.legend()


def _scaled(axes: "Axes", scaling: Mapping[str, Any]) -> None:
    value = float(scaling["value"])
    neighbours, results = curve(value)
    axes.plot(neighbours, results, "k.", markersize=2, label="after")
    axes.axhline(value, color="0.5", linestyle="--", label="before")
    axes.set_xscale("log", base=2)
    axes.set_title(f"{value:g} with a scale per tensor")
    axes.set_xlabel("largest neighbour")
    axes.set_ylabel("read back from FP8-E4M3")
    axes.margins(y=0.25)
    axes.legend(ncols=2, loc="upper center")


def _shares(axes: "Axes", counts: Mapping[str, Mapping[str, int]]) -> None:
    shares = [100.0 * count["differ"] / count["triples"] for count in counts.values()]
    bars = axes.bar(list(counts), shares, color="0.7", edgecolor="black")
    axes.bar_label(bars, fmt="%.1f")
    axes.margins(y=0.15)
    axes.set_title("(a + b) + c is not a + (b + c)")
    axes.set_ylabel("random triples that differ, %")
