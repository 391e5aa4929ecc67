"""What charts have in common: the area, scales, axes with round ticks, the legend. Pure.

Lengths are in units of the drawing, which is `WIDTH` wide and grows with the page. Colours are classes of the page's
style; what has none takes the colour of the text.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from app.diagnose.markup import element, safe

WIDTH: Final = 640.0
LINE: Final = 20.0
"""From one line of text to the next."""

_TICK: Final = 5.0
_LABEL: Final = 18.0
_SWATCH: Final = 22.0
_STEPS: Final = (1, 2, 5, 10)


@dataclass(frozen=True, slots=True)
class Area:
    """Where the data is drawn: its four edges."""

    left: float
    top: float
    right: float
    bottom: float


@dataclass(frozen=True, slots=True)
class Scale:
    """From values, ``low`` to ``high``, to places, ``start`` to ``stop``."""

    low: float
    high: float
    start: float
    stop: float

    def __call__(self, value: float) -> float:
        """The place of a value."""
        return self.start + (value - self.low) / (self.high - self.low) * (self.stop - self.start)


@dataclass(frozen=True, slots=True)
class Axis:
    """The name of an axis, its unit included, and its ticks: values with what is written there."""

    name: str
    ticks: tuple[tuple[float, str], ...]


@dataclass(frozen=True, slots=True)
class Key:
    """An entry of a legend: ``style`` is the class of the marks that it explains, ``line`` says that they are lines."""

    name: str
    style: str
    line: bool = False


def drawing(title: str, description: str, height: float, *inner: str, width: float = WIDTH) -> str:
    """The whole of a chart, with its name and a sentence for those who do not see it."""
    spoken = element("title", safe(title)) + element("desc", safe(description))
    return element(
        "svg", spoken, *inner, viewBox=f"0 0 {width:g} {height:g}", role="img", aria_label=f"{title}. {description}"
    )


def words(text: str, x: float, y: float, style: str | None = None, anchor: str | None = None) -> str:
    """A line of text with its baseline at ``y``; ``anchor`` is ``middle``, ``end`` or None for ``start``."""
    return element("text", safe(text), x=x, y=y, class_=style, text_anchor=anchor)


def hint(text: str) -> str:
    """What is shown while a mark is pointed at."""
    return element("title", safe(text))


def round_ticks(high: float, most: int, *, whole: bool = False) -> tuple[tuple[float, str], ...]:
    """At most ``most`` + 1 ticks from 0 on, a round step apart; ``whole`` where there is nothing between integers."""
    step = _round_up(high / most)
    if whole:
        step = max(1.0, step)
    return tuple((at, f"{at:g}") for at in (round(step * place, 10) for place in range(int(high / step + 1e-9) + 1)))


def below(area: Area, scale: Scale, axis: Axis) -> str:
    """The axis at the foot of an area."""
    parts = [element("line", x1=area.left, y1=area.bottom, x2=area.right, y2=area.bottom, class_="axis")]
    for value, label in axis.ticks:
        x = scale(value)
        parts.append(element("line", x1=x, y1=area.bottom, x2=x, y2=area.bottom + _TICK, class_="axis"))
        parts.append(words(label, x, area.bottom + _LABEL, "tick", "middle"))
    parts.append(words(axis.name, (area.left + area.right) / 2, area.bottom + 2 * LINE, "name", "middle"))
    return element("g", *parts, class_="across")


def beside(area: Area, scale: Scale, axis: Axis) -> str:
    """The axis at the left of an area, with lines across it."""
    parts = []
    for value, label in axis.ticks:
        y = scale(value)
        parts.append(element("line", x1=area.left, y1=y, x2=area.right, y2=y, class_="grid"))
        parts.append(words(label, area.left - 2 * _TICK, y + _TICK, "tick", "end"))
    # Above the axis rather than along it: text that stands upright is hard to read.
    parts.append(words(axis.name, 0, area.top - 0.9 * LINE, "name"))
    return element("g", *parts, class_="upright")


def legend(keys: Sequence[Key], x: float, y: float) -> str:
    """One line for each entry, the first at ``y``; it is ``len(keys) * LINE`` high."""
    parts = []
    for place, key in enumerate(keys):
        middle = y + place * LINE
        if key.line:
            mark = element("line", x1=x, y1=middle, x2=x + _SWATCH, y2=middle, class_=f"line {key.style}")
        else:
            side = LINE - 8
            mark = element("rect", x=x, y=middle - side / 2, width=side, height=side, class_=key.style)
        parts.append(mark + words(key.name, x + _SWATCH + 8, middle + _TICK))
    return element("g", *parts, class_="legend")


def _round_up(value: float) -> float:
    """The next of 1, 2, 5 times a power of ten."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in _STEPS if step * power >= value * (1 - 1e-9))
