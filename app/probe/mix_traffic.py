"""Mixed traffic in a closed loop: each client sends one request after the other, and what came back is kept."""

from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

import anyio

from app.determinism.mode import Mode
from app.determinism.output import CHAT_PATH
from app.probe.answer import Answer, Outcome
from app.probe.experiment import Question
from app.probe.load import Sleep
from app.probe.mix_draws import Draw, Draws
from app.probe.server import Clock, Reply

Send = Callable[[Mode, Question], Awaitable[Reply]]

_PAUSE_AFTER_FAILURE: Final = 0.5
"""Seconds that a client rests after a failed request, so that a dead server is not hammered."""

_FAILURES_IN_A_ROW: Final = 3
"""Per client; after so many with no answer between them the server is given up."""


class ServerLost(Exception):
    """Nothing but failures came back for a while; `Traffic.lost` is the last one's reason."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request that came back at ``ended``, in seconds of the run's clock."""

    isolated: bool
    ended: float
    outcome: Outcome
    replica: str | None

    @property
    def ran(self) -> tuple[float, float]:
        """From when to when the answer was made: its latency without its wait. A failure ran for no time."""
        if not isinstance(self.outcome, Answer):
            return self.ended, self.ended
        waited = self.outcome.admission_wait or 0.0
        return self.ended - max(0.0, self.outcome.latency - waited), self.ended


class Traffic:
    """At most ``most`` clients, of which as many are at work as the last `turn` said; none before the first.

    ``exchanges`` grows in the order in which requests come back; ``lost`` is set when the server is given up.
    """

    def __init__(self, send: Send, draws: Draws, most: int, *, clock: Clock, sleep: Sleep = anyio.sleep) -> None:
        self._send = send
        self._draws = draws
        self._most = most
        self._clock = clock
        self._sleep = sleep
        self._active = 0
        self._changed = anyio.Event()
        self._turn = 0
        self._in_flight: Counter[int] = Counter()
        self._came_back = anyio.Event()
        self._failures_in_a_row = 0
        self.exchanges: list[Exchange] = []
        self.lost: str | None = None

    async def run(self) -> None:
        """Keep the clients at work. Ends by cancellation, or with ServerLost."""
        async with anyio.create_task_group() as group:
            for client in range(self._most):
                group.start_soon(self._work, client)

    async def turn(self, clients: int, percent: float) -> None:
        """Go on with other traffic; returns when every request from before has come back, with the new one running."""
        self._turn += 1
        self._active = clients
        self._draws.mix(percent)
        self._changed.set()
        self._changed = anyio.Event()
        while any(count for turn, count in self._in_flight.items() if turn < self._turn):
            await self._came_back.wait()

    async def _work(self, client: int) -> None:
        while True:
            while client >= self._active:
                await self._changed.wait()
            await self._exchange(self._draws.draw())

    async def _exchange(self, draw: Draw) -> None:
        turn = self._turn
        self._in_flight[turn] += 1
        try:
            reply = await self._send(Mode.ISOLATED if draw.isolated else Mode.STANDARD, question_of(draw))
        finally:
            self._in_flight[turn] -= 1
            self._came_back.set()
            self._came_back = anyio.Event()
        self.exchanges.append(Exchange(draw.isolated, self._clock(), reply.outcome, reply.replica))
        if isinstance(reply.outcome, Answer):
            self._failures_in_a_row = 0
            return
        self._failures_in_a_row += 1
        if self._failures_in_a_row >= _FAILURES_IN_A_ROW * self._active:
            self.lost = reply.outcome.reason
            raise ServerLost
        await self._sleep(_PAUSE_AFTER_FAILURE)


def question_of(draw: Draw) -> Question:
    """The request of a draw: a chat whose answer has exactly as many tokens as it asks for."""
    body: dict[str, Any] = {
        "messages": [{"role": "user", "content": draw.prompt}],
        "max_tokens": draw.tokens,
        "temperature": 0.0,
        "ignore_eos": True,
    }
    return Question(CHAT_PATH, body, 1)
