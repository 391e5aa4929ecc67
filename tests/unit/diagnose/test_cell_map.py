"""The map of cells, by the places and the darkness of its cells."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.diagnose.cell_map import Cell, Shade, cell_map
from tests.unit.diagnose.parsed import Node, inside, parse


def drawn(cells: list[list[Cell]]) -> Node:
    rows = [f"row {number}" for number in range(len(cells))]
    columns = [f"column {number}" for number in range(len(cells[0]))]
    return parse(cell_map("A title", "What it shows.", rows, columns, cells, "columns")).one("svg")


@pytest.mark.parametrize("columns", [2, 4, 14])
def test_cells_lie_in_rows_and_columns(columns: int) -> None:
    """Each cell is below its column's name and beside its row's, holds its own text, and covers no other."""
    cells = [[Cell(0.1, (f"{row}/{column}", "more")) for column in range(columns)] for row in range(3)]
    svg = drawn(cells)
    marks = svg.every("rect", "mark")
    texts = {text.text: text for text in svg.every("text")}

    assert len(marks) == 3 * columns
    for number, mark in enumerate(marks):
        row, column = divmod(number, columns)
        left, top = mark.number("x"), mark.number("y")
        right, bottom = left + mark.number("width"), top + mark.number("height")
        assert left < texts[f"column {column}"].number("x") < right
        assert top < texts[f"row {row}"].number("y") < bottom
        own = texts[f"{row}/{column}"]
        assert left < own.number("x") < right
        assert top < own.number("y") < bottom
        others = (other for other in marks if other is not mark)
        assert not any(left <= o.number("x") < right and top <= o.number("y") < bottom for o in others)
    assert inside(svg)


def test_a_larger_value_is_darker_and_none_has_no_colour() -> None:
    """Darkness follows the value; 0 and what is not known have none, and what is not known has a frame of its own."""
    svg = drawn([[Cell(value, ("x",)) for value in (0.0, 0.002, 0.02, 0.2, None)]])
    dark = [mark.number("fill-opacity") for mark in svg.every("rect", "mark")]

    assert dark[0] == dark[4] == 0.0
    assert 0 < dark[1] < dark[2] < dark[3] < 1
    assert [frame.attributes["class"] for frame in svg.every("rect", "frame")] == [*["frame"] * 4, "frame missing"]


def test_the_legend_shows_the_range_of_values() -> None:
    """From the least to the largest, each with its colour; without any value above 0 there is no legend."""
    legend = drawn([[Cell(0.001, ("x",)), Cell(1.0, ("x",))]]).one("g", "legend")

    assert [float(text.text) for text in legend.every("text")] == pytest.approx([0.001, 0.01, 0.1, 1.0])
    assert not drawn([[Cell(0.0, ("x",)), Cell(None, ("x",))]]).every("g", "legend")


@given(st.lists(st.floats(1e-9, 1e9), min_size=1), st.data())
def test_shades_keep_the_order_of_values(values: list[float], data: st.DataObject) -> None:
    """Of two values the larger is never the paler, and text stays readable on the darkest."""
    shade = Shade.of(values)
    one, other = sorted(data.draw(st.tuples(st.sampled_from(values), st.sampled_from(values))))

    assert 0 < shade(one) <= shade(other) <= 0.5
    assert shade(0.0) == 0.0


def test_no_map_is_drawn_from_no_data() -> None:
    """An empty map would look like a finding."""
    with pytest.raises(ValueError, match="needs cells"):
        cell_map("t", "d", (), (), (), "x")
