"""Nothing that is not exactly what was asked of a pass decides a token."""

from typing import Any

import pytest

from app.errors import UpstreamError
from app.verification.grid import Pass
from app.verification.rows import Row
from app.verifier.scores import Scores, read_scores

WANTED = Pass(total=6, cached=2, prefix=2, first=5, last=5)
"""Two rows come, of positions 5 and 6, and the first one decides."""

GOOD: dict[str, Any] = {
    "ids": [[3, 1], [4, 9]],
    "logprobs": [[-0.5, -1], [-0.25, -9999.0]],
    "cached": 2,
    "sampled": True,
    "seconds": 0.5,
}


def read(said: Any, wanted: Pass = WANTED) -> Scores:
    return read_scores(said, wanted, k=2, vocabulary=10)


def test_the_rows_that_decide_are_returned() -> None:
    """Those after the last position that the pass decides are left out."""
    assert read(GOOD) == Scores((Row((3, 1), (-0.5, -1.0)),), 0.5)
    whole = Pass(total=6, cached=None, prefix=0, first=5, last=6)
    assert len(read(GOOD | {"cached": 0}, whole).rows) == 2


@pytest.mark.parametrize(
    "changes",
    [
        {"cached": 0},
        {"cached": 4},
        {"cached": None},
        {"ids": [[3, 1]]},
        {"ids": [[3, 1]], "logprobs": [[-0.5, -1]]},
        {"ids": [[3, 1]] * 3, "logprobs": [[-0.5, -1]] * 3},
        {"ids": None},
        {"ids": 2},
        {"ids": [3, 1]},
        {"ids": ["ab", "cd"]},
        {"ids": [[3, 10], [4, 9]]},
        {"ids": [[3, -1], [4, 9]]},
        {"ids": [[3, True], [4, 9]]},
        {"ids": [[3, 1.0], [4, 9]]},
        {"ids": [[3, 3], [4, 9]]},
        {"ids": [[3], [4, 9]], "logprobs": [[-0.5], [-0.25, -1]]},
        {"ids": [[3, 1, 2], [4, 9]], "logprobs": [[-0.5, -1, -2], [-0.25, -1]]},
        {"logprobs": [[-0.5, None], [-0.25, -1]]},
        {"logprobs": [[-0.5, "-1"], [-0.25, -1]]},
        {"logprobs": [[-0.5, True], [-0.25, -1]]},
        {"logprobs": [[-0.5, float("nan")], [-0.25, -1]]},
        {"logprobs": [[-0.5, float("inf")], [-0.25, -1]]},
        {"logprobs": [[-0.5], [-0.25, -1]]},
    ],
)
def test_anything_else_is_no_answer(changes: dict[str, Any]) -> None:
    """Another number of rows, alternatives or cached tokens; what is no token, one twice, or no number."""
    with pytest.raises(UpstreamError, match="The verifier"):
        read(GOOD | changes)


@pytest.mark.parametrize("said", [None, [], {}, "x", 1, {"error": {"message": "late"}}])
def test_another_document_is_no_answer(said: Any) -> None:
    """Also a 200 that holds an error."""
    with pytest.raises(UpstreamError, match="cannot be read"):
        read(said)


@pytest.mark.parametrize("seconds", [None, -1, "0.5", True, float("nan"), float("inf"), [], 0])
def test_a_duration_that_makes_no_sense_is_none(seconds: Any) -> None:
    """It decides nothing, and must not spoil a counter."""
    assert read(GOOD | {"seconds": seconds}).seconds == 0
