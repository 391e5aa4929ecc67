"""One answer in the making, step by step. That drafts never change it is tests/properties/test_verification.py."""

from typing import Any

import pytest

from app.errors import UnusableRow
from app.verification.decoding import Counts, Decoding, Undecided
from app.verification.ending import End, Ending
from app.verification.grid import Grid, Pass
from app.verification.rows import Row

PROMPT = [50, 51, 52]
EOS = 2


def decoding(*, window: int = 4, length: int = 40, **changed: Any) -> Decoding:
    ending: dict[str, Any] = {"max_tokens": 10, "eos": EOS}
    known = {name: changed.pop(name) for name in ("max_tokens", "min_tokens", "ignore_eos") if name in changed}
    rules = Ending(prompt=3, length=length, **ending | known)
    grid = Grid.of(window, 3, length, 16, prefix_caching=False)
    return Decoding(PROMPT, grid, rules, 100, **{"most_logprobs": 20, "first_logprobs": 2} | changed)


def row(token: int, *others: int) -> Row:
    """A row whose best is the first, with others that are as good."""
    return Row((token, *others, 99), (*(-0.5 for _ in (token, *others)), -3.0))


def rows(*tokens: int) -> list[Row]:
    return [row(token) for token in tokens]


def test_a_right_draft_is_confirmed_by_one_pass() -> None:
    """The window's last token needs no draft: the row before it decides it."""
    one = decoding()
    assert one.draft_wanted() == 3
    one.drafted([10, 11, 12])
    assert one.draft_wanted() == 0
    assert one.wanted() == Pass(7, None, 0, 3, 6)
    assert one.candidate() == [50, 51, 52, 10, 11, 12, 0]
    assert one.take(rows(10, 11, 12, 13)) == 4
    assert one.tokens == [10, 11, 12, 13]
    assert one.wanted() == Pass(11, None, 0, 7, 10)
    assert one.counts == Counts(passes=1, drafted=3, accepted=3)


def test_a_wrong_draft_is_corrected_and_the_rest_of_it_forgotten() -> None:
    """The verifier's own token is final; the window goes on from there, with a pass of the same shape."""
    one = decoding()
    one.drafted([10, 44, 12])
    assert one.take(rows(10, 11, 90, 91)) == 2
    assert one.tokens == [10, 11]
    assert one.wanted() == Pass(7, None, 0, 5, 6)
    assert one.candidate() == [50, 51, 52, 10, 11, 0, 0]
    assert one.draft_wanted() == 1
    assert one.counts == Counts(passes=1, rollbacks=1, drafted=3, accepted=1)


def test_without_a_draft_a_pass_decides_one_token() -> None:
    """Nothing was drafted, so nothing is rolled back."""
    one = decoding(filler=7)
    assert one.candidate() == [50, 51, 52, 7, 7, 7, 7]
    assert one.take(rows(10, 90, 91, 92)) == 1
    assert one.counts == Counts(passes=1)


def test_filler_that_happens_to_be_right_is_a_token_like_any_other() -> None:
    """The row after it saw the right tokens; it was no draft and counts as none."""
    one = decoding(filler=7)
    assert one.take(rows(7, 7, 10, 90)) == 3
    assert one.tokens == [7, 7, 10]
    assert one.counts == Counts(passes=1)


def test_a_draft_reaches_over_windows() -> None:
    """What a window leaves of it serves the next, unless the window's last token was another."""
    one = decoding()
    one.drafted([10, 11, 12, 13, 14, 15])
    one.take(rows(10, 11, 12, 13))
    assert one.candidate()[7:] == [14, 15, 0, 0]
    assert one.known() == [10, 11, 12, 13, 14, 15]
    assert one.draft_wanted() == 1
    other = decoding()
    other.drafted([10, 11, 12, 13, 14, 15])
    other.take(rows(10, 11, 12, 80))
    assert other.candidate()[7:] == [0, 0, 0, 0]
    assert other.counts == Counts(passes=1, rollbacks=1, drafted=6, accepted=3)


@pytest.mark.parametrize("wrong", [-1, 100, 2**70])
def test_a_draft_ends_before_what_is_no_token(wrong: int) -> None:
    """An id outside the vocabulary would make the verifier refuse the pass."""
    one = decoding()
    one.drafted([10, wrong, 12])
    assert one.candidate() == [50, 51, 52, 10, 0, 0, 0]
    assert one.counts.drafted == 1


def test_a_draft_ends_with_the_answer() -> None:
    """After an end token, or as many tokens as may be, nothing more is wanted or kept."""
    one = decoding()
    one.drafted([10, EOS, 12])
    assert one.draft_wanted() == 0
    one.drafted([13])
    assert one.candidate() == [50, 51, 52, 10, EOS, 0, 0]
    short = decoding(max_tokens=2)
    assert short.draft_wanted() == 1
    short.drafted([10, 11, 12])
    assert short.counts.drafted == 2


def test_an_end_token_ends_it_and_what_came_after_is_nothing() -> None:
    """Later rows are not looked at, and the pass that would follow does not exist."""
    one = decoding()
    one.drafted([10, EOS])
    assert one.take([*rows(10, EOS), Row((), ()), Row((), ())]) == 2
    assert one.end == End("stop")
    assert one.tokens == [10, EOS]
    one.drafted([11])
    assert one.counts.drafted == 2
    with pytest.raises(ValueError, match="complete"):
        one.wanted()


def test_the_models_length_ends_it_with_the_row_after_the_last_token() -> None:
    """At a length of 6 a pass has 5 tokens, and the token at 5 is decided by the row after them."""
    one = decoding(length=6)
    assert one.wanted() == Pass(5, None, 0, 3, 5)
    assert one.draft_wanted() == 2
    one.drafted([10, 11])
    assert one.candidate() == [50, 51, 52, 10, 11]
    assert one.take(rows(10, 11, 12)) == 3
    assert one.end == End("length")


def test_a_tie_that_the_row_may_hide_is_asked_again() -> None:
    """Nothing is decided, and more logprobs are wanted of the same pass; then the lowest id wins."""
    one = decoding()
    one.drafted([10, 11, 12])
    before = (one.wanted(), one.candidate())
    assert one.logprobs_wanted() == 2
    hidden = Row((30, 40), (-0.5, -0.5))
    assert one.take([row(10), hidden, *rows(12, 13)]) == Undecided(4, 2)
    assert (one.wanted(), one.candidate(), one.tokens) == (*before, [])
    assert one.logprobs_wanted() == 8
    assert one.take([row(10), row(40, 30, 11), *rows(12, 13)]) == 4
    assert one.tokens == [10, 11, 12, 13]
    assert one.logprobs_wanted() == 2
    assert one.counts == Counts(passes=2, repeats=1, drafted=3, accepted=3)


def test_a_tie_that_nothing_resolves_is_an_error() -> None:
    """Where the verifier shows no more, no token is guessed."""
    one = decoding(most_logprobs=3)
    hidden = Row((30, 40, 20), (-0.5, -0.5, -0.5))
    assert one.take([hidden] * 4) == Undecided(3, 2)
    assert one.logprobs_wanted() == 3
    with pytest.raises(UnusableRow, match="3 logprobs, which leave open what token 3 is"):
        one.take([hidden] * 4)


def test_masked_ends_need_more_of_a_row() -> None:
    """While end tokens are masked, a row must show so many more, and the best of the others is canonical."""
    one = decoding(min_tokens=2)
    assert one.logprobs_wanted() == 3
    first = Row((EOS, 10, 30), (-0.25, -0.5, -0.75))
    one.drafted([10])
    assert one.take([first, first, Row((EOS, 30), (-0.5, -0.75)), row(9)]) == 2
    assert one.tokens == [10, 10]
    assert one.logprobs_wanted() == 2


def test_rows_keep_what_the_caller_wants_of_them() -> None:
    """None or none at all: the token's own logprob; else the best so many too, and then all is asked that there is."""
    ranked = Row((30, 10, 40, 20), (-0.5, -0.25, -0.75, -0.75))
    for top, kept in ((None, (10,)), (0, (10,)), (2, (10, 30)), (3, (10, 30, 20))):
        one = decoding(top=top)
        assert one.logprobs_wanted() == (20 if top else 2)
        one.take([ranked] * 4)
        assert [told.ids for told in one.rows] == [kept]


def test_too_few_rows_are_an_upstreams_fault() -> None:
    """A pass that was cut short decides nothing."""
    one = decoding()
    with pytest.raises(UnusableRow, match="3 rows for 4 tokens"):
        one.take(rows(10, 11, 12))
    assert one.tokens == []


def test_a_stop_string_cuts_the_answer() -> None:
    """The token that completed it stays, later ones were never said, and no more is drafted."""
    one = decoding()
    one.drafted([10, 11, 12])
    one.take(rows(10, 11, 12, 13))
    one.cut(2, "END")
    assert (one.tokens, len(one.rows), one.end) == ([10, 11], 2, End("stop", "END"))
    for count in (0, 3):
        with pytest.raises(ValueError, match="2 tokens"):
            one.cut(count, "END")


@pytest.mark.parametrize(
    ("prompt", "changed", "words"),
    [
        ([1, 2], {}, "another prompt"),
        (PROMPT, {"most_logprobs": 1}, "too little"),
        (PROMPT, {"most_logprobs": 5, "top": 6}, "too little"),
        (PROMPT, {"filler": 100}, "filler"),
    ],
)
def test_parts_that_do_not_fit_are_refused(prompt: list[int], changed: dict[str, Any], words: str) -> None:
    """A grid of another prompt, and a verifier that shows too little of a row."""
    grid = Grid.of(4, 3, 40, 16, prefix_caching=False)
    with pytest.raises(ValueError, match=words):
        Decoding(prompt, grid, Ending(prompt=3, length=40, max_tokens=5), 100, **{"most_logprobs": 20} | changed)
