"""ASGI's own words, and a send that gives up a client which stops reading: for the gateway and inside the engine."""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeAlias

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]


class PatientSend:
    """ASGI's send, watched: a client that takes nothing for ``patience`` seconds is given up.

    The task that made it is cancelled then, and ``stalled`` is true, so that no client holds a lease by not reading.
    To be made inside a task. One timer serves all messages: it moves itself on instead of being set for each.
    """

    __slots__ = ("_loop", "_patience", "_send", "_since", "_timer", "_worker", "stalled")

    def __init__(self, send: Send, patience: float) -> None:
        self._send = send
        self._patience = patience
        self._loop = asyncio.get_running_loop()
        self._worker = asyncio.current_task(self._loop)
        self._since: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.stalled = False

    async def __call__(self, message: Message) -> None:
        """Pass a message on. Any may have to wait for the client to take what was sent before it."""
        self._since = self._loop.time()
        if self._timer is None:
            self._timer = self._loop.call_at(self._since + self._patience, self._look)
        try:
            await self._send(message)
        finally:
            self._since = None

    def swallow(self) -> None:
        """Take back the cancellation, which the task has noticed and will not pass on."""
        if self._worker is not None:
            self._worker.uncancel()

    def close(self) -> None:
        """Stop watching."""
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        now = self._loop.time()
        due = (now if self._since is None else self._since) + self._patience
        if due > now:
            self._timer = self._loop.call_at(due, self._look)
        elif self._worker is not None:
            self.stalled = True
            self._worker.cancel()
