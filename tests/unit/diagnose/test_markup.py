"""Texts of strangers as markup."""

from hypothesis import given
from hypothesis import strategies as st

from app.comparison.plain import visible
from app.diagnose.markup import element, safe, shortened, table
from tests.unit.diagnose.parsed import parse, rows

HOSTILE = st.text(alphabet="<>&\"'/=! -scriptonload\x00\x1b\n\u202e\ud800")


@given(HOSTILE)
def test_text_and_attributes_come_back_as_they_were(text: str) -> None:
    """What a reader of the markup finds is the text with its invisible characters named, within one element."""
    found = parse(element("p", safe(text), aria_label=text)).one()

    assert found.text == visible(text)
    assert found.attributes == {"aria-label": visible(text)}


def test_attributes_are_named_and_numbered_as_svg_has_them() -> None:
    """A dash for an underscore, none at the end, two decimals at most, and none where there is no value."""
    assert element("g", class_="a", stroke_width=1.005, x=2.0, y=1 / 3, id=None) == (
        '<g class="a" stroke-width="1" x="2" y="0.33"></g>'
    )


@given(HOSTILE, st.integers(1, 40))
def test_a_shortened_text_is_one_line(text: str, most: int) -> None:
    """It is no longer than asked for, and no line break is in it."""
    short = shortened(text, most)

    assert len(short) <= most
    assert short.isprintable()


def test_a_table_holds_its_texts() -> None:
    """The head, and each row with its first cell as its head; no head where there is no header."""
    found = parse(table(("a", "b"), [("1", "<b>"), ("2", "&")])).one("table")

    assert rows(found) == [["a", "b"], ["1", "<b>"], ["2", "&"]]
    assert [node.attributes["scope"] for node in found.every("th")] == ["col", "col", "row", "row"]
    assert rows(parse(table((), [("1", "2")])).one("table")) == [["1", "2"]]
