"""How a request ended, from what was raised at its end and the status that the engine had answered by then."""

import asyncio
from typing import Final

from app.errors import InvalidRequest, QueueFull, RepriseError, UpstreamError
from app.observation.labels import Outcome
from app.reply import ClientGone

_OF_STATUS: Final = {4: Outcome.INVALID, 5: Outcome.UPSTREAM_ERROR}
_OF_ERROR: Final = (
    (ClientGone, Outcome.CLIENT_CLOSED),
    (asyncio.CancelledError, Outcome.INCOMPLETE),  # the server's, at shutdown: a client that leaves is ClientGone
    (InvalidRequest, Outcome.INVALID),
    (UpstreamError, Outcome.UPSTREAM_ERROR),
    (RepriseError, Outcome.UNAVAILABLE),
)


def outcome_of(error: BaseException | None, status: int) -> Outcome:
    """The outcome; ``status`` is 0 where no answer had begun."""
    if error is None:
        if status == QueueFull.status:
            return Outcome.UNAVAILABLE  # the guard's word: the client did nothing wrong
        return _OF_STATUS.get(status // 100, Outcome.OK)
    if isinstance(error, UpstreamError) and status:
        return Outcome.INCOMPLETE
    return next((outcome for kind, outcome in _OF_ERROR if isinstance(error, kind)), Outcome.OTHER)
