"""The pictures of ``reprise lab allreduce``: distinct results by ranks, and what another number of ranks changes."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from app.lab.allreduce_runs import ARRIVAL, TREE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MARKS: Final = ("o", "s", "^")
_HATCHES: Final = ("", "//", "xx")
_BARS_WIDTH: Final = 0.8


def draw(data: Mapping[str, Any], figure: "Figure") -> None:
    """Left the runs, right the layouts."""
    left, right = figure.subplots(1, 2)
    _runs(left, data["repeats"])
    _layouts(right, data["layouts"])


def _runs(axes: "Axes", repeats: Sequence[Mapping[str, Any]]) -> None:
    names = list(dict.fromkeys(one["format"] for one in repeats))
    for name, mark in zip(names, _MARKS, strict=False):
        for method, style in ((ARRIVAL, "-"), (TREE, ":")):
            own = [one for one in repeats if one["format"] == name and one["method"] == method]
            ranks, distinct = [one["ranks"] for one in own], [one["distinct"] for one in own]
            axes.plot(ranks, distinct, "k" + mark + style, fillstyle="none", label=f"{name}, {method}")
    axes.set_yscale("log")
    axes.set_title("Run after run")
    axes.set_xlabel("ranks")
    axes.set_ylabel(f"distinct results of {repeats[0]['runs']} runs")
    axes.legend(fontsize="small")


def _layouts(axes: "Axes", layouts: Sequence[Mapping[str, Any]]) -> None:
    methods = list(layouts[0]["elements_that_differ"])
    places = np.arange(len(layouts))
    width = _BARS_WIDTH / len(methods)
    for number, (method, hatch) in enumerate(zip(methods, _HATCHES, strict=True)):
        elements = [pair["elements_that_differ"][method] for pair in layouts]
        bars = axes.bar(places + number * width, elements, width, color="0.85", edgecolor="black", hatch=hatch)
        bars.set_label(method)
    labels = [f"{pair['format']}\n{pair['ranks'][0]} and {pair['ranks'][1]}" for pair in layouts]
    axes.set_xticks(places + width, labels, fontsize="x-small", rotation=90)
    axes.margins(y=0.25)
    axes.set_title("Another number of ranks")
    axes.set_ylabel("elements that differ")
    axes.legend(fontsize="small", ncols=len(methods), loc="upper center")
