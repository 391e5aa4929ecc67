"""The line of exclusive tickets: who goes next, so that no caller's tickets keep another's out.

1. By priority, lowest number first; within one priority first come, first served.
2. Every key has a cap of exclusive seconds per round. A key that has used it up steps aside, with all its tickets and
   whatever their priority, until the round ends.
3. A round ends when every key that waits has used its cap up. A ticket therefore waits, beyond those of its own key
   before it, for at most one cap and one ticket of each other key.
4. While nobody waits nothing is counted: a cap settles a contest and is no quota.

All operations take O(log n) steps and the moving of pointers in a list.
"""

from bisect import bisect_left, insort
from typing import Final

from app.scheduling.ticket import Ticket

_Place = tuple[int, int, Ticket]
"""Priority, number in the queue (so no comparison ever comes to the ticket itself), ticket."""

_MOST_KEYS: Final = 10_000
"""Keys whose use is remembered within one round; beyond it a new round begins, so that memory is bounded."""


class Line:
    """Waiting exclusive tickets. ``cap``: the exclusive seconds of one key per round."""

    __slots__ = ("_cap", "_count", "_heads", "_used", "_waiting")

    def __init__(self, cap: float) -> None:
        self._cap = cap
        self._count = 0
        self._waiting: dict[str, list[_Place]] = {}
        # The first ticket of each key that has not used its cap up, in order.
        self._heads: list[_Place] = []
        self._used: dict[str, float] = {}

    def __len__(self) -> int:
        return self._count

    def add(self, ticket: Ticket) -> None:
        """Put a ticket at its place."""
        place = (ticket.priority, ticket.number, ticket)
        waiting = self._waiting.setdefault(ticket.key, [])
        before = waiting[0] if waiting else None
        insort(waiting, place)
        self._count += 1
        if waiting[0] is place:
            self._replace(ticket.key, before, place)

    def remove(self, ticket: Ticket) -> None:
        """Take a ticket out, wherever it stands. It must be in the line."""
        waiting = self._waiting[ticket.key]
        position = bisect_left(waiting, (ticket.priority, ticket.number))
        place = waiting.pop(position)
        self._count -= 1
        if position == 0:
            self._replace(ticket.key, place, waiting[0] if waiting else None)
        if not waiting:
            del self._waiting[ticket.key]

    def first(self) -> Ticket | None:
        """Who goes next in this round; None where every key has used its cap up, or nobody waits."""
        return self._heads[0][2] if self._heads else None

    def new_round(self) -> None:
        """Forget what was used."""
        self._used.clear()
        self._heads = sorted(waiting[0] for waiting in self._waiting.values())

    def charge(self, key: str, seconds: float) -> None:
        """A ticket of ``key`` has run for so long."""
        if not self._count or len(self._used) >= _MOST_KEYS:
            self.new_round()
            return
        before = self._used.get(key, 0.0)
        self._used[key] = before + seconds
        if before < self._cap <= before + seconds and key in self._waiting:
            self._drop(self._waiting[key][0])

    def _replace(self, key: str, before: _Place | None, after: _Place | None) -> None:
        """The head of a key has changed."""
        if self._used.get(key, 0.0) >= self._cap:
            return
        if before is not None:
            self._drop(before)
        if after is not None:
            insort(self._heads, after)

    def _drop(self, head: _Place) -> None:
        del self._heads[bisect_left(self._heads, head[:2])]
