"""An answer on its way to the client, over ASGI, and the OpenAI error shape."""

from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any, Final

import orjson

from app.errors import RepriseError

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Header = tuple[bytes, bytes]

_JSON: Final[Header] = (b"content-type", b"application/json")


class Reply:
    """One answer on its way to the client. Knows whether it has begun, which decides how an error can still be told.

    ``always`` are headers that every answer carries.
    """

    __slots__ = ("_always", "_send", "finished", "started")

    def __init__(self, send: Send, always: Iterable[Header] = ()) -> None:
        self._send = send
        self._always = tuple(always)
        self.started = False
        self.finished = False

    async def start(self, status: int, headers: Iterable[Header]) -> None:
        """Send status and headers."""
        self.started = True
        await self._send({"type": "http.response.start", "status": status, "headers": [*headers, *self._always]})

    async def write(self, body: bytes) -> None:
        """Send a piece of the body, with more to come."""
        await self._send({"type": "http.response.body", "body": body, "more_body": True})

    async def finish(self, body: bytes = b"") -> None:
        """Send the last piece of the body."""
        self.finished = True
        await self._send({"type": "http.response.body", "body": body, "more_body": False})

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
        await self.start(error.status, [_JSON, (b"content-length", b"%d" % len(body)), *headers])
        await self.finish(body)
