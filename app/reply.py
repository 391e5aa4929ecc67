"""An answer on its way to the client, over ASGI, and the OpenAI error shape."""

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final

import orjson

from app.asgi import Message, PatientSend, Send
from app.errors import RepriseError

Header = tuple[bytes, bytes]

_NO_RETRY: Final[Header] = (b"x-should-retry", b"false")
_JSON: Final[Header] = (b"content-type", b"application/json")


class ClientGone(Exception):
    """The client closed the connection, or stopped reading, before its answer was complete. Nobody is left to tell."""


class Reply:
    """One answer on its way to the client. Knows whether it has begun, which decides how an error can still be told.

    ``always`` are headers that every answer carries. For ``patience`` seconds a client may take nothing of its answer;
    then it is given up: ``on_stall`` is called, and what wanted to send raises ClientGone.
    """

    __slots__ = ("_always", "_send", "finished", "started")

    def __init__(
        self,
        send: Send,
        always: Iterable[Header] = (),
        *,
        patience: float = 60.0,
        on_stall: Callable[[], object] | None = None,
    ) -> None:
        self._send = PatientSend(send, patience, on_stall)
        self._always = tuple(always)
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

    def close(self) -> None:
        """Stop watching the client."""
        self._send.close()

    async def _deliver(self, message: Message) -> None:
        await self._send(message)
        if self._send.stalled:
            raise ClientGone

    async def fail(self, error: RepriseError, headers: Iterable[Header] = ()) -> None:
        """Tell the client about an error, if it is still there.

        Before the first byte: status and OpenAI error object. After it: one SSE error event, and the body is left
        unfinished, so that the server closes the connection without its final chunk and no client can take the answer
        for a complete one.
        """
        with suppress(ClientGone):
            await self._tell(error, headers)

    async def _tell(self, error: RepriseError, headers: Iterable[Header]) -> None:
        if self.started:
            await self.write(b"data: " + orjson.dumps(error.body()) + b"\n\n")
            return
        body = orjson.dumps(error.body())
        ours = [_JSON, (b"content-length", b"%d" % len(body)), *(() if error.worth_retrying else (_NO_RETRY,))]
        if (after := error.retry_after_header) is not None:
            ours.append((b"retry-after", after))
        await self.start(error.status, [*ours, *headers])
        await self.finish(body)
