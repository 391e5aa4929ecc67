"""Which replica of the simulated fleet takes a request: the scheduler's own rule, made fast.

The rule is `app.scheduling.choice`, which gateways use. It looks at every replica, and a fleet of a thousand needs the
answer in O(log n) steps: `Router` gives each replica a rank for each class, such that the lowest rank is the rule's
choice, and keeps the ranks in a tree. `choose` is the rule itself on the same loads.

What an isolated request may expect to wait is estimated from what a gateway always knows, its own leases. That the
guard's word on its queue is some seconds old, and that several gateways know only their own, is not modelled.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from app.scheduling.choice import for_exclusive, for_shared
from app.scheduling.ticket import Admission

_BEHIND: Final = 1e6
"""More than any number of leases: what puts a replica behind all with an exclusive request less."""


@dataclass(frozen=True, slots=True)
class Expectations:
    """Seconds: how long an exclusive request runs, how long shared ones take to drain, the wait from which to spill."""

    run: float
    drain: float
    spill: float


@dataclass(slots=True)
class Load:
    """Leases on one replica, those included that wait for their turn there."""

    shared: int = 0
    exclusive: int = 0

    @property
    def leases(self) -> int:
        """Of both classes."""
        return self.shared + self.exclusive

    def exclusive_wait(self, expectations: Expectations) -> float:
        """Seconds that an exclusive request may expect to wait here."""
        return self.exclusive * expectations.run + (expectations.drain if self.shared else 0.0)

    def rank(self, admission: Admission, expectations: Expectations) -> float:
        """The lowest of a fleet, and the first of equals, is the rule's choice."""
        if admission is Admission.SHARED:
            return self.leases + _BEHIND * self.exclusive
        wait = self.exclusive_wait(expectations)
        return 0.0 if wait <= expectations.spill else wait


def choose(loads: Sequence[Load], admission: Admission, expectations: Expectations) -> int:
    """The place in the list of the replica that takes a request, by the scheduler's rule."""
    places = range(len(loads))
    if admission is Admission.SHARED:
        return for_shared(
            places, exclusive=lambda place: loads[place].exclusive, leases=lambda place: loads[place].leases
        )
    return for_exclusive(
        places,
        wait=lambda place: loads[place].exclusive_wait(expectations),
        spill=expectations.spill,
    )


class Router:
    """Keeps the loads of a fleet and chooses as `choose` does."""

    def __init__(self, replicas: int, expectations: Expectations) -> None:
        self._expectations = expectations
        self.loads = [Load() for _ in range(replicas)]
        self._by_rank = {admission: _Tournament(replicas) for admission in Admission}

    def take(self, admission: Admission) -> int:
        """Choose a replica, and count the lease."""
        place = self._by_rank[admission].first
        self._count(place, admission, 1)
        return place

    def give_back(self, place: int, admission: Admission) -> None:
        """A lease has ended."""
        self._count(place, admission, -1)

    def _count(self, place: int, admission: Admission, one: int) -> None:
        load = self.loads[place]
        if admission is Admission.SHARED:
            load.shared += one
        else:
            load.exclusive += one
        for each, tournament in self._by_rank.items():
            tournament.set(place, load.rank(each, self._expectations))


class _Tournament:
    """The place with the lowest key, the first of equals: a binary tree in which each node holds its winner."""

    __slots__ = ("_keys", "_leaves", "_winners")

    def __init__(self, size: int) -> None:
        self._leaves = 1 << max(size - 1, 0).bit_length()
        self._keys = [0.0] * size + [math.inf] * (self._leaves - size)
        self._winners = [0] * self._leaves + list(range(self._leaves))
        for node in range(self._leaves - 1, 0, -1):
            self._winners[node] = self._better(node)

    @property
    def first(self) -> int:
        """The winner of all."""
        return self._winners[1]

    def set(self, place: int, key: float) -> None:
        """Give a place another key."""
        if self._keys[place] == key:
            return
        self._keys[place] = key
        node = (place + self._leaves) >> 1
        while node:
            winner = self._better(node)
            if winner == self._winners[node] != place:
                # Another place wins here as before, so nothing has changed above.
                return
            self._winners[node] = winner
            node >>= 1

    def _better(self, node: int) -> int:
        left, right = self._winners[2 * node], self._winners[2 * node + 1]
        return left if self._keys[left] <= self._keys[right] else right
