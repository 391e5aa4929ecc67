"""How a request is counted to have ended."""

import asyncio

import pytest

from app.errors import DeterminismUnavailable, InvalidRequest, NotReady, QueueFull, UpstreamError, UpstreamReset
from app.observation.labels import Outcome
from app.observation.outcomes import outcome_of
from app.reply import ClientGone


@pytest.mark.parametrize(
    ("error", "status", "expected"),
    [
        (None, 200, Outcome.OK),
        (None, 0, Outcome.OK),
        (None, 404, Outcome.INVALID),
        (None, 429, Outcome.UNAVAILABLE),
        (None, 503, Outcome.UPSTREAM_ERROR),
        (ClientGone(), 0, Outcome.CLIENT_CLOSED),
        (ClientGone(), 200, Outcome.CLIENT_CLOSED),
        (asyncio.CancelledError(), 0, Outcome.INCOMPLETE),
        (InvalidRequest("x"), 0, Outcome.INVALID),
        (UpstreamReset("x"), 0, Outcome.UPSTREAM_ERROR),
        (UpstreamReset("x"), 200, Outcome.INCOMPLETE),
        (UpstreamError("x", code="determinism_unavailable"), 200, Outcome.INCOMPLETE),
        (NotReady("x"), 0, Outcome.UNAVAILABLE),
        (QueueFull("x"), 0, Outcome.UNAVAILABLE),
        (DeterminismUnavailable("x"), 200, Outcome.UNAVAILABLE),
        (ValueError(), 200, Outcome.OTHER),
    ],
)
def test_the_outcome(error: BaseException | None, status: int, expected: Outcome) -> None:
    """By what was raised; where nothing was, by the engine's own status. What had begun and broke off is incomplete."""
    assert outcome_of(error, status) is expected
