"""Whether the client is still there: a block that ends when its client leaves or never sends its body."""

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

from app.asgi import Receive, Scope
from app.errors import RequestTimeout
from app.reply import ClientGone, Reply

LEAVING: Final = "reprise.leaving"
"""The ASGI extension of our own protocol class: "watchers" are called when the connection is lost, "abort" ends it."""


class Presence:
    """Cancels the block when the client is lost, and raises what that means in place of the cancellation.

    Raises RequestTimeout when `body_arrived` is not called within ``body_timeout`` seconds, and ClientGone when the
    client leaves after it. The client may leave while the request queues, while the engine computes,
    or between two chunks, so this is one watch around everything and not a check at each await.
    """

    __slots__ = (
        "_body_timeout",
        "_inside",
        "_loop",
        "_loss",
        "_receive",
        "_reply",
        "_scope",
        "_timer",
        "_unwatch",
        "_worker",
    )

    def __init__(
        self, scope: Scope, receive: Receive, reply: Reply, *, body_timeout: float, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._loop = loop
        self._scope = scope
        self._receive = receive
        self._reply = reply
        self._body_timeout = body_timeout
        self._loss: Exception | None = None
        self._unwatch: Callable[[], object] | None = None

    async def __aenter__(self) -> Self:
        self._inside = True
        self._worker = asyncio.current_task(self._loop)
        self._timer = self._loop.call_later(self._body_timeout, self._late)
        return self

    def body_arrived(self) -> None:
        """From now on the client is only expected to wait and to read."""
        self._timer.cancel()
        extension = self._scope.get("extensions", {}).get(LEAVING)
        if extension is not None:
            watchers: set[Callable[[], None]] = extension["watchers"]
            watchers.add(self._left)
            self._unwatch = lambda: watchers.discard(self._left)
        else:
            # Another server's protocol class: its `receive` tells of the end.
            gone = asyncio.ensure_future(_disconnected(self._receive))  # noqa: TID251 - cancelled when the block ends
            gone.add_done_callback(lambda task: None if task.cancelled() else self._left())
            self._unwatch = gone.cancel

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._inside = False
        self._timer.cancel()
        if self._unwatch is not None:
            self._unwatch()
        if self._loss is None or kind is not asyncio.CancelledError or self._worker is None:
            return
        if self._worker.uncancel() == 0:
            raise self._loss from None

    def _left(self) -> None:
        self._end(ClientGone())

    def _late(self) -> None:
        self._end(RequestTimeout(f"The body did not arrive within {self._body_timeout:g} s."))

    def _end(self, loss: Exception) -> None:
        if self._inside and self._worker is not None and not self._reply.finished:
            self._loss = loss
            self._worker.cancel()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
