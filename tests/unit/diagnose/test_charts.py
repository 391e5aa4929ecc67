"""The charts, by the places and lengths of their marks as the charts' own axes read."""

import re
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.diagnose.axes import Axis, Key, round_ticks
from app.diagnose.charts import Bar, Bin, Limit, Line, bars, histogram, steps
from tests.unit.diagnose.parsed import Node, axis, inside, parse

KEYS = (Key("first kind", "tie"), Key("second kind", "clear"))
CLOSE = 0.02
"""Places are written with two decimals."""

Counts = list[tuple[int, int]]


def drawn(svg: str) -> Node:
    return parse(svg).one("svg")


def histogram_of(counts: Counts, limits: tuple[Limit, ...] = ()) -> Node:
    bins = [Bin(place, place + 1, each, f"bin {place}") for place, each in enumerate(counts)]
    across = Axis("value", round_ticks(len(counts), 8, whole=True))
    return drawn(histogram("A title", "What it shows.", bins, KEYS, across, "things", limits))


def steps_of(*lines: tuple[float, ...]) -> Node:
    several = [Line(Key(f"line {place}", f"c{place}", line=True), shares) for place, shares in enumerate(lines)]
    across = Axis("value", round_ticks(max(map(len, lines)), 8, whole=True))
    return drawn(steps("A title", "What it shows.", several, across, "share"))


def bars_of(*values: float | None) -> Node:
    several = [Bar(f"bar {place}", value, f"label {place}", "good") for place, value in enumerate(values)]
    return drawn(bars("A title", "What it shows.", several, "things"))


def height_at(path: Node, x: float) -> float:
    """Where a path of level and upright strokes is at a place."""
    start, level, height = 0.0, 0.0, float("nan")
    for stroke, numbers in re.findall(r"([MHV])([\d. ]+)", path.attributes["d"]):
        values = [float(number) for number in numbers.split()]
        if stroke == "V":
            level = values[0]
        elif stroke == "M":
            start, level = values
        else:
            if start <= x <= values[0]:
                height = level
            start = values[0]
    return height


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), min_size=2, max_size=48))
@settings(deadline=None)
def test_bars_stand_where_the_values_are_and_are_as_high_as_their_counts(counts: Counts) -> None:
    """Every count above 0 has one bar, within its bin, as high as the axis says, upon the kinds before it."""
    counts = [*counts, (1, 2)]
    svg = histogram_of(counts)
    x, y = axis(svg, "across"), axis(svg, "upright")
    marks = {
        (place, key.style): mark
        for key in KEYS
        for mark in svg.every("rect", key.style)
        if "mark" in mark.attributes["class"]
        for place in range(len(counts))
        if x(place) < mark.number("x") + mark.number("width") / 2 < x(place + 1)
    }

    wanted = {(place, key.style) for place, each in enumerate(counts) for key, n in zip(KEYS, each, strict=True) if n}

    assert set(marks) == wanted
    for place, (first, second) in enumerate(counts):
        for style, start, stop in (("tie", 0, first), ("clear", first, first + second)):
            if start < stop:
                mark = marks[place, style]
                assert mark.number("y") == pytest.approx(y(stop), abs=CLOSE)
                assert mark.number("height") == pytest.approx(y(start) - y(stop), abs=CLOSE)
                assert x(place) <= mark.number("x") < mark.number("x") + mark.number("width") <= x(place + 1)
    assert all(label.number("x") < x(0) for label in svg.one("g", "upright").every("text", "tick"))
    assert inside(svg)


def test_limits_are_marked_at_their_values() -> None:
    """Each limit is a line that stands on the axis at its value, with its name beside it."""
    svg = histogram_of([(1, 0), (0, 2), (0, 0), (3, 1)], (Limit(0.25, "one limit"), Limit(3.5, "another")))
    lines = svg.every("line", "limit")
    expected = [axis(svg, "across")(at) for at in (0.25, 3.5)]

    assert [line.number("x1") for line in lines] == pytest.approx(expected, abs=CLOSE)
    assert all(line.number("x1") == line.number("x2") for line in lines)
    assert {"one limit", "another"} <= {text.text for text in svg.every("text")}
    assert inside(svg)


def test_the_legend_names_the_kinds_that_are_there() -> None:
    """A kind of which nothing was counted has no entry."""
    assert histogram_of([(0, 2), (0, 1)]).one("g", "legend").text == "second kind"


def test_a_mark_tells_its_figures_when_it_is_pointed_at() -> None:
    """The bin's name and its counts, without those that are 0."""
    hints = [node.text for node in histogram_of([(2, 0), (1, 3)]).every("title")][1:]
    assert hints == ["bin 0: 2 first kind", "bin 1: 1 first kind, 3 second kind"]


@given(st.lists(st.lists(st.floats(0, 1), min_size=2, max_size=30).map(tuple), min_size=1, max_size=12))
@settings(deadline=None)
def test_lines_are_where_the_shares_are(lines: list[tuple[float, ...]]) -> None:
    """Between two whole numbers a line is as high as its share of that place, by the axis of percents."""
    svg = steps_of(*lines)
    x, y = axis(svg, "across"), axis(svg, "upright")
    paths = svg.every("path")

    assert len(paths) == len(lines)
    for path, shares in zip(paths, lines, strict=True):
        for place, share in enumerate(shares):
            assert height_at(path, x(place + 0.5)) == pytest.approx(y(share * 100), abs=CLOSE)
    assert inside(svg)


def test_every_line_is_named_in_the_legend_with_its_own_stroke() -> None:
    """The class of an entry's stroke is that of the line which it names."""
    legend = steps_of((1.0, 0.5), (0.25, 0.0)).one("g", "legend")

    assert [text.text for text in legend.every("text")] == ["line 0", "line 1"]
    assert [line.attributes["class"] for line in legend.every("line")] == ["line c0", "line c1"]


@given(st.lists(st.floats(0.1, 1e4), min_size=1, max_size=6))
@settings(deadline=None)
def test_bars_that_lie_are_as_long_as_their_values(values: list[float]) -> None:
    """Each begins at the axis and ends at its value."""
    svg = bars_of(*values)
    marks = svg.every("rect", "mark")
    unit = max(mark.number("width") for mark in marks) / max(values)

    assert [mark.number("width") for mark in marks] == pytest.approx([value * unit for value in values], abs=CLOSE)
    assert len({mark.number("x") for mark in marks}) == 1
    assert inside(svg)


def test_the_axis_below_bars_reads_their_values() -> None:
    """A bar ends where the axis has its value."""
    svg = bars_of(120.0, 45.0)
    ends = [mark.number("x") + mark.number("width") for mark in svg.every("rect", "mark")]
    assert ends == pytest.approx([axis(svg, "across")(value) for value in (120.0, 45.0)], abs=CLOSE)


def test_a_bar_without_a_value_has_its_name_and_label_alone() -> None:
    """Nothing is drawn for what was not measured, and it is not left out."""
    svg = bars_of(10.0, None)

    assert len(svg.every("rect", "mark")) == 1
    assert {"bar 1", "label 1"} <= {text.text for text in svg.every("text")}


@pytest.mark.parametrize(
    "draw",
    [
        lambda: histogram_of([(0, 0), (0, 0)]),
        lambda: histogram("t", "d", (), KEYS, Axis("x", ()), "y"),
        lambda: steps("t", "d", (), Axis("x", ()), "y"),
        lambda: bars_of(None, None),
        lambda: bars_of(0.0),
    ],
)
def test_no_chart_is_drawn_from_no_data(draw: Callable[[], object]) -> None:
    """An empty chart would look like a finding."""
    with pytest.raises(ValueError, match=r"needs|no bar"):
        draw()


@pytest.mark.parametrize("svg", [histogram_of([(1, 0), (0, 1)]), steps_of((1.0, 0.0)), bars_of(1.0)])
def test_a_chart_is_spoken_for_those_who_do_not_see_it(svg: Node) -> None:
    """It is an image with a name, a sentence of what it shows, and named axes."""
    assert svg.attributes["role"] == "img"
    assert svg.attributes["aria-label"] == "A title. What it shows."
    assert [child.text for child in svg.children[:2]] == ["A title", "What it shows."]
    assert all(name.text for name in svg.every("text", "name"))


HOSTILE = "</title><script>alert(1)</script>\" onload='x'\x1b\u202e&"


def test_hostile_names_stay_text_in_every_chart() -> None:
    """Whatever a name holds, a chart has the elements that it has with a plain one, and no more attributes."""

    def shapes(name: str) -> list[list[tuple[str, list[str]]]]:
        key = Key(name, "tie")
        across = Axis(name, ((0.0, name), (1.0, name)))
        charts = (
            histogram(name, name, [Bin(0, 1, (1,), name)], [key], across, name, [Limit(0.5, name)]),
            steps(name, name, [Line(key, (1.0, 0.5))], across, name),
            bars(name, name, [Bar(name, 1.0, name, "good")], name),
        )
        return [[(node.tag, sorted(node.attributes)) for node in parse(svg).every()] for svg in charts]

    assert shapes(HOSTILE) == shapes("plain")
