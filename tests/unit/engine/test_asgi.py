"""The guard's two ends: nothing of a waiting request is lost, and a stream ends with the peak."""

import asyncio
from collections.abc import Awaitable, Callable

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.asgi import Message
from app.engine.asgi import BodyTooLargeError, Inbox, Reporter
from app.scheduling.gate import Gate
from app.scheduling.ticket import Admission, Ticket
from tests.unit.engine.fakes import DISCONNECT, body, quiet

pytestmark = pytest.mark.anyio

COMMENT = b': reprise-guard {"coresident_peak":1}\n\n'
DONE = b"data: [DONE]\n\n"
SSE = [(b"content-type", b"text/event-stream; charset=utf-8")]


def alone() -> Ticket:
    """A granted ticket with nobody beside it."""
    return Gate().enqueue(Admission.EXCLUSIVE, lambda: None)


async def relay(bodies: list[bytes], headers: list[tuple[bytes, bytes]] = SSE) -> list[Message]:
    """What a gateway gets of an answer in these body messages."""
    sent: list[Message] = []

    async def keep(message: Message) -> None:
        sent.append(message)

    reporter = Reporter(keep, alone(), 0.25, "p-0123456789abcdef")
    await reporter.send({"type": "http.response.start", "status": 200, "headers": headers})
    for number, data in enumerate(bodies):
        more = number + 1 < len(bodies)
        await reporter.send({"type": "http.response.body", "body": data, "more_body": more})
    return sent


async def test_the_comment_is_a_message_of_its_own_before_the_end() -> None:
    """Headers with the peak so far, the wait and the posture, the events untouched, the comment, then [DONE]."""
    sent = await relay([b'data: {"a":1}\n\n', DONE, b""])
    assert sent[0]["headers"] == [
        *SSE,
        (b"x-determinism-coresident-peak", b"1"),
        (b"x-determinism-admission-wait", b"0.250000"),
        (b"x-determinism-posture", b"p-0123456789abcdef"),
    ]
    assert [message["body"] for message in sent[1:]] == [b'data: {"a":1}\n\n', COMMENT, DONE, b""]
    assert [message["more_body"] for message in sent[1:]] == [True, True, True, False]


event = st.sampled_from([b'data: {"text":"hi"}\n\n', b'data: {"text":"data: [DONE]"}\n\n', b": ping\n\n"])


@settings(deadline=None)  # of a busy machine's clock nothing is promised here
@given(events=st.lists(st.tuples(event, st.booleans())), apart=st.booleans())
async def test_however_events_are_packed_the_comment_comes_once_before_the_end(
    *, events: list[tuple[bytes, bool]], apart: bool
) -> None:
    """Several events in one message, and text that looks like the end, change nothing."""
    bodies = [b""]
    for data, cut in [*events, (DONE, apart)]:
        if cut:
            bodies.append(b"")
        bodies[-1] += data
    sent = await relay(bodies)
    assert b"".join(message["body"] for message in sent[1:]) == b"".join(data for data, _ in events) + COMMENT + DONE


@pytest.mark.parametrize("bodies", [[b'data: {"text":"data: [DONE]"}\n\n'], [b"data: {}\n\n"], [b""]])
async def test_a_stream_that_does_not_end_gets_no_comment(bodies: list[bytes]) -> None:
    """An aborted stream must not look complete."""
    assert [message["body"] for message in (await relay(bodies))[1:]] == bodies


async def test_a_unary_answer_is_left_as_it_is() -> None:
    """The end of a stream is only looked for in a stream."""
    sent = await relay([DONE], [(b"content-type", b"application/json")])
    assert [message["body"] for message in sent[1:]] == [DONE]


def taking(messages: list[Message]) -> Callable[[], Awaitable[Message]]:
    """ASGI's receive over these messages."""

    async def receive() -> Message:
        return messages.pop(0)

    return receive


async def test_a_body_that_was_looked_at_is_still_there() -> None:
    """The whole body, and afterwards every message of it in order, then what comes live."""
    parts = [body(b"one ", more=True), body(b"", more=True), body(b"two"), DISCONNECT]
    inbox = Inbox(taking(list(parts)))
    assert await inbox.body(5) == [b"one ", b"", b"two"]
    assert inbox.size == 7
    assert [await inbox.receive() for _ in parts] == parts


async def test_a_body_that_does_not_come_whole_is_none() -> None:
    """A client that leaves in the middle of it has sent no body, and what it left can still be received."""
    parts = [body(b'{"background":', more=True), DISCONNECT]
    inbox = Inbox(taking(list(parts)))
    assert await inbox.body(5) is None
    assert [await inbox.receive() for _ in parts] == parts


async def test_a_body_is_not_looked_at_beyond_the_limit() -> None:
    """Nothing more is read of it then."""
    left = [body(bytes(10), more=True) for _ in range(5)]
    with pytest.raises(BodyTooLargeError):
        await Inbox(taking(left), limit=25).body(5)
    assert len(left) == 2


async def test_a_large_body_is_read_on_after_the_grant() -> None:
    """Beyond the limit the inbox stops listening, and loses nothing."""
    parts = [body(bytes(10), more=True) for _ in range(5)] + [body(b"end")]
    left = list(parts)
    inbox, granted = Inbox(taking(left), limit=25), asyncio.Event()
    async with anyio.create_task_group() as group:
        group.start_soon(inbox.until, granted)
        await quiet()
        assert len(left) == 3
        granted.set()
    assert [await inbox.receive() for _ in parts] == parts
    inbox.close()
