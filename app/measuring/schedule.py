"""When canaries are sent: one after the other, each in one mode, at a fixed pace."""

import itertools
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import anyio

from app.determinism.mode import Mode
from app.determinism.plan import Wish
from app.gateway import Call
from app.measuring.canaries import Canary
from app.measuring.sender import Sender
from app.observation.store import Origin
from app.reply import Header

_JSON: Final[tuple[Header, ...]] = ((b"content-type", b"application/json"),)


class Schedule:
    """Sends a canary every ``interval`` seconds while there is a model to send it to.

    Every prompt goes through every mode before the next prompt's turn. One that takes longer than the interval delays
    those after it: two are never under way at once. ``served`` names the models that healthy replicas serve; while
    there are none, nobody's turn passes.
    """

    def __init__(
        self,
        sender: Sender,
        canaries: Sequence[Canary],
        modes: Sequence[Mode],
        *,
        interval: float,
        served: Callable[[], Sequence[str]],
        sleep: Callable[[float], Awaitable[None]] = anyio.sleep,
    ) -> None:
        self._sender = sender
        self._pairs = tuple(itertools.product(canaries, modes))
        self._interval = interval
        self._served = served
        self._sleep = sleep
        self._turns = 0

    @property
    def interval(self) -> float:
        """Seconds between two turns."""
        return self._interval

    @property
    def round(self) -> int:
        """Turns until every prompt has been through every mode."""
        return len(self._pairs)

    @property
    def turns(self) -> int:
        """Turns that are over, of all rounds; each was sent to every model that was served."""
        return self._turns

    async def run(self) -> None:
        """Go on until cancelled."""
        for canary, mode in itertools.cycle(self._pairs):
            await self._sleep(self._interval)
            while not (models := self._served()):
                await self._sleep(self._interval)
            for model in models:
                await self._sender.send(
                    Call(canary.path, canary.body(model), _JSON, Wish(mode=mode), "", origin=Origin.CANARY)
                )
            self._turns += 1
