"""uvicorn's HTTP protocol, with head and body of a unary answer written in one system call instead of two.

A write is the dearest single step of a small answer. The head is held back for the rest of the event loop's turn: a
unary answer's body follows within it and goes out with the head; the head of a stream goes out alone at its end.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final, cast

import orjson
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from app.api.presence import LEAVING
from app.errors import InvalidRequest

_HEAD: Final = b"HTTP/1.1 "
_LINGER_SECONDS: Final = 10.0


class _Corked:
    """A transport that joins a head and the write that follows it."""

    __slots__ = ("_held", "_loop", "_transport")

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._held: bytes | None = None

    def write(self, data: bytes) -> None:
        """Hold a head; write anything else, after what was held."""
        if self._held is not None:
            data, self._held = self._held + data, None
        elif data.startswith(_HEAD):
            self._held = data
            self._loop.call_soon(self._flush)
            return
        self._transport.write(data)

    def close(self) -> None:
        """Write what is held, then close; a client that does not take the rest in time is cut off."""
        self._flush()
        self._transport.close()
        if self._transport.get_write_buffer_size():
            self._loop.call_later(_LINGER_SECONDS, self._transport.abort)

    def _flush(self) -> None:
        if self._held is not None:
            data, self._held = self._held, None
            self._transport.write(data)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever else uvicorn asks of its transport
        return getattr(self._transport, name)


class CorkedProtocol(HttpToolsProtocol):
    """The protocol class for `uvicorn.Config(http=...)`."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's own
        """Put the cork between uvicorn and the transport."""
        self._watchers: set[Callable[[], None]] = set()
        leaving: dict[object, object] = {"watchers": self._watchers, "abort": transport.abort}
        self._extensions = {LEAVING: leaving}
        super().connection_made(cast(asyncio.Transport, _Corked(transport, self.loop)))

    def on_message_begin(self) -> None:
        """Let the application ask to be told when the client is lost; cheaper than a task that waits in `receive`."""
        super().on_message_begin()
        self.scope["extensions"] = self._extensions

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell who asked."""
        super().connection_lost(exc)
        for told in tuple(self._watchers):
            told()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP request, in the one shape that all errors have."""
        body = orjson.dumps(InvalidRequest(msg, code="invalid_http").body())
        head = b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\nconnection: close\r\n"
        self.transport.write(head + b"content-length: %d\r\n\r\n%b" % (len(body), body))
        self.transport.close()
