"""One simulated replica: its lock, and an engine that its running requests share by turns.

Every running request advances one token per step. ``_steps`` counts the steps since the start, so that a request which
begins now with L tokens ends when that count has grown by L, whatever the batch does meanwhile. A request that begins
adds its prefill to a debt of time, and steps go on when that is paid.
"""

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any, Protocol

from app.scheduling.ticket import Admission
from app.simulation.engine import EngineModel

_LEAST_BATCH = 1


class Lock(Protocol):
    """What the gate and the lock that it is compared with have in common. The ticket is the lock's own affair."""

    def enqueue(self, admission: Admission, on_grant: Callable[[], None], /) -> Any:  # noqa: ANN401 - each lock has its own ticket
        """Take a place in the queue; ``on_grant`` is called once when the request may run, perhaps at once."""

    def release(self, ticket: Any, /) -> None:  # noqa: ANN401 - as above
        """End a ticket."""


class Work:
    """One request in the simulation; moments in simulated seconds. ``ends_at`` is a count of its replica's steps."""

    __slots__ = ("admission", "asked", "ends_at", "granted", "ticket", "tokens")

    def __init__(self, admission: Admission, tokens: int, asked: float) -> None:
        self.admission = admission
        self.tokens = tokens
        self.asked = asked
        self.granted = asked
        self.ends_at = 0.0
        self.ticket: Any = None


class SimulatedReplica:
    """``version`` changes whenever the moment of the next end does: who planned for an older one planned in vain."""

    __slots__ = ("_clock", "_debt", "_engine", "_lock", "_order", "_running", "_seconds_per_step", "_since", "_steps")

    def __init__(self, lock: Lock, engine: EngineModel, clock: Callable[[], float]) -> None:
        self._lock = lock
        self._engine = engine
        self._clock = clock
        self._running: list[tuple[float, int, Work]] = []
        self._order = 0
        self._steps = 0.0
        self._debt = 0.0
        self._since = clock()
        self._seconds_per_step = engine.step(_LEAST_BATCH)

    def ask(self, work: Work) -> None:
        """A request arrives. Raises QueueFull as the lock does."""
        work.ticket = self._lock.enqueue(work.admission, lambda: self._begin(work))

    def next_end(self) -> float | None:
        """When the next request ends if nothing else happens; None while nothing runs."""
        if not self._running:
            return None
        return self._since + self._debt + (self._running[0][0] - self._steps) * self._seconds_per_step

    def end_next(self) -> Work:
        """The request whose end has come; the lock may let others begin."""
        self._advance()
        ends_at, _, work = heappop(self._running)
        # What was lost to rounding on the way to this moment.
        self._steps, self._debt = ends_at, 0.0
        self._resize()
        self._lock.release(work.ticket)
        return work

    def _begin(self, work: Work) -> None:
        self._advance()
        work.granted = self._since
        work.ends_at = self._steps + work.tokens
        self._debt += self._engine.prefill
        self._order += 1
        heappush(self._running, (work.ends_at, self._order, work))
        self._resize()

    def _advance(self) -> None:
        """Bring the count of steps up to now."""
        now = self._clock()
        passed = now - self._since
        self._since = now
        if not self._running:
            return
        paid = min(passed, self._debt)
        self._debt -= paid
        self._steps += (passed - paid) / self._seconds_per_step

    def _resize(self) -> None:
        self._seconds_per_step = self._engine.step(max(len(self._running), _LEAST_BATCH))
