"""Who is in, who is out, and when a replica is looked at again."""

from collections.abc import Callable
from dataclasses import replace

import anyio
import pytest
from anyio import wait_all_tasks_blocked

from app.upstream.prober import Prober
from app.upstream.replica import GateView, Replica, ReplicaStatus
from app.upstream.watchdog import Watchdog

pytestmark = pytest.mark.anyio

A, B = (Replica.at(f"http://127.0.0.1:{port}") for port in (1, 2))
HEALTHY = ReplicaStatus(healthy=True, problem="", models=({"id": "m"},), digest="p-1")
SICK = ReplicaStatus(problem="sick")
OUT = replace(HEALTHY, healthy=False, problem="sick")
BACK = replace(OUT, problem="it answers again, and has to do so once more")


class Scripted(Prober):
    """A prober whose answers are the test's."""

    def __init__(self, answer: Callable[[Replica], ReplicaStatus]) -> None:
        self.answer = answer
        self.asked: list[Replica] = []

    async def observe(self, replica: Replica) -> ReplicaStatus:
        """Answer."""
        self.asked.append(replica)
        return self.answer(replica)


class Told:
    """A watchdog over scripted probes, and what it told."""

    def __init__(self, answer: Callable[[Replica], ReplicaStatus], *replicas: Replica, interval: float = 60.0) -> None:
        self.seen: list[ReplicaStatus] = []
        self.changes: list[ReplicaStatus] = []
        self.prober = Scripted(answer)
        self.watchdog = Watchdog(
            replicas or (A,),
            self.prober,
            interval=interval,
            failures=3,
            successes=2,
            seen=lambda _, status: self.seen.append(status),
            changed=lambda _, status: self.changes.append(status),
            chance=lambda: 0.5,
        )


@pytest.mark.parametrize(
    ("story", "changes"),
    [
        ([HEALTHY, SICK, HEALTHY, SICK, SICK, HEALTHY, HEALTHY], [HEALTHY]),
        ([HEALTHY, SICK, SICK, SICK, SICK], [HEALTHY, OUT]),
        ([HEALTHY, SICK, SICK, SICK, HEALTHY, SICK, HEALTHY, HEALTHY], [HEALTHY, OUT, BACK, OUT, BACK, HEALTHY]),
        ([SICK, SICK, HEALTHY], [SICK, HEALTHY]),
    ],
    ids=["single failures", "three in a row", "two good ones in a row", "the first good one"],
)
async def test_consecutive_probes_decide(story: list[ReplicaStatus], changes: list[ReplicaStatus]) -> None:
    """Three failures in a row take a replica out, with what was known of it kept; two successes bring it back."""
    left = list(story)
    told = Told(lambda _: left.pop(0))
    for _ in story:
        await told.watchdog.look_at(A)
    assert told.changes == changes
    assert len(told.seen) == len(story)


async def test_the_gates_figures_are_seen_and_are_no_change() -> None:
    """They differ at every probe, as does vLLM's stamp on its models; nobody is told of another status for it."""
    waiting = iter(range(5))

    def answer(_: Replica) -> ReplicaStatus:
        number = next(waiting)
        return replace(HEALTHY, gate=GateView(waiting_shared=number), models=({"id": "m", "created": number},))

    told = Told(answer)
    for _ in range(3):
        await told.watchdog.look_at(A)
    assert [status.gate.waiting_shared for status in told.seen] == [0, 1, 2]
    assert len(told.changes) == 1


async def test_it_outlives_a_probe_that_fails() -> None:
    """Whatever goes wrong in a probe is an unhealthy replica, and the next probe is made."""

    def broken(_: Replica) -> ReplicaStatus:
        raise RuntimeError("a fault of ours")

    told = Told(broken)
    for _ in range(2):
        await told.watchdog.look_at(A)
    assert [status.problem for status in told.changes] == ["its probe failed (RuntimeError)"]


async def test_a_slow_replica_delays_no_other() -> None:
    """Each is watched on its own."""
    told = Told(lambda _: HEALTHY, A, B, interval=0.001)
    stuck = anyio.Event()

    async def observe(replica: Replica) -> ReplicaStatus:
        told.prober.asked.append(replica)
        if replica == A:
            await stuck.wait()
        return HEALTHY

    told.prober.observe = observe  # type: ignore[method-assign]  # this test's own object
    async with anyio.create_task_group() as group:
        group.start_soon(told.watchdog.run)
        with anyio.fail_after(5):
            while told.prober.asked.count(B) < 3:
                await anyio.lowlevel.checkpoint()
        assert told.prober.asked.count(A) == 1
        group.cancel_scope.cancel()


async def test_a_suspicion_is_looked_into_before_its_time() -> None:
    """Traffic that could not reach a replica does not judge it, but has it looked at after a short rest."""
    told = Told(lambda _: HEALTHY, interval=3600.0)
    async with anyio.create_task_group() as group:
        group.start_soon(told.watchdog.run)
        await wait_all_tasks_blocked()
        assert len(told.prober.asked) == 1
        told.watchdog.suspect(A)
        with anyio.fail_after(5):
            while len(told.prober.asked) < 2:
                await anyio.lowlevel.checkpoint()
        group.cancel_scope.cancel()
