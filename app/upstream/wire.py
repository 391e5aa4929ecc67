"""One HTTP/1.1 connection to a replica: httptools parses, this protocol keeps the pieces until they are asked for.

Why not a general client: on the hot path its layers cost more than the rest of the gateway, and a proxy needs exactly
what they hide: the body's pieces as they arrive, truncation told from completion, and a close that is immediate. A
body counts as complete only when its own framing (Content-Length or the last chunk) says so; a connection that just
ends never does.
"""

import asyncio
from typing import Final, cast

import httptools

from app.errors import RepriseError, UpstreamReset, UpstreamTimeout

HIGH_WATER: Final = 256 * 1024
"""Bytes that may wait for a slow reader before the connection stops reading from the replica."""

RawHeader = tuple[bytes, bytes]


class Connection(asyncio.Protocol):
    """Carries one exchange at a time. ``reusable`` says whether it can carry another.

    ``name`` is the replica's, for errors. The owner is told of the connection's end by ``closed``.
    """

    def __init__(self, name: str, loop: asyncio.AbstractEventLoop) -> None:
        self.name = name
        self.closed = False
        self.idle_since = 0.0
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        # The state of the exchange that is under way.
        self.status = 0
        self.headers: list[RawHeader] = []
        self._begun = False
        self._complete = True
        self._keep_alive = False
        self._poisoned = False
        self._pieces: list[bytes] = []
        self._waiting = 0
        self._paused = False
        self._error: RepriseError | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._silent_since = 0.0
        self._patience = 0.0

    @property
    def reusable(self) -> bool:
        """Whether the last exchange ended cleanly and the replica keeps the connection open."""
        return self._complete and self._keep_alive and not (self.closed or self._poisoned or self._pieces)

    def send(self, request: bytes) -> None:
        """Write one request and get ready for its answer."""
        self.status = 0
        self.headers = []
        self._begun = self._complete = self._keep_alive = False
        if self._transport is not None:
            self._transport.write(request)

    async def begin(self, timeout: float) -> None:  # noqa: ASYNC109 - one timer for the whole exchange, see _watch
        """Wait for status and headers. Raises UpstreamReset or UpstreamTimeout (``timeout`` in seconds)."""
        while not self._begun:
            await self._wait(timeout)

    async def piece(self, timeout: float) -> bytes:  # noqa: ASYNC109 - as above
        """What has arrived of the body, at once if anything has; empty at its end. Raises as `begin` does."""
        while not self._pieces:
            if self._complete:
                return b""
            await self._wait(timeout)
        pieces = self._pieces
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        self._pieces = []
        self._waiting = 0
        if self._paused and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()
        return data

    def close(self) -> None:
        """Close now; the replica sees the end of the connection and stops working for it. Idempotent."""
        self.closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._transport is not None:
            self._transport.abort()

    async def _wait(self, patience: float) -> None:
        """Sleep until something arrives. Each wait starts the clock anew."""
        if self._error is not None:
            raise self._error
        self._waiter = self._loop.create_future()
        now = self._loop.time()
        if self._timer is not None and patience < self._patience:
            self._timer.cancel()
            self._timer = None
        self._silent_since, self._patience = now, patience
        if self._timer is None:
            self._timer = self._loop.call_at(now + patience, self._look)
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _look(self) -> None:
        """The timer's turn. It is armed once and moves itself on, instead of being set and cancelled for each piece."""
        self._timer = None
        if self._waiter is None:
            return
        left = self._silent_since + self._patience - self._loop.time()
        if left > 0:
            self._timer = self._loop.call_later(left, self._look)
        else:
            self._fail(UpstreamTimeout(f"Replica {self.name} was silent for {self._patience:g} s."))

    def _fail(self, error: RepriseError) -> None:
        if self._error is None:
            self._error = error
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(error)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # What the event loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transports do not inherit from asyncio's

    def data_received(self, data: bytes) -> None:
        """Parse what came, and let the reader have it. Bytes that nobody asked for end the connection."""
        if self._complete:
            self.close()
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            if not self._complete:
                self._fail(UpstreamReset(f"Replica {self.name} broke the HTTP protocol."))
            self.close()
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature; why is not told
        """The connection is gone; an exchange under way is not complete."""
        self.closed = True
        if not self._complete:
            when = "before its answer was complete" if self._begun else "before it answered"
            self._fail(UpstreamReset(f"Replica {self.name} closed the connection {when}."))
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # What the parser calls.

    def on_message_begin(self) -> None:
        """An answer begins; one that follows a complete one was not asked for, and must not reach the next exchange."""
        self._poisoned = self._complete

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header; a trailer after the body is left out."""
        if not self._begun and not self._poisoned:
            self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """The head is complete; informational answers are passed over."""
        if self._poisoned:
            return
        status = self._parser.get_status_code()
        if status < 200:  # noqa: PLR2004 - 1xx is informational (RFC 9110, 15.2)
            self.headers = []
            return
        self.status = status
        self._begun = True
        self._keep_alive = self._parser.should_keep_alive()

    def on_body(self, piece: bytes) -> None:
        """A piece of the body."""
        if self._poisoned:
            return
        self._pieces.append(piece)
        self._waiting += len(piece)
        if self._waiting > HIGH_WATER and not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()

    def on_message_complete(self) -> None:
        """The body's own framing says that it is complete."""
        self._complete = self._begun
