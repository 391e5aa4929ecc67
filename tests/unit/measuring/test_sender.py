"""What becomes of a request that the gateway sends itself, whatever its end."""

import logging
from collections.abc import Callable
from contextlib import nullcontext

import pytest

from app.determinism.plan import NO_WISH
from app.errors import NotReady
from app.gateway import Call
from app.measuring.sender import Sender
from app.observation.store import Origin
from app.reply import Reply

pytestmark = pytest.mark.anyio

CALL = Call("/v1/completions", b"{}", (), NO_WISH, "", origin=Origin.CANARY)


class Ends:
    """A gateway whose answers end as told."""

    def __init__(self, error: Callable[[], Exception] | None) -> None:
        self.error = error
        self.handled: list[Call] = []
        self.replies: list[Reply] = []
        self.origins: list[Origin] = []

    def exchange(self, _request_id: str, origin: Origin) -> nullcontext[None]:
        """Remembers the origin."""
        self.origins.append(origin)
        return nullcontext()

    async def handle(self, call: Call, reply: Reply, _exchange: object) -> None:
        """Answers in a stream, or fails half-way."""
        self.handled.append(call)
        self.replies.append(reply)
        await reply.start(200, [])
        await reply.write(b"piece")
        if self.error is not None:
            raise self.error()
        await reply.finish()


@pytest.mark.parametrize(
    ("error", "logged"),
    [(None, ""), (lambda: NotReady("no replica"), ""), (lambda: ValueError("a fault"), "could not be sent")],
)
async def test_it_ends_and_leaves_nothing(
    error: Callable[[], Exception] | None, logged: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Under an id of its own and its origin; no timer stays; only a fault of ours is in the log, and ends nothing."""
    gateway = Ends(error)
    numbers = iter("ab")
    sender = Sender(gateway, request_id=lambda: next(numbers))  # type: ignore[arg-type]  # a gateway, as far as it goes
    with caplog.at_level(logging.INFO):
        await sender.send(CALL)
        await sender.send(CALL)
    assert [call.request_id for call in gateway.handled] == ["a", "b"]
    assert gateway.origins == [Origin.CANARY, Origin.CANARY]
    assert logged in caplog.text
    assert bool(caplog.text) == bool(logged)
    timers = [reply._send._timer for reply in gateway.replies]
    assert len(timers) == 2
    assert all(timer is not None and timer.cancelled() for timer in timers)


async def test_nothing_is_sent_while_the_gateway_goes_away() -> None:
    """What is asked for after that is left out, and what went before was sent."""
    gateway = Ends(None)
    going: list[bool] = []
    sender = Sender(gateway, retired=lambda: bool(going))  # type: ignore[arg-type]  # a gateway, as far as it goes
    await sender.send(CALL)
    going.append(True)
    await sender.send(CALL)
    assert len(gateway.handled) == 1
