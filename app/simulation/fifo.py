"""A plain first-in-first-out reader/writer lock: what the gate is compared with.

Tickets are granted strictly in the order of asking. An exclusive ticket waits for all before it, and all after it wait
for it: fair, and it drains the engine once for each exclusive ticket.
"""

from collections import deque
from collections.abc import Callable

from app.scheduling.ticket import Admission


class FifoTicket:
    """A place in the queue, and after the grant the right to run."""

    __slots__ = ("admission", "granted", "on_grant", "released")

    def __init__(self, admission: Admission, on_grant: Callable[[], None]) -> None:
        self.admission = admission
        self.on_grant = on_grant
        self.granted = False
        self.released = False


class FifoLock:
    """The lock of one replica, used as `app.scheduling.gate.Gate` is."""

    __slots__ = ("_exclusive_runs", "_running", "_waiting")

    def __init__(self) -> None:
        self._running = 0
        self._exclusive_runs = False
        self._waiting: deque[FifoTicket] = deque()

    def enqueue(self, admission: Admission, on_grant: Callable[[], None]) -> FifoTicket:
        """Take a place in the queue; ``on_grant`` is called once when it is granted, perhaps at once."""
        ticket = FifoTicket(admission, on_grant)
        self._waiting.append(ticket)
        self._admit()
        return ticket

    def release(self, ticket: FifoTicket) -> None:
        """End a ticket that runs; here nobody gives up waiting. Idempotent."""
        if ticket.released:
            return
        ticket.released = True
        self._running -= 1
        self._exclusive_runs = False
        self._admit()

    def _admit(self) -> None:
        while self._waiting and not self._exclusive_runs:
            exclusive = self._waiting[0].admission is Admission.EXCLUSIVE
            if exclusive and self._running:
                return
            self._exclusive_runs = exclusive
            self._running += 1
            ticket = self._waiting.popleft()
            ticket.granted = True
            ticket.on_grant()
