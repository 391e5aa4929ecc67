"""The gate: who may run on one replica now, shared or exclusive.

The rules of this file:

1. `Gate` is a synchronous state machine; nothing in it awaits. The async shell below it only waits for a callback.
2. Shared tickets run beside each other. An exclusive ticket runs alone.
3. First come, first served within a class. Whoever is admitted is told by ``on_grant``, once.
4. Phase-fair: an exclusive ticket that waits closes the door behind the shared tickets that run (they drain; nobody
   joins them), and an exclusive phase that ends lets in every shared ticket that waited meanwhile, before the next
   exclusive phase. So a shared ticket waits for at most one exclusive phase, and an exclusive one for at most one drain
   for each exclusive phase before its own.
5. One drain serves a whole run of exclusive tickets: up to ``exclusive_run`` of them go back to back while shared ones
   wait, because the drain is what costs. Rule 4 bounds the phase by that number.
6. A permit belongs to its ticket, never to a task. `release` ends a ticket in any state, and is idempotent; a ticket
   that was granted and whose owner was cancelled before it noticed is released like any other, so its turn goes on.

Phase-fairness of reader/writer locks: Brandenburg and Anderson, "Spin-Based Reader-Writer Synchronization for
Multiprocessor Real-Time Systems", Real-Time Systems 46, 2010. Why not a plain writer lock: it either starves one class
or drains once for each exclusive ticket.

The same gate runs inside vLLM's API server (the guard) and, for replicas without the guard, in the gateway.
"""

import asyncio
from bisect import bisect_left
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import StrEnum


class Admission(StrEnum):
    """How a request shares the engine."""

    SHARED = "shared"
    EXCLUSIVE = "exclusive"


class Ticket:
    """A place in the queue, and after the grant the right to run (the lease)."""

    __slots__ = ("_gate", "_on_grant", "_peak", "_sequence", "admission", "granted", "released")

    def __init__(self, gate: "Gate", admission: Admission, on_grant: Callable[[], None]) -> None:
        self._gate = gate
        self._on_grant = on_grant
        self._peak = 0
        self._sequence = 0
        self.admission = admission
        self.granted = False
        self.released = False

    @property
    def peak(self) -> int:
        """Co-resident peak: the most tickets that ran at once while this one did, itself included; 0 = never ran."""
        if self.granted and not self.released:
            return self._gate.level_since(self._sequence)
        return self._peak

    def __repr__(self) -> str:
        state = "released" if self.released else "granted" if self.granted else "waiting"
        return f"<Ticket {self.admission} {state} peak={self.peak}>"


@dataclass(frozen=True, slots=True)
class GateStatistics:
    """How a gate is at one moment; counts of tickets."""

    shared: int
    exclusive: int
    waiting_shared: int
    waiting_exclusive: int


class Gate:
    """Shared/exclusive admission for one replica.

    ``exclusive_run``: the most exclusive tickets that run back to back while shared ones wait (at least 1).
    """

    def __init__(self, exclusive_run: int = 8) -> None:
        if exclusive_run < 1:
            raise ValueError("exclusive_run must be at least 1")
        self._exclusive_run = exclusive_run
        # The whole mutable state. Only enqueue, release and _admit touch it.
        self._running = 0
        self._exclusive_runs = False
        self._run_length = 0
        self._waiting_shared: deque[Ticket] = deque()
        self._waiting_exclusive: deque[Ticket] = deque()
        self._admitted = 0
        self._levels: list[tuple[int, int]] = []

    def enqueue(self, admission: Admission, on_grant: Callable[[], None]) -> Ticket:
        """Take a place in the queue; it may be granted at once (look at ``ticket.granted``).

        ``on_grant`` is called once when the ticket is granted, from within `enqueue` or another ticket's `release`; it
        must not raise and must not call the gate.
        """
        ticket = Ticket(self, admission, on_grant)
        (self._waiting_exclusive if admission is Admission.EXCLUSIVE else self._waiting_shared).append(ticket)
        self._admit()
        return ticket

    def release(self, ticket: Ticket) -> None:
        """End a ticket, whether it waits or runs. Idempotent."""
        if ticket.released:
            return
        if ticket.granted:
            ticket._peak = ticket.peak  # noqa: SLF001 - gate and ticket are one unit; the peak freezes here
            self._running -= 1
            if ticket.admission is Admission.EXCLUSIVE:
                self._exclusive_runs = False
            if self._running == 0:
                self._levels.clear()
        else:
            queue = self._waiting_exclusive if ticket.admission is Admission.EXCLUSIVE else self._waiting_shared
            queue.remove(ticket)
        ticket.released = True
        self._admit()

    def statistics(self) -> GateStatistics:
        """The counts of this moment."""
        exclusive = int(self._exclusive_runs)
        return GateStatistics(
            shared=self._running - exclusive,
            exclusive=exclusive,
            waiting_shared=len(self._waiting_shared),
            waiting_exclusive=len(self._waiting_exclusive),
        )

    def level_since(self, sequence: int) -> int:
        """The most tickets that ran at one time since the admission numbered ``sequence``."""
        position = bisect_left(self._levels, (sequence, 0))
        return self._levels[position][1]

    def __repr__(self) -> str:
        return f"<Gate {self.statistics()}>"

    def _admit(self) -> None:
        """Grant whatever the rules allow now."""
        if self._exclusive_runs:
            return
        if self._waiting_exclusive and not self._shared_turn():
            if self._running == 0:
                self._run_length += 1
                self._exclusive_runs = True
                self._grant(self._waiting_exclusive.popleft())
            return
        self._run_length = 0
        while self._waiting_shared:
            self._grant(self._waiting_shared.popleft())

    def _shared_turn(self) -> bool:
        """Whether an exclusive phase has just used up its run, with shared tickets waiting for theirs."""
        return self._run_length >= self._exclusive_run and self._running == 0 and bool(self._waiting_shared)

    def _grant(self, ticket: Ticket) -> None:
        self._running += 1
        self._admitted += 1
        ticket.granted = True
        ticket._sequence = self._admitted  # noqa: SLF001 - gate and ticket are one unit
        # Levels fall from left to right: an entry that a later one reaches or tops can never be a maximum again.
        while self._levels and self._levels[-1][1] <= self._running:
            self._levels.pop()
        self._levels.append((self._admitted, self._running))
        ticket._on_grant()  # noqa: SLF001 - gate and ticket are one unit

    async def acquire(self, admission: Admission) -> Ticket:
        """Wait for a grant. Cancelled while it waits, or between grant and wake-up, it leaves nothing behind."""
        wake = _Wake()
        ticket = self.enqueue(admission, wake)
        if not ticket.granted:
            wake.waiter = asyncio.get_running_loop().create_future()
            try:
                await wake.waiter
            except BaseException:
                self.release(ticket)
                raise
        return ticket

    @asynccontextmanager
    async def lease(self, admission: Admission) -> AsyncIterator[Ticket]:
        """Hold a granted ticket for the time of the block."""
        ticket = await self.acquire(admission)
        try:
            yield ticket
        finally:
            self.release(ticket)


class _Wake:
    """Tells one waiting coroutine of its grant; costs no future where the grant came at once."""

    __slots__ = ("waiter",)

    def __init__(self) -> None:
        self.waiter: asyncio.Future[None] | None = None

    def __call__(self) -> None:
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)
