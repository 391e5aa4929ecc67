"""An answer on its way to the client, over ASGI, and the OpenAI error shape."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any, Final

import orjson

from app.errors import RepriseError

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Header = tuple[bytes, bytes]

_NO_RETRY: Final[Header] = (b"x-should-retry", b"false")
_JSON: Final[Header] = (b"content-type", b"application/json")


class ClientGone(Exception):
    """The client closed the connection, or stopped reading, before its answer was complete. Nobody is left to tell."""


class Reply:
    """One answer on its way to the client. Knows whether it has begun, which decides how an error can still be told.

    ``always`` are headers that every answer carries. A client that takes nothing for ``patience`` seconds is given up:
    the task that writes to it is cancelled and ``stalled`` is true, so that no client holds a lease by not reading.
    """

    __slots__ = (
        "_always",
        "_loop",
        "_patience",
        "_send",
        "_since",
        "_timer",
        "_worker",
        "finished",
        "stalled",
        "started",
    )

    def __init__(self, send: Send, always: Iterable[Header] = (), *, patience: float = 60.0) -> None:
        self._send = send
        self._always = tuple(always)
        self._patience = patience
        self._since: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.stalled = False
        self.started = False
        self.finished = False

    async def start(self, status: int, headers: Iterable[Header]) -> None:
        """Send status and headers."""
        self.started = True
        await self._deliver({"type": "http.response.start", "status": status, "headers": [*headers, *self._always]})

    async def write(self, body: bytes) -> None:
        """Send a piece of the body, with more to come."""
        await self._deliver({"type": "http.response.body", "body": body, "more_body": True})

    async def finish(self, body: bytes = b"") -> None:
        """Send the last piece of the body."""
        await self._deliver({"type": "http.response.body", "body": body, "more_body": False})
        self.finished = True

    async def _deliver(self, message: Message) -> None:
        """Any message may have to wait for the client to take what was sent before it."""
        if self._timer is None:
            self._loop = asyncio.get_running_loop()
            self._worker = asyncio.current_task(self._loop)
            self._timer = self._loop.call_later(self._patience, self._look)
        self._since = self._loop.time()
        try:
            await self._send(message)
        finally:
            self._since = None

    def close(self) -> None:
        """Stop watching the client."""
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        """The timer's turn. Armed once for a stream, it moves itself on instead of being set for every piece."""
        now = self._loop.time()
        due = (now if self._since is None else self._since) + self._patience
        if due > now:
            self._timer = self._loop.call_at(due, self._look)
        elif self._worker is not None:
            self.stalled = True
            self._worker.cancel()

    async def fail(self, error: RepriseError, headers: Iterable[Header] = ()) -> None:
        """Tell the client about an error.

        Before the first byte: status and OpenAI error object. After it: one SSE error event, and the body is left
        unfinished, so that the server closes the connection without its final chunk and no client can take the answer
        for a complete one.
        """
        if self.started:
            await self.write(b"data: " + orjson.dumps(error.body()) + b"\n\n")
            return
        body = orjson.dumps(error.body())
        ours = [_JSON, (b"content-length", b"%d" % len(body)), *(() if error.retryable else (_NO_RETRY,))]
        if (after := error.retry_after_header) is not None:
            ours.append((b"retry-after", after))
        await self.start(error.status, [*ours, *headers])
        await self.finish(body)
