"""The canonical token of a row, and what of a row a caller sees."""

import math

import pytest

from app.errors import UnusableRow, UpstreamError
from app.verification.rows import Row


@pytest.mark.parametrize(
    ("ids", "logprobs", "masked", "expected"),
    [
        ((7, 3), (-0.5, -1.5), (), 7),
        ((3, 7), (-1.5, -0.5), (), 7),
        ((9, 4, 7), (-0.5, -0.5, -2.0), (), 4),
        ((9, 4), (-0.5, -0.5), (), None),
        ((9,), (-0.5,), (), None),
        ((9, 4, 7), (-0.5, -0.6, -2.0), {9}, 4),
        ((9, 4, 7), (-0.5, -2.0, -2.0), {9}, None),
        ((9, 4), (-0.5, -2.0), {9}, None),
        ((9, 4), (-0.5, -2.0), {9, 4}, None),
        ((9, 4, 7), (-0.5, -0.5, -2.0), {4}, 9),
        ((9, 4), (-0.5, -math.inf), (), 9),
        ((9, 4), (-0.5, -math.inf), {9}, None),
        ((9, 4), (0.0, -9999.0), (), 9),
    ],
)
def test_the_canonical_token(
    ids: tuple[int, ...], logprobs: tuple[float, ...], masked: set[int], expected: int | None
) -> None:
    """The highest that is not masked, the lowest id among equals; unknown while the row may hide an equal."""
    assert expected == Row(ids, logprobs).canonical(masked)


@pytest.mark.parametrize(
    ("ids", "logprobs", "words"),
    [
        ((), (), "empty row"),
        ((1, 2), (-0.5,), "2 tokens with 1 logprobs"),
        ((1, 1), (-0.5, -0.7), "twice"),
        ((1, 2), (-0.5, math.nan), "not a number"),
    ],
)
def test_a_row_that_says_nothing_is_an_upstreams_fault(
    ids: tuple[int, ...], logprobs: tuple[float, ...], words: str
) -> None:
    """Nothing is guessed from an empty, torn or undefined row; the caller gets a 502."""
    with pytest.raises(UnusableRow, match=words) as caught:
        Row(ids, logprobs).canonical()
    assert isinstance(caught.value, UpstreamError)
    assert caught.value.status == 502


@pytest.mark.parametrize(
    ("count", "token", "ids"),
    [(0, 5, (5,)), (1, 5, (5,)), (3, 5, (5, 8, 2)), (2, 9, (5, 8, 9)), (9, 5, (5, 8, 2, 4, 9))],
)
def test_a_row_is_cut_in_an_order_that_nothing_else_decides(count: int, token: int, ids: tuple[int, ...]) -> None:
    """By logprob, then by id; the token itself stays wherever it ranks, and logprobs to the last bit."""
    row = Row((8, 5, 9, 4, 2), (-0.5, -0.5, -3.0, -1 / 3 - 1, -0.75))
    trimmed = row.trimmed(count, token)
    assert ids == trimmed.ids
    assert trimmed.logprobs == tuple(dict(zip(row.ids, row.logprobs, strict=True))[token] for token in ids)
