"""ASGI as the guard needs it: a request that is listened to while it waits, and what the guard adds or answers."""

import asyncio
import json
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from app.asgi import Message, Receive, Scope, Send
from app.errors import DeterminismUnavailable, QueueFull, RepriseError
from app.scheduling.ticket import Ticket

PEAK_HEADER: Final = b"x-determinism-coresident-peak"
WAIT_HEADER: Final = b"x-determinism-admission-wait"
POSTURE_HEADER: Final = b"x-determinism-posture"

BUFFER_LIMIT: Final = 64 * 1024 * 1024
"""Bytes of the largest body that a guarded engine takes: all of it is kept while the request waits."""

_DISCONNECT: Final = "http.disconnect"
_DONE: Final = b"data: [DONE]"
_UNREAD: Final = frozenset({408, 413})
"""Refusals before the body was read to its end: the connection cannot serve another request."""


class BodyTooLargeError(ValueError):
    """A body is larger than what an inbox keeps."""


class Inbox:
    """A request's messages: listened to while it waits, then handed to the application in order, none lost.

    Until it is given up: from then on the application hears that the client has left.
    """

    def __init__(self, receive: Receive, limit: int = BUFFER_LIMIT) -> None:
        self.limit = limit
        self._receive = receive
        self._kept: deque[Message] = deque()
        self._size = 0
        self._listening: asyncio.Task[Message] | None = None
        self._given_up = False

    async def until(self, event: asyncio.Event) -> bool:
        """Wait for ``event``; False if the client left first. Cancelled, it keeps what has arrived."""
        waiter = asyncio.create_task(event.wait())  # noqa: TID251 - this method cancels it
        try:
            while not event.is_set():
                if await self._message({waiter}):
                    return False
        finally:
            waiter.cancel()
        return True

    @property
    def size(self) -> int:
        """Bytes of body that are kept."""
        return self._size

    async def body(self, patience: float) -> list[bytes] | None:
        """The parts of a whole body, all of which can still be received; None if the client left before its end.

        To be called before anything else has been received. Raises BodyTooLargeError beyond the limit, and TimeoutError
        after ``patience`` seconds.
        """
        parts: list[bytes] = []
        async with asyncio.timeout(patience):
            while not await self._message(set()):
                if self._size > self.limit:
                    raise BodyTooLargeError
                parts.append(self._kept[-1].get("body", b""))
                if not self._kept[-1].get("more_body", False):
                    return parts
        return None

    async def pause(self, seconds: float) -> bool:
        """Wait ``seconds``, or less if a message arrives; False if the client left."""
        return not await self._message(set(), seconds)

    async def _message(self, others: set[asyncio.Task[Any]], timeout: float | None = None) -> bool:  # noqa: ASYNC109 - the wait has two ends, a message or the time; no scope around it could keep the message
        """Wait for a message, one of ``others`` or the timeout; keep the message; True if it says the client left."""
        if self._size <= self.limit and self._listening is None:
            self._listening = asyncio.create_task(_call(self._receive))  # noqa: TID251 - `close` cancels it
        waiting = others if self._listening is None else {*others, self._listening}
        if not waiting:
            await asyncio.sleep(timeout or 0)
            return False
        await asyncio.wait(waiting, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        if self._listening is None or not self._listening.done():
            return False
        message, self._listening = self._listening.result(), None
        self._kept.append(message)
        self._size += len(message.get("body", b""))
        return bool(message["type"] == _DISCONNECT)

    async def receive(self) -> Message:
        """ASGI's receive for the application: what was kept, then what the outstanding call brings, then live.

        Cancelled, it loses nothing: the outstanding call goes on and serves the next one.
        """
        while not self._kept:
            if self._given_up:
                return {"type": _DISCONNECT}
            if self._listening is None:
                self._listening = asyncio.create_task(_call(self._receive))  # noqa: TID251 - `close` cancels it
            task = self._listening
            await asyncio.wait({task})
            if self._listening is task:
                self._listening = None
                if not task.cancelled():
                    self._kept.append(task.result())
        return self._kept.popleft()

    def give_up(self) -> None:
        """Tell the application that the client has left, whatever the server thinks."""
        self._given_up = True
        self.close()

    def close(self) -> None:
        """Give up an outstanding call."""
        if self._listening is not None:
            self._listening.cancel()


class Reporter:
    """ASGI's send for a gateway: adds the headers, and the SSE comment before the end of a stream.

    ``wait`` is in seconds; ``posture`` is the digest of the engine that answers, so that a gateway notices one that was
    started anew with another posture since its last probe.
    """

    def __init__(self, send: Send, ticket: Ticket, wait: float, posture: str) -> None:
        self._send = send
        self._ticket = ticket
        self._wait = wait
        self._posture = posture
        self._streams = False

    async def send(self, message: Message) -> None:
        """Pass a message on."""
        if message["type"] == "http.response.start":
            headers = list(message.get("headers", ()))
            self._streams = any(
                name.lower() == b"content-type" and value.startswith(b"text/event-stream") for name, value in headers
            )
            # On a unary answer this peak is final: vLLM sends its headers when the engine is done.
            headers.append((PEAK_HEADER, str(self._ticket.peak).encode()))
            headers.append((WAIT_HEADER, f"{self._wait:.6f}".encode()))
            headers.append((POSTURE_HEADER, self._posture.encode()))
            message = {**message, "headers": headers}
        elif self._streams and _DONE in message.get("body", b""):
            message = await self._comment(message)
        await self._send(message)

    async def _comment(self, message: Message) -> Message:
        """Send the comment, and before it what precedes the last event; returns the rest."""
        body: bytes = message["body"]
        # At the start of a line only: text that a model wrote lies inside JSON, where a line break is escaped.
        at = 0 if body.startswith(_DONE) else body.find(b"\n" + _DONE) + 1
        if at == 0 and not body.startswith(_DONE):
            return message
        self._streams = False
        comment = b': reprise-guard {"coresident_peak":%d}\n\n' % self._ticket.peak
        for part in filter(None, (body[:at], comment)):
            await self._send({"type": "http.response.body", "body": part, "more_body": True})
        return {**message, "body": body[at:]}


@dataclass(frozen=True, slots=True)
class Refusal:
    """An answer in OpenAI's error shape.

    ``param`` names the field that is to blame; ``retry_after``, whole seconds, says when another try is worth it.
    """

    status: int
    code: str
    message: str
    param: str | None = None
    retry_after: bytes | None = None

    @classmethod
    def of(cls, error: RepriseError) -> "Refusal":
        """The same refusal as the gateway would give."""
        return cls(error.status, error.error_code, error.message, error.param, error.retry_after_header)

    async def send(self, send: Send) -> None:
        """Send it as the whole response."""
        kind = "server_error" if self.status >= 500 else "invalid_request_error"  # noqa: PLR2004 - the HTTP classes
        kind = QueueFull.type if self.status == QueueFull.status else kind
        error = {"message": self.message, "type": kind, "param": self.param, "code": self.code}
        more = [] if self.retry_after is None else [(b"retry-after", self.retry_after)]
        if self.code == DeterminismUnavailable.code and self.retry_after is None:
            more.append((b"x-should-retry", b"false"))  # as the gateway's own: it would fail again
        if self.status in _UNREAD:
            more.append((b"connection", b"close"))
        await send_json(send, self.status, {"error": error}, more)


async def send_json(send: Send, status: int, content: object, more: Iterable[tuple[bytes, bytes]] = ()) -> None:
    """Send ``content`` as the whole response, with ``more`` headers."""
    body = json.dumps(content).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()), *more]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})


def header(scope: Scope, name: bytes) -> bytes | None:
    """The first value of a request's header, which ``name`` names in lower case; None if it has none."""
    return next((bytes(value) for key, value in scope["headers"] if key.lower() == name), None)


async def _call(receive: Receive) -> Message:
    # An ASGI callable may return any awaitable; a task needs a coroutine.
    return await receive()
