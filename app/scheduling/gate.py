"""The gate: who may run on one replica now, shared or exclusive.

The rules of this file:

1. `Gate` is a synchronous state machine; nothing in it awaits, and the one thing it asks for is the time. The async
   shell at its end only waits for a callback.
2. Shared tickets run beside each other. An exclusive ticket runs alone.
3. First come, first served: among shared tickets always, among exclusive ones within a caller's cap, where a caller's
   own go by priority (`app.scheduling.line`). Whoever is admitted is told by ``on_grant``, once.
4. Phase-fair. An exclusive ticket that waits closes the door behind the shared tickets that run: they drain, and nobody
   joins them. An exclusive phase that ends lets in every shared ticket that waited meanwhile.
5. One drain serves a whole phase, because the drain is what costs: exclusive tickets run back to back. While a shared
   ticket waits, a phase begins no further ticket once it has lasted ``phase_seconds``, nor when every waiting caller
   has used up its ``key_seconds``.
6. Time is shared. After a phase behind which shared tickets waited for T seconds, the door stays open to them for
   T (1 - s) / s seconds, where s is ``exclusive_share``, whoever waits. Exclusive tickets that come meanwhile gather,
   and one drain serves them all. An engine that nobody uses is not kept idle for it: on an empty one an exclusive
   ticket runs at once, but such a phase ends with its ticket as soon as a shared one waits, and the door then stays
   open for the rest of the window, or for what this phase owes, whichever is longer. So where the engine falls empty
   between shared tickets, exclusive ones get more than their share.
7. A permit belongs to its ticket, never to a task. `release` ends a ticket in any state, and is idempotent; a ticket
   that was granted and whose owner was cancelled before it noticed is released like any other, so its turn goes on.
8. Each class's queue is bounded. A ticket that finds it full is refused at once, with the wait that is to be expected.
   In the exclusive queue a caller may not have more waiting than places are left, so that he leaves some to others
   (Choudhury and Hahne, "Dynamic Queue Length Thresholds for Shared-Memory Packet Switches", IEEE/ACM ToN 6, 1998).

So a shared ticket waits for one drain and one exclusive phase, at most ``phase_seconds`` and one ticket long. And the
exclusive ticket that goes next waits for the rest of one window and one drain; no timer is needed for either, because
only a ticket that comes or goes can change who may run.

Phase-fairness of reader/writer locks: Brandenburg and Anderson, "Spin-Based Reader-Writer Synchronization for
Multiprocessor Real-Time Systems", Real-Time Systems 46, 2010. Why not a plain writer lock: it either starves one class
or drains once for each exclusive ticket.

The same gate runs inside vLLM's API server (the guard) and, for replicas without the guard, in the gateway.
"""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from app.errors import QueueFull, QueueTimeout
from app.scheduling.line import Line
from app.scheduling.ticket import Admission, Levels, Ticket

_SMOOTHING: Final = 0.2
"""Weight of the newest duration in a running mean."""


@dataclass(frozen=True, slots=True)
class GatePolicy:
    """How a gate shares its replica; times in seconds. Raises ValueError for what could never work.

    ``exclusive_share``: the most of contended time that exclusive phases get while the engine is never empty, over 0
    up to 1. ``phase_seconds`` and ``key_seconds``: see rule 5. ``most_shared`` and ``most_exclusive``: the most tickets
    that may wait.
    """

    exclusive_share: float = 0.5
    phase_seconds: float = 10.0
    key_seconds: float = 10.0
    most_shared: int = 10_000
    most_exclusive: int = 1_000

    def __post_init__(self) -> None:
        if not 0 < self.exclusive_share <= 1:
            raise ValueError("exclusive_share must be over 0 and at most 1")
        if not 0 <= self.phase_seconds < math.inf:
            raise ValueError("phase_seconds must be a finite number of seconds, 0 or more")
        if not 0 < self.key_seconds < math.inf:
            raise ValueError("key_seconds must be a finite number of seconds over 0")
        for name in ("most_shared", "most_exclusive"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be 0 or more")

    def window(self, waited: float) -> float:
        """The seconds that shared tickets get for so many in which they waited for an exclusive phase."""
        return waited * (1 - self.exclusive_share) / self.exclusive_share


@dataclass(frozen=True, slots=True)
class GateStatistics:
    """How a gate is at one moment: tickets now, totals so far, and what a ticket that came now could expect.

    Times in seconds. ``exclusive_seconds`` is time in exclusive phases, ``drain_seconds`` time from a closed door to
    the phase behind it, in which shared tickets ran out; ``exclusive_run_seconds`` is how long one exclusive ticket ran
    lately.
    """

    shared: int
    exclusive: int
    waiting_shared: int
    waiting_exclusive: int
    phases: int
    exclusive_admissions: int
    exclusive_seconds: float
    drain_seconds: float
    exclusive_run_seconds: float
    expected_wait_shared: float
    expected_wait_exclusive: float


class Gate:
    """Shared/exclusive admission for one replica. ``clock`` gives monotonic seconds."""

    def __init__(self, policy: GatePolicy = GatePolicy(), *, clock: Callable[[], float] = time.monotonic) -> None:
        self.policy = policy
        self._clock = clock
        # The whole mutable state. Only enqueue, release and what they call touch it.
        self._number = 0
        self._running = 0
        self._levels = Levels()
        self._waiting_shared: dict[Ticket, None] = {}
        self._line = Line(policy.key_seconds)
        self._exclusive: Ticket | None = None
        self._phase_began: float | None = None
        self._on_sufferance = False
        self._contended = 0.0
        self._contended_since: float | None = None
        self._closed_at: float | None = None
        self._open_until = -math.inf
        # Totals and running means, for people and for estimates.
        self._phases = 0
        self._admissions = 0
        self._exclusive_seconds = 0.0
        self._drain_seconds = 0.0
        self._mean_run = 0.0
        self._mean_drain = 0.0
        self._mean_phase = 0.0

    def enqueue(
        self, admission: Admission, on_grant: Callable[[], None], *, key: str = "", priority: int = 0
    ) -> Ticket:
        """Take a place in the queue; it may be granted at once (look at ``ticket.granted``).

        ``on_grant`` is called once when the ticket is granted, from within `enqueue` or another ticket's `release`; it
        must not raise and must not call the gate. Raises QueueFull where too many wait already.
        """
        now = self._clock()
        ticket = Ticket(admission, on_grant, self._levels, key, priority, now)
        self._number += 1
        ticket.number = self._number
        if admission is Admission.EXCLUSIVE:
            self._line.add(ticket)
        else:
            self._waiting_shared[ticket] = None
        self._admit(now)
        if ticket.granted_at is None:
            self._refuse_beyond_bounds(ticket, now)
        return ticket

    def release(self, ticket: Ticket) -> None:
        """End a ticket, whether it waits or runs. Idempotent."""
        if ticket.ended_at is not None:
            return
        now = self._clock()
        if ticket.granted_at is None:
            self._leave(ticket)
        else:
            self._running -= 1
            if ticket is self._exclusive:
                self._exclusive = None
                ran = now - ticket.granted_at
                self._line.charge(ticket.key, ran)
                self._mean_run = _smoothed(self._mean_run, ran)
        ticket.end(now)
        self._admit(now)

    def expected_wait(self, admission: Admission) -> float:
        """Seconds that a ticket of that class would wait if it came now: an estimate from what ran before."""
        now = self._clock()
        running = self._exclusive.granted_at if self._exclusive is not None else None
        runs = 0.0
        if running is not None:
            # One that has outlasted the mean is of another kind: of that one it is as good a guess that half is over.
            runs = self._mean_run - (now - running) if now - running < self._mean_run else now - running
        lasted = 0.0 if self._phase_began is None else now - self._phase_began
        ahead = len(self._line) * self._mean_run
        drain = self._mean_drain if self._running and self._exclusive is None else 0.0
        if admission is Admission.SHARED:
            if not self._door_closed(now):
                return 0.0
            return drain + runs + min(ahead, max(self._mean_run, self.policy.phase_seconds - lasted))
        if not (self._running or self._waiting_shared):
            return runs + ahead
        wait = drain + runs + ahead
        if self._exclusive is None:
            wait += max(0.0, self._open_until - now)
        phases = int((lasted + ahead) / max(self.policy.phase_seconds, self._mean_run, 1e-9))
        contended = bool(self._waiting_shared) or self._exclusive is None
        return wait + (phases * (self.policy.window(self._mean_phase) + self._mean_drain) if contended else 0.0)

    def statistics(self) -> GateStatistics:
        """How it is at this moment."""
        exclusive = int(self._exclusive is not None)
        now = self._clock()
        phase = 0.0 if self._phase_began is None else now - self._phase_began
        draining = 0.0 if self._closed_at is None else now - self._closed_at
        return GateStatistics(
            shared=self._running - exclusive,
            exclusive=exclusive,
            waiting_shared=len(self._waiting_shared),
            waiting_exclusive=len(self._line),
            phases=self._phases,
            exclusive_admissions=self._admissions,
            exclusive_seconds=self._exclusive_seconds + phase,
            drain_seconds=self._drain_seconds + draining,
            exclusive_run_seconds=self._mean_run,
            expected_wait_shared=self.expected_wait(Admission.SHARED),
            expected_wait_exclusive=self.expected_wait(Admission.EXCLUSIVE),
        )

    def __repr__(self) -> str:
        return f"<Gate {self.statistics()}>"

    # The rules.

    def _admit(self, now: float) -> None:
        """Grant whatever the rules allow now."""
        self._note_contention(now)
        if self._exclusive is not None:
            return
        if self._phase_began is not None and not self._phase_goes_on(now):
            self._end_phase(now)
            self._admit_shared(now)
        if not self._door_closed(now):
            self._closed_at = None
            self._admit_shared(now)
        elif self._running == 0:
            self._admit_exclusive(now)
        elif self._closed_at is None:
            self._closed_at = now

    def _phase_goes_on(self, now: float) -> bool:
        """Rule 5 and the end of rule 6: whether the phase in progress takes another ticket."""
        if not len(self._line):
            return False
        if not self._waiting_shared:
            return True
        if self._on_sufferance or self._line.turn is None:
            return False
        return self._phase_began is None or now - self._phase_began < self.policy.phase_seconds

    def _door_closed(self, now: float) -> bool:
        """Whether a shared ticket that comes now must wait."""
        if self._exclusive is not None or self._phase_began is not None:
            return True
        if not len(self._line):
            return False
        return now >= self._open_until or not (self._running or self._waiting_shared)

    def _admit_shared(self, now: float) -> None:
        if self._waiting_shared:
            admitted, self._waiting_shared = self._waiting_shared, {}
            for ticket in admitted:
                self._grant(ticket, now)

    def _admit_exclusive(self, now: float) -> None:
        if self._phase_began is None:
            self._phase_began = now
            self._phases += 1
            self._on_sufferance = now < self._open_until
            self._note_contention(now)
            if self._closed_at is not None:
                self._drain_seconds += now - self._closed_at
                self._mean_drain = _smoothed(self._mean_drain, now - self._closed_at)
                self._closed_at = None
        if self._line.turn is None:
            self._line.new_round()
        self._exclusive = ticket = self._line.take()
        self._admissions += 1
        self._grant(ticket, now)

    def _note_contention(self, now: float) -> None:
        """Count the time of a phase in which a shared ticket waits. What nobody waited behind is no debt."""
        if self._phase_began is not None and self._waiting_shared:
            if self._contended_since is None:
                self._contended_since = now
        elif self._contended_since is not None:
            self._contended += now - self._contended_since
            self._contended_since = None

    def _end_phase(self, now: float) -> None:
        lasted = 0.0 if self._phase_began is None else now - self._phase_began
        contended = self._contended + (0.0 if self._contended_since is None else now - self._contended_since)
        self._phase_began = self._contended_since = None
        self._contended = 0.0
        # The longer of two windows and not their sum: a debt could grow without end, and with it the next one's wait.
        self._open_until = max(self._open_until, now + self.policy.window(contended))
        self._exclusive_seconds += lasted
        self._mean_phase = _smoothed(self._mean_phase, lasted)

    def _grant(self, ticket: Ticket, now: float) -> None:
        self._running += 1
        ticket.granted_at = now
        ticket.admitted = self._levels.enter(self._running)
        ticket.on_grant()

    def _leave(self, ticket: Ticket) -> None:
        """Take a waiting ticket out of its queue."""
        if ticket.admission is Admission.EXCLUSIVE:
            self._line.remove(ticket)
        else:
            del self._waiting_shared[ticket]

    def _refuse_beyond_bounds(self, ticket: Ticket, now: float) -> None:
        """Rule 8. Looked at after `_admit`, because a ticket that need not wait takes no place in a queue."""
        if ticket.admission is Admission.EXCLUSIVE:
            others = len(self._line) - 1
            own = self._line.waiting(ticket.key) - 1
            fits = own < self.policy.most_exclusive - others
            text = f"{others} exclusive requests wait for this replica, {own} of them of this caller."
        else:
            others = len(self._waiting_shared) - 1
            fits = others < self.policy.most_shared
            text = f"{others} shared requests wait for this replica."
        if fits:
            return
        self._leave(ticket)
        ticket.end(now)
        self._admit(now)
        raise QueueFull(text, retry_after=self.expected_wait(ticket.admission))

    # The async shell.

    async def acquire(
        self, admission: Admission, *, key: str = "", priority: int = 0, patience: float = math.inf
    ) -> Ticket:
        """Wait for a grant. Cancelled while it waits, or between grant and wake-up, it leaves nothing behind.

        Raises QueueFull, and QueueTimeout after ``patience`` seconds without a grant.
        """
        wake = _Wake()
        ticket = self.enqueue(admission, wake, key=key, priority=priority)
        if ticket.granted_at is None:
            loop = asyncio.get_running_loop()
            wake.waiter = loop.create_future()
            timer = loop.call_later(patience, wake.give_up) if patience < math.inf else None
            try:
                await wake.waiter
            except BaseException:
                self.release(ticket)
                raise
            finally:
                if timer is not None:
                    timer.cancel()
            if ticket.granted_at is None:
                self.release(ticket)
                raise QueueTimeout(
                    f"The request waited {patience:g} s for its {admission} turn on this replica.",
                    retry_after=self.expected_wait(admission),
                )
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
        self.give_up()

    def give_up(self) -> None:
        """Wake the coroutine; whether it was granted it sees from its ticket."""
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)


def _smoothed(mean: float, value: float) -> float:
    return value if mean == 0 else mean + _SMOOTHING * (value - mean)
