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

    ``stalled`` is true then, ``on_stall`` was called, and the send that waited returns, as does every later one at
    once: like a server's own after its client has left. One timer serves all messages: it moves itself on instead of
    being set for each.
    """

    __slots__ = ("_loop", "_on_stall", "_patience", "_send", "_sender", "_since", "_stalled", "_timer")

    def __init__(self, send: Send, patience: float, on_stall: Callable[[], object] | None = None) -> None:
        self._send = send
        self._patience = patience
        self._on_stall = on_stall
        self._loop = asyncio.get_running_loop()
        self._since: float | None = None
        self._sender: asyncio.Task[Any] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._stalled: asyncio.Task[Any] | None = None

    @property
    def stalled(self) -> bool:
        """Whether the client was given up."""
        return self._stalled is not None

    async def __call__(self, message: Message) -> None:
        """Pass a message on. Any may have to wait for the client to take what was sent before it."""
        if self.stalled:
            return
        self._sender = task = asyncio.current_task(self._loop)
        cancelled = task.cancelling() if task is not None else 0
        self._since = self._loop.time()
        if self._timer is None:
            self._timer = self._loop.call_at(self._since + self._patience, self._look)
        try:
            await self._send(message)
        except asyncio.CancelledError:
            # Ours ends the wait in here alone; another one at the same moment goes on.
            if task is None or self._stalled is not task or task.uncancel() > cancelled:
                raise
        finally:
            self._since = None

    def close(self) -> None:
        """Stop watching."""
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        now = self._loop.time()
        due = (now if self._since is None else self._since) + self._patience
        if due > now:
            self._timer = self._loop.call_at(due, self._look)
        elif self._sender is not None:
            self._stalled = self._sender
            if self._on_stall is not None:
                self._on_stall()
            self._sender.cancel()
