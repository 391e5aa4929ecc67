"""Routing in the simulated fleet."""

import random

import pytest

from app.scheduling.scheduler import Queueing
from app.scheduling.ticket import Admission
from app.simulation.arguments import DEFAULT_SPILL
from app.simulation.routing import Expectations, Router, choose

SHARED, EXCLUSIVE = Admission.SHARED, Admission.EXCLUSIVE
EXPECTATIONS = Expectations(run=1.0, drain=3.0, spill=5.0)


@pytest.mark.parametrize("replicas", [1, 2, 3, 7, 64, 100])
@pytest.mark.parametrize("seed", range(5))
def test_the_router_chooses_as_the_scheduler_does(replicas: int, seed: int) -> None:
    """Over a random life of leases, every choice is that of `app.scheduling.choice` on the same loads."""
    chance = random.Random(seed)  # noqa: S311 - a life of leases that can be lived again
    router = Router(replicas, EXPECTATIONS)
    leases: list[tuple[int, Admission]] = []
    for _ in range(1_000):
        if leases and chance.random() < 0.48:
            router.give_back(*leases.pop(chance.randrange(len(leases))))
            continue
        admission = chance.choice((SHARED, SHARED, EXCLUSIVE))
        wanted = choose(router.loads, admission, EXPECTATIONS)
        assert router.take(admission) == wanted
        leases.append((wanted, admission))
    assert sum(load.leases for load in router.loads) == len(leases)


def test_exclusive_work_stays_on_the_first_replica_until_it_spills() -> None:
    """Six requests of a second each may be ahead for a wait of 5 s and less; the seventh goes on."""
    router = Router(3, EXPECTATIONS)

    assert [router.take(EXCLUSIVE) for _ in range(13)] == [0] * 6 + [1] * 6 + [2]


def test_where_all_are_over_the_threshold_the_shortest_wait_wins() -> None:
    """A full fleet is filled evenly."""
    router = Router(2, EXPECTATIONS)

    assert [router.take(EXCLUSIVE) for _ in range(16)][12:] == [0, 1, 0, 1]


def test_shared_requests_avoid_exclusive_work() -> None:
    """They spread over the replicas that have none."""
    router = Router(3, EXPECTATIONS)
    router.take(EXCLUSIVE)

    assert [router.take(SHARED) for _ in range(4)] == [1, 2, 1, 2]
    for _ in range(4):
        router.take(EXCLUSIVE)
    assert {load.exclusive > 0 for load in router.loads[:1]} == {True}


def test_the_default_threshold_is_the_gateways() -> None:
    """The command line cannot import the scheduler; this holds the two together."""
    assert Queueing().spill == DEFAULT_SPILL
