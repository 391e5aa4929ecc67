"""How far drafts reach."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.verification.decoding import Counts
from app.verifier.session import Reach, draft_length


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


def test_the_reach_falls_with_a_rollback_and_doubles_while_drafts_are_accepted() -> None:
    """All of it at first; each step back up takes as many accepted tokens as it is."""
    reach = Reach(8, 32)
    steps = [
        (0, 0, 32),
        (0, 31, 32),
        (0, 32, 32),
        (1, 40, 8),
        (1, 47, 8),
        (1, 48, 16),
        (1, 60, 16),
        (1, 64, 32),
        (1, 500, 32),
        (3, 501, 8),
        (4, 600, 8),
    ]
    assert [reach.ahead(Counts(rollbacks=back, accepted=accepted)) for back, accepted, _ in steps] == [
        ahead for *_, ahead in steps
    ]


def test_a_stream_drafts_a_window_at_a_time() -> None:
    """Whatever is accepted."""
    reach = Reach(8, 8)
    assert {reach.ahead(Counts(rollbacks=back, accepted=back * 50)) for back in range(5)} == {8}
