"""Shadows: a sample of clients' requests, asked once more, so that there is a repeat to compare where nobody repeats.

Only what could repeat at all is asked again, in modes that cost nobody anything else, and never more at once than the
engine can spare: what finds too many waiting is dropped and counted.
"""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from app.determinism.mode import Mode
from app.gateway import Call
from app.measuring.sender import Sender
from app.observation.store import Origin

SHADOWED: Final = frozenset({Mode.STANDARD, Mode.SEEDED})
"""Modes whose requests are asked again: in the others a repeat would stop everybody else."""

_WAITING: Final = 16
_WAITING_BYTES: Final = 8 * 2**20
"""Bytes of the bodies that wait or are being sent; one that is larger is asked once only."""


class Shadows:
    """Takes calls that were answered, and sends the share ``rate`` of them once more, one at a time.

    ``chance`` gives numbers from 0 to 1; ``dropped`` is told of each that was not sent for want of room.
    """

    def __init__(
        self, sender: Sender, *, rate: float, chance: Callable[[], float], dropped: Callable[[], None]
    ) -> None:
        self._sender = sender
        self._rate = rate
        self._chance = chance
        self._dropped = dropped
        self._queue: asyncio.Queue[Call] = asyncio.Queue(_WAITING)
        self._bytes = 0

    def offer(self, call: Call, mode: Mode) -> None:
        """Consider an answered call. Never waits."""
        if not self._rate or mode not in SHADOWED or self._chance() >= self._rate:
            return
        if self._queue.full() or self._bytes + len(call.body) > _WAITING_BYTES:
            self._dropped()
            return
        self._bytes += len(call.body)
        self._queue.put_nowait(replace(call, origin=Origin.SHADOW))

    async def run(self) -> None:
        """Send them until cancelled."""
        while True:
            await self._send(await self._queue.get())

    async def _send(self, call: Call) -> None:
        await self._sender.send(call)
        self._bytes -= len(call.body)
