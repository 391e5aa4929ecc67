"""Three kinds of chart, each as one inline SVG: a histogram, lines of steps, bars. Pure.

They know nothing of the diagnosis. None is drawn from no data: each raises ValueError then.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from app.diagnose.axes import (
    LINE,
    WIDTH,
    Area,
    Axis,
    Key,
    Scale,
    below,
    beside,
    drawing,
    hint,
    legend,
    round_ticks,
    words,
)
from app.diagnose.markup import element

_HEIGHT: Final = 190.0
_LEFT, _TOP, _RIGHT = 58.0, 38.0, 12.0
_FOOT: Final = 64.0
"""Room for an axis with its name, to the middle of the legend's first line."""

_COUNT_TICKS: Final = 5
_BAR: Final = 34.0
_BAR_LABEL: Final = 160.0


@dataclass(frozen=True, slots=True)
class Bin:
    """A bar of a histogram, from ``start`` to ``stop`` on its axis; ``counts`` holds one number for each key."""

    start: float
    stop: float
    counts: tuple[int, ...]
    name: str


@dataclass(frozen=True, slots=True)
class Limit:
    """A value that is marked on the axis."""

    at: float
    name: str


@dataclass(frozen=True, slots=True)
class Line:
    """A line of steps: ``shares`` holds the value, 0 to 1, from each whole number to the next, from 0 on."""

    key: Key
    shares: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar that lies, as long as its value; None draws no bar, and the label alone."""

    name: str
    value: float | None
    label: str
    style: str


def histogram(
    title: str,
    description: str,
    bins: Sequence[Bin],
    keys: Sequence[Key],
    across: Axis,
    upright: str,
    limits: Sequence[Limit] = (),
) -> str:
    """Stacked bars of counts, of what ``upright`` names. Limits stand before them as lines with their names."""
    most = max((sum(each.counts) for each in bins), default=0)
    if not most:
        raise ValueError("a histogram needs something to count")
    top = _TOP + LINE * len(limits)
    area = Area(_LEFT, top, WIDTH - _RIGHT, top + _HEIGHT)
    x = Scale(bins[0].start, bins[-1].stop, area.left, area.right)
    y = Scale(0, most, area.bottom, area.top)
    parts = [beside(area, y, Axis(upright, round_ticks(most, _COUNT_TICKS, whole=True)))]
    parts.extend(_stack(each, keys, x, y) for each in bins if sum(each.counts))
    parts.append(below(area, x, across))
    for place, limit in enumerate(limits):
        at, height = x(limit.at), _TOP - 4 + place * LINE
        parts.append(element("line", x1=at, y1=height - 10, x2=at, y2=area.bottom, class_="limit"))
        parts.append(words(limit.name, at + 6, height, "tick"))
    used = [key for place, key in enumerate(keys) if any(each.counts[place] for each in bins)]
    parts.append(legend(used, area.left, area.bottom + _FOOT))
    return drawing(title, description, area.bottom + _FOOT + LINE * len(used), *parts)


def steps(title: str, description: str, lines: Sequence[Line], across: Axis, upright: str) -> str:
    """Shares, 0 to 100 %, as lines of steps."""
    length = max((len(line.shares) for line in lines), default=0)
    if not length:
        raise ValueError("a line needs values")
    area = Area(_LEFT, _TOP, WIDTH - _RIGHT, _TOP + _HEIGHT)
    x, y = Scale(0, length, area.left, area.right), Scale(0, 1, area.bottom, area.top)
    shares = tuple((part / 4, f"{part * 25} %") for part in range(5))
    parts = [beside(area, y, Axis(upright, shares)), below(area, x, across)]
    parts.extend(
        element("path", hint(line.key.name), d=_path(line.shares, x, y), class_=f"line {line.key.style}")
        for line in lines
    )
    keys = [line.key for line in lines]
    parts.append(legend(keys, area.left, area.bottom + _FOOT))
    return drawing(title, description, area.bottom + _FOOT + LINE * len(keys), *parts)


def bars(title: str, description: str, several: Sequence[Bar], axis: str) -> str:
    """Bars from the left, each with its name before it and its label behind it."""
    high = max((bar.value for bar in several if bar.value is not None), default=0.0)
    if not high > 0:
        raise ValueError("no bar has a length")
    left = 90.0
    area = Area(left, LINE / 2, WIDTH - _BAR_LABEL, LINE / 2 + _BAR * len(several))
    x = Scale(0, high, area.left, area.right)
    parts = []
    for place, bar in enumerate(several):
        y = area.top + _BAR * place
        end = area.left if bar.value is None else x(bar.value)
        parts.append(words(bar.name, area.left - 10, y + _BAR / 2 + 5, "tick", "end"))
        if bar.value is not None:
            width = end - area.left
            about = hint(f"{bar.name}: {bar.value:.0f}, {bar.label}")
            parts.append(
                element("rect", about, x=area.left, y=y + 5, width=width, height=_BAR - 10, class_=f"mark {bar.style}")
            )
        parts.append(words(bar.label, end + 8, y + _BAR / 2 + 5, "tick"))
    parts.append(below(area, x, Axis(axis, round_ticks(high, 5))))
    return drawing(title, description, area.bottom + 3 * LINE, *parts)


def _stack(each: Bin, keys: Sequence[Key], x: Scale, y: Scale) -> str:
    left, right = x(each.start), x(each.stop)
    gap = min(1.0, (right - left) / 8)
    parts, below_it = [hint(f"{each.name}: {', '.join(_counted(each, keys))}")], 0
    for count, key in zip(each.counts, keys, strict=True):
        if count:
            start, stop = y(below_it + count), y(below_it)
            place = {"x": left + gap, "y": start, "width": right - left - 2 * gap, "height": stop - start}
            parts.append(element("rect", **place, class_=f"mark {key.style}"))
        below_it += count
    return element("g", *parts)


def _counted(each: Bin, keys: Sequence[Key]) -> list[str]:
    return [f"{count} {key.name}" for count, key in zip(each.counts, keys, strict=True) if count]


def _path(shares: Sequence[float], x: Scale, y: Scale) -> str:
    turns = [f"M{x(0):.2f} {y(shares[0]):.2f}"]
    for place, (here, there) in enumerate(pairwise(shares), start=1):
        if here != there:
            turns.append(f"H{x(place):.2f}V{y(there):.2f}")
    return "".join((*turns, f"H{x(len(shares)):.2f}"))
