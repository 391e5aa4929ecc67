"""How far drafts reach."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.verifier.session import draft_length


@pytest.mark.parametrize(
    ("missing", "room", "ahead", "drafted"),
    [
        (126, 128, 128, 128),  # two more tokens would be a draft of their own
        (10, 500, 128, 128),
        (128, 191, 128, 191),
        (128, 192, 128, 128),
        (300, 1000, 128, 300),
        (3, 3, 128, 3),
    ],
)
def test_a_draft_covers_the_pass_and_leaves_no_crumb(missing: int, room: int, ahead: int, drafted: int) -> None:
    """A window at least, and the rest with it where that is short."""
    assert draft_length(missing, room, ahead) == drafted


@given(st.integers(1, 4096), st.integers(0, 4096), st.integers(1, 4096))
def test_a_draft_is_never_too_short_nor_too_long(missing: int, more: int, ahead: int) -> None:
    """It covers what the pass lacks, within the answer's room."""
    room = missing + more
    assert missing <= draft_length(missing, room, ahead) <= room
