"""The line of exclusive tickets: who goes next, so that no caller's tickets keep another's out.

1. Turns come in the order of asking: every ticket brings its caller one turn, at the place where it asked.
2. Whose turn it is sends his most urgent ticket: the lowest priority, within it the first that came. So priority orders
   a caller's own tickets, and never lets him pass another caller.
3. Every caller (key) has a cap of exclusive seconds per round. One that has used it up steps aside with all his turns
   until the round ends.
4. A round ends when every key that waits has used its cap up, or when ten caps have been used in it, so that nobody can
   be kept aside by others who are always new.
5. While nobody waits nothing is counted: a cap settles a contest and is no quota.

All operations take O(log n) steps and the moving of pointers in a list.
"""

from bisect import bisect_left, insort
from typing import Final

from app.scheduling.ticket import Ticket

_CAPS_PER_ROUND: Final = 10

_MOST_KEYS: Final = 10_000
"""Keys whose use is remembered within one round; beyond it a new one begins, so that memory is bounded."""


class _Caller:
    """The tickets of one key: ``turns`` are the numbers of his places in the line, as many as he has tickets."""

    __slots__ = ("tickets", "turns")

    def __init__(self) -> None:
        self.turns: list[int] = []
        self.tickets: list[tuple[int, int, Ticket]] = []

    def add(self, ticket: Ticket) -> None:
        self.turns.append(ticket.number)
        insort(self.tickets, (ticket.priority, ticket.number, ticket))

    def remove(self, ticket: Ticket) -> None:
        """Take out a ticket and its own turn; where another one had that, the last turn."""
        del self.tickets[bisect_left(self.tickets, (ticket.priority, ticket.number))]
        place = bisect_left(self.turns, ticket.number)
        own = place < len(self.turns) and self.turns[place] == ticket.number
        del self.turns[place if own else -1]

    def take(self) -> Ticket:
        """The most urgent ticket, for the first turn."""
        del self.turns[0]
        return self.tickets.pop(0)[2]


class Line:
    """Waiting exclusive tickets. ``cap``: the exclusive seconds of one key per round."""

    __slots__ = ("_callers", "_cap", "_count", "_heads", "_total", "_used")

    def __init__(self, cap: float) -> None:
        self._cap = cap
        self._count = 0
        self._callers: dict[str, _Caller] = {}
        # The first turn of each key that has not used its cap up, in order.
        self._heads: list[tuple[int, str]] = []
        self._used: dict[str, float] = {}
        self._total = 0.0

    def __len__(self) -> int:
        return self._count

    def waiting(self, key: str) -> int:
        """How many tickets of a key wait."""
        caller = self._callers.get(key)
        return len(caller.turns) if caller is not None else 0

    def add(self, ticket: Ticket) -> None:
        """Put a ticket into the line; tickets come with rising numbers."""
        caller = self._callers.get(ticket.key)
        if caller is None:
            caller = self._callers[ticket.key] = _Caller()
            if self._able(ticket.key):
                self._heads.append((ticket.number, ticket.key))
        caller.add(ticket)
        self._count += 1

    def remove(self, ticket: Ticket) -> None:
        """Take a ticket out, wherever it stands. It must be in the line."""
        caller = self._callers[ticket.key]
        before = caller.turns[0]
        caller.remove(ticket)
        self._moved(ticket.key, caller, before)

    @property
    def turn(self) -> int | None:
        """The number of the turn that comes next; None where every key has used its cap up, or nobody waits."""
        return self._heads[0][0] if self._heads else None

    def take(self) -> Ticket:
        """Whoever's turn it is, out of the line. There must be one."""
        before, key = self._heads[0]
        caller = self._callers[key]
        ticket = caller.take()
        self._moved(key, caller, before)
        return ticket

    def new_round(self) -> None:
        """Forget what was used."""
        self._used.clear()
        self._total = 0.0
        self._heads = sorted((caller.turns[0], key) for key, caller in self._callers.items())

    def charge(self, key: str, seconds: float) -> None:
        """A ticket of ``key`` has run for so long."""
        self._total += seconds
        if not self._count or self._total >= _CAPS_PER_ROUND * self._cap or len(self._used) >= _MOST_KEYS:
            self.new_round()
            return
        before = self._used.get(key, 0.0)
        self._used[key] = before + seconds
        if before < self._cap <= before + seconds and key in self._callers:
            self._drop(self._callers[key].turns[0], key)

    def _moved(self, key: str, caller: _Caller, before: int) -> None:
        """A key has one ticket less; its first turn was ``before``."""
        self._count -= 1
        after = caller.turns[0] if caller.turns else None
        if after is None:
            del self._callers[key]
        if after != before and self._able(key):
            self._drop(before, key)
            if after is not None:
                insort(self._heads, (after, key))

    def _able(self, key: str) -> bool:
        return self._used.get(key, 0.0) < self._cap

    def _drop(self, turn: int, key: str) -> None:
        del self._heads[bisect_left(self._heads, (turn, key))]
