"""Nothing that a stranger wrote reaches a terminal or a page as anything but text."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.comparison.plain import one_line, visible

ANY_TEXT = st.text(st.characters(codec=None, exclude_categories=()))


@settings(deadline=None)
@given(ANY_TEXT, st.integers(2, 80))
def test_a_line_for_a_terminal_is_one_printable_line(text: str, most: int) -> None:
    """Whatever the text, its line is printable and no longer than asked for."""
    shown = one_line(text, most)

    assert shown.isprintable()
    assert len(shown) <= most


@pytest.mark.parametrize(
    ("text", "shown"),
    [("short", "short"), ("sixteen letters!", "sixteen l…"), ("a\nb", "a\\nb"), ("\x1b[2J", "\\x1b[2J"), ("", "")],
)
def test_a_line_for_a_terminal(text: str, shown: str) -> None:
    """What fits stays, what does not ends in an ellipsis, and controls are spelled."""
    assert one_line(text, 10) == shown


@settings(deadline=None)
@given(ANY_TEXT)
def test_text_for_a_page_has_no_controls_and_can_be_written(text: str) -> None:
    """White space aside, nothing is left that a reader cannot see, or that UTF-8 cannot write."""
    shown = visible(text)

    assert shown.encode().decode() == shown
    assert not {"\x00", "\x1b", "\r", "\x7f", "\x9b", "\u202e", "\u2066", "\ufeff"} & set(shown)


def test_invisible_characters_are_named() -> None:
    """A turned direction of writing shows where it begins; line ends and tabs stay."""
    assert visible("a\u202eb\x1b\n\tc") == "a[U+202E]b[U+001B]\n\tc"
