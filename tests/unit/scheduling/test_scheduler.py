"""Which replica takes a request, and what the lease holds."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest
from anyio import wait_all_tasks_blocked

from app.determinism.mode import MODE_MITIGATIONS, Mitigation, Mode
from app.determinism.plan import OnUnavailable, Plan
from app.determinism.posture import Posture, Provision
from app.errors import DeterminismUnavailable, ModelNotFound, NotReady, QueueFull, QueueTimeout
from app.scheduling.gate import Gate, GatePolicy
from app.scheduling.scheduler import Asking, Queueing, Scheduler
from app.scheduling.ticket import Admission
from app.upstream.drain import DrainProof
from app.upstream.replica import GateView, Replica, ReplicaStatus
from tests.support.running import start

pytestmark = pytest.mark.anyio

A, B, C = (Replica.at(f"http://127.0.0.1:{port}") for port in (1, 2, 3))


def is_idle(gate: Gate) -> bool:
    """Whether nobody runs and nobody waits."""
    said = gate.statistics()
    return said.shared == said.exclusive == said.waiting_shared == said.waiting_exclusive == 0


class Drain(DrainProof):
    """A proof whose word about the drain is given by the test."""

    def __init__(self) -> None:
        self.empty = asyncio.Event()
        self.asked = 0
        self.answer = True

    async def drained(
        self,
        replica: Replica,  # noqa: ARG002 - the parent's
        *,
        deadline: float,  # noqa: ARG002 - the parent's
        interval: float,  # noqa: ARG002 - the parent's
        lost: Callable[[], bool] = lambda: False,  # noqa: ARG002 - the parent's
    ) -> bool:
        """Wait for the test."""
        self.asked += 1
        await self.empty.wait()
        return self.answer


def status(
    held: Mapping[Mitigation, bool] | None = None, *, digest: str = "p-1", guarded: bool = True, model: str = "m"
) -> ReplicaStatus:
    """A healthy replica that holds everything but what is said otherwise."""
    holds = dict.fromkeys(Mitigation, True) | dict(held or {})
    provisions = {m: Provision(held=held_, reason=f"{m} is off") for m, held_ in holds.items()}
    return ReplicaStatus(
        healthy=True, problem="", models=({"id": model},), guarded=guarded, digest=digest, provisions=provisions
    )


def scheduler(*statuses: tuple[Replica, ReplicaStatus], proof: DrainProof | None = None) -> Scheduler:
    """A scheduler over replicas of which the statuses are known."""
    made = Scheduler(tuple(r for r, _ in statuses), proof or Drain(), clock=lambda: 0.0)
    for replica, known in statuses:
        made.update(replica, known)
    return made


def plan(mode: Mode, on_unavailable: OnUnavailable = OnUnavailable.REJECT, model: str | None = "m") -> Plan:
    """The plan of a mode."""
    return Plan(mode, model, MODE_MITIGATIONS[mode], on_unavailable)


def test_the_replica_with_the_fewest_leases_wins() -> None:
    """Ordinary requests spread over all healthy replicas that serve the model."""
    made = scheduler((A, status()), (B, status(digest="p-2")), (C, status(model="other")))
    made.slots[A].leases = 2
    made.slots[B].leases = 1

    assert made.choose(plan(Mode.STANDARD))[0].replica == B
    assert made.choose(plan(Mode.STANDARD, model="other"))[0].replica == C
    assert made.choose(plan(Mode.STANDARD, model=None))[0].replica == C


def test_a_plan_with_mitigations_stays_in_one_pool() -> None:
    """Repeats meet the same posture, the first in the operator's order, even where another replica is idle."""
    made = scheduler((A, status(digest="p-1")), (B, status(digest="p-2")), (C, status(digest="p-1")))
    made.slots[A].leases = 5

    assert made.choose(plan(Mode.SEEDED))[0].replica == C
    made.slots[C].leases = 9
    assert made.choose(plan(Mode.SEEDED))[0].replica == A
    assert made.choose(plan(Mode.ISOLATED))[0].replica == A


def busy(seconds: float, **more: int) -> GateView:
    """A gate at which an exclusive request would wait so long."""
    return GateView(expected_wait_exclusive=seconds, **more)


def test_exclusive_work_stays_on_the_first_replica_while_its_wait_is_bearable() -> None:
    """Then the next one takes over; where all are over the border, the shortest wait decides."""
    made = scheduler((A, status()), (B, status()), (C, status()))

    def chosen(*waits: float) -> Replica:
        for replica, seconds in zip((A, B, C), waits, strict=True):
            made.update(replica, replace(status(), gate=busy(seconds)))
        return made.choose(plan(Mode.ISOLATED))[0].replica

    assert chosen(0, 0, 0) == A
    assert chosen(5, 0, 0) == A
    assert chosen(6, 0, 0) == B
    assert chosen(6, 9, 5.5) == C


@pytest.mark.parametrize("mode", [Mode.ISOLATED, Mode.SEEDED])
def test_a_replica_that_is_preferred_is_kept_while_no_other_one_is_quicker_by_the_spill(mode: Mode) -> None:
    """What it holds of an earlier request is worth so much of a wait; it is no matter how long all of them wait."""
    made = scheduler((A, status()), (B, status()), (C, status()))

    def chosen(*waits: float, prefer: Replica | None = C) -> Replica:
        for replica, seconds in zip((A, B, C), waits, strict=True):
            gate = GateView(expected_wait_exclusive=seconds, expected_wait_shared=seconds)
            made.update(replica, replace(status(), gate=gate))
        return made.choose(plan(mode), prefer=prefer)[0].replica

    assert chosen(0, 0, 0) == C
    assert chosen(0, 0, 5) == C
    assert chosen(0, 0, 5.5) == A
    assert chosen(60, 58, 62) == C
    assert chosen(60, 50, 62) != C
    assert chosen(0, 0, 0, prefer=None) == A


def test_a_replica_that_does_not_fit_is_not_preferred() -> None:
    """Nor one that is out, of another posture, or not to be asked."""
    isolated = plan(Mode.ISOLATED)
    made = scheduler((A, status()), (B, status()), (C, status(digest="p-2")))
    assert made.choose(isolated, prefer=C)[0].replica == A
    assert made.choose(isolated, prefer=B, without=B)[0].replica == A
    assert made.choose(isolated, prefer=B)[0].replica == B
    made.update(B, replace(status(), healthy=False))
    assert made.choose(isolated, prefer=B)[0].replica == A
    made.update(B, status({Mitigation.BATCH_ISOLATION: False}))
    assert made.choose(isolated, prefer=B)[0].replica == A


async def test_a_lease_goes_where_it_is_preferred() -> None:
    """While the block is entered."""
    made = scheduler((A, status()), (B, status()))
    async with made.lease(plan(Mode.ISOLATED), prefer=B) as lease:
        assert lease.replica == B


def test_our_own_exclusive_requests_count_before_the_next_probe() -> None:
    """What this gateway sent since the last probe is in the estimate."""
    made = scheduler((A, replace(status(), gate=GateView(exclusive_run_seconds=10.0))), (B, status()))
    made.slots[A].exclusive = 4
    assert made.choose(plan(Mode.ISOLATED))[0].replica == B


def test_shared_work_avoids_replicas_with_exclusive_work() -> None:
    """Ours or other gateways', however many leases the others have: the fewest decide, then the fewest leases."""
    made = scheduler((A, status()), (B, status()))
    made.slots[B].leases = 7
    made.slots[A].exclusive = made.slots[A].leases = 1
    assert made.choose(plan(Mode.STANDARD))[0].replica == B
    made.slots[A].exclusive = made.slots[A].leases = 0
    assert made.choose(plan(Mode.STANDARD))[0].replica == A
    made.update(A, replace(status(), gate=GateView(waiting_exclusive=1)))
    assert made.choose(plan(Mode.STANDARD))[0].replica == B
    made.update(B, replace(status(), gate=GateView(exclusive=1)))
    assert made.choose(plan(Mode.STANDARD))[0].replica == A
    made.update(A, replace(status(), gate=GateView(exclusive=1, waiting_exclusive=1)))
    assert made.choose(plan(Mode.STANDARD))[0].replica == B


def test_an_engine_of_one_sequence_comes_first_for_exclusive_work() -> None:
    """Nobody is driven out there, so isolated requests found their pool on it; shared ones go there last."""
    serial = replace(status(digest="p-2"), posture=Posture(max_sequences=1))
    made = scheduler((A, status()), (B, serial), (C, replace(serial)))
    assert [each.in_pool for each in made.survey(plan(Mode.ISOLATED))] == [False, True, True]
    assert made.choose(plan(Mode.ISOLATED))[0].replica == B
    made.slots[A].leases = 40
    assert made.choose(plan(Mode.STANDARD))[0].replica == A
    made.update(A, replace(status(), healthy=False))
    assert made.choose(plan(Mode.STANDARD))[0].replica == B


def test_a_replica_with_another_posture_leaves_the_pool_until_it_matches() -> None:
    """The pool stays with its posture while anybody has it; when nobody has, another posture starts a new epoch."""
    made = scheduler((A, status(digest="p-1")), (B, status(digest="p-1")))
    isolated = plan(Mode.ISOLATED)

    def epoch() -> int:
        pool = made.pool(isolated)
        assert pool is not None
        return pool.epoch

    assert made.choose(isolated)[0].replica == A
    made.update(A, status(digest="p-2"))
    assert made.choose(isolated)[0].replica == B
    made.update(A, status(digest="p-1"))
    assert (made.choose(isolated)[0].replica, epoch()) == (A, 1)
    made.update(A, status(digest="p-2"))
    made.update(B, replace(status(digest="p-1"), healthy=False))
    assert (made.choose(isolated)[0].replica, epoch()) == (A, 2)
    made.update(B, status(digest="p-1"))
    assert (made.choose(isolated)[0].replica, epoch()) == (A, 2)


def test_a_survey_founds_nothing() -> None:
    """Looking is not choosing: the pool is founded by the first request alone."""
    made = scheduler((A, status(digest="p-1")), (B, status({Mitigation.EAGER: False}, digest="p-2")))
    hardened = plan(Mode.HARDENED)
    first, second = made.survey(hardened)
    assert (first.in_pool, second.in_pool) == (True, False)
    assert second.missing == {Mitigation.EAGER: "eager is off"}
    made.choose(hardened, establish=False)
    assert made.pool(hardened) is None


def test_the_last_replica_is_never_ejected() -> None:
    """One that fails its probes is passed over while another is healthy, and tried when none is."""
    down = replace(status(), healthy=False, problem="gone")
    made = scheduler((A, down), (B, status()))
    assert made.choose(plan(Mode.STANDARD))[0].replica == B
    assert made.ready
    made.update(B, replace(status(), healthy=False, problem="gone too"))
    assert made.choose(plan(Mode.ISOLATED))[0].replica == A
    assert not made.ready


def test_retired_is_not_ready_but_serves_on() -> None:
    """Readiness is for who asks; requests that come all the same are served."""
    made = scheduler((A, status()))
    made.retire()
    assert not made.ready
    assert made.choose(plan(Mode.STANDARD))[0].replica == A


def test_another_replica_is_one_of_the_same_pool() -> None:
    """A retry of a deterministic request stays in its pool; without another replica there is none."""
    made = scheduler((A, status(digest="p-1")), (B, status(digest="p-2")))
    isolated = plan(Mode.ISOLATED)
    made.choose(isolated)
    assert made.another(plan(Mode.STANDARD), A)
    assert not made.another(isolated, A)
    made.update(B, status(digest="p-1"))
    assert made.another(isolated, A)
    assert not scheduler((A, status())).another(plan(Mode.STANDARD), A)


async def test_a_replica_that_is_lost_while_a_request_waits() -> None:
    """503 that says so, with a time to come back; nothing is held."""
    drain = Drain()
    made = scheduler((A, status(guarded=False)), proof=drain)
    task = start(made.lease(plan(Mode.ISOLATED)).__aenter__())
    await wait_all_tasks_blocked()
    made.update(A, replace(status(guarded=False), healthy=False, problem="died"))
    drain.empty.set()
    with pytest.raises(NotReady, match="lost while the request waited: died") as lost:
        await task
    assert lost.value.retry_after_header == b"2"
    assert is_idle(made.slots[A].gate)
    assert made.slots[A].leases == made.slots[A].exclusive == 0


async def test_a_full_queue_and_an_expired_wait() -> None:
    """The gateway's own gate is bounded like the guard's; both errors say when to come back."""
    drain = Drain()
    made = Scheduler(
        (A,),
        drain,
        clock=lambda: 0.0,
        policy=GatePolicy(most_exclusive=1),
        queueing=Queueing(patience=0.01),
    )
    made.update(A, status(guarded=False))
    async with made.lease(plan(Mode.STANDARD)):
        waiting = start(made.lease(plan(Mode.ISOLATED), Asking("key", 3)).__aenter__())
        await asyncio.sleep(0)
        with pytest.raises(QueueFull) as full:
            await made.lease(plan(Mode.ISOLATED)).__aenter__()
        with pytest.raises(QueueTimeout) as late:
            await waiting
    assert full.value.retry_after_header == late.value.retry_after_header == b"1"
    assert is_idle(made.slots[A].gate)
    assert made.slots[A].leases == made.slots[A].exclusive == 0


def test_posture_comes_first() -> None:
    """A replica that lacks a mitigation is no candidate, however idle."""
    made = scheduler((A, status({Mitigation.EAGER: False})), (B, status(digest="p-2")))
    made.slots[B].leases = 9

    assert made.choose(plan(Mode.HARDENED))[0].replica == B
    assert made.choose(plan(Mode.STANDARD))[0].replica == A


def test_what_no_replica_holds_is_named_with_the_reason() -> None:
    """The error names every mitigation that is missing somewhere, and why, replica by replica."""
    made = scheduler((A, status({Mitigation.EAGER: False})), (B, status({Mitigation.BATCH_ISOLATION: False})))

    with pytest.raises(DeterminismUnavailable) as caught:
        made.choose(plan(Mode.HARDENED))

    assert "'eager' is unavailable: eager is off on 127.0.0.1:1" in caught.value.message
    assert "'batch_isolation' is unavailable: batch_isolation is off on 127.0.0.1:2" in caught.value.message


async def test_a_report_takes_the_replica_that_lacks_least() -> None:
    """With on_unavailable=report the request runs, shared where isolation is what is missing, and the lease says so."""
    made = scheduler((A, status({Mitigation.EAGER: False, Mitigation.BATCH_ISOLATION: False})))

    async with made.lease(plan(Mode.HARDENED, OnUnavailable.REPORT)) as lease:
        assert set(lease.missing) == {Mitigation.EAGER, Mitigation.BATCH_ISOLATION}
        assert lease.admission is Admission.SHARED
        assert Mitigation.EAGER not in lease.applied


async def test_what_an_answer_counts_as() -> None:
    """A mode in full counts as itself; with additions as a variant of it; with something missing as custom."""
    made = scheduler((A, status({Mitigation.EAGER: False})))
    added = Plan(Mode.ISOLATED, "m", MODE_MITIGATIONS[Mode.ISOLATED] | {Mitigation.TINY_TEMPERATURE})

    async with made.lease(plan(Mode.ISOLATED)) as full, made.lease(added) as more:
        assert full.counts_as(plan(Mode.ISOLATED)) == (Mode.ISOLATED, "")
        mode, applied = more.counts_as(added)
        assert (mode, applied) == (Mode.ISOLATED, "batch_isolation,cache_bypass,tiny_temperature,pinned_seed")
    lacking = plan(Mode.HARDENED, OnUnavailable.REPORT)
    async with made.lease(lacking) as less:
        mode, applied = less.counts_as(lacking)
        assert mode is Mode.CUSTOM
        assert "eager" not in applied


async def test_hardened_adds_invariance_where_the_posture_has_it() -> None:
    """Batch invariance counts as applied in `hardened` where it is held, and is not missed where it is not."""
    for held in (True, False):
        made = scheduler((A, status({Mitigation.BATCH_INVARIANCE: held})))
        async with made.lease(plan(Mode.HARDENED)) as lease:
            assert held is (Mitigation.BATCH_INVARIANCE in lease.applied)
            assert lease.missing == {}


def test_nothing_healthy_and_nothing_served() -> None:
    """No healthy replica is a 503 with each one's problem; an unknown model a 404."""
    with pytest.raises(NotReady, match=r"127\.0\.0\.1:1: not probed yet"):
        Scheduler((A,), Drain(), clock=lambda: 0.0).choose(plan(Mode.STANDARD))
    with pytest.raises(ModelNotFound, match="'none'"):
        scheduler((A, status())).choose(plan(Mode.STANDARD, model="none"))


async def test_leases_are_counted_and_given_back() -> None:
    """Whatever ends the block, the count goes back."""
    made = scheduler((A, status()))

    async def fail() -> None:
        async with made.lease(plan(Mode.STANDARD)):
            assert made.slots[A].leases == 1
            raise ValueError("inside")

    with pytest.raises(ValueError, match="inside"):
        await fail()
    assert made.slots[A].leases == 0


def test_priority_is_kept_only_where_every_engine_schedules_by_it() -> None:
    """An engine that does not would refuse the member."""
    by_priority = replace(status(), posture=Posture(scheduling_policy="priority"))
    assert scheduler((A, by_priority)).by_priority
    assert not scheduler((A, by_priority), (B, status())).by_priority


@pytest.mark.parametrize("phase", ["queued", "draining", "held"])
async def test_cancelled_at_every_await_under_a_lease(phase: str) -> None:
    """In the queue of the gateway's gate, in the drain proof and while it is held: nothing stays behind."""
    drain = Drain()
    made = scheduler((A, status(guarded=False)), proof=drain)
    gate = made.slots[A].gate
    holder = await gate.acquire(Admission.SHARED) if phase == "queued" else None
    if phase == "held":
        drain.empty.set()

    async def use() -> None:
        async with made.lease(plan(Mode.ISOLATED)):
            await asyncio.Event().wait()

    task = start(use())
    await wait_all_tasks_blocked()
    assert made.slots[A].leases == 1
    assert gate.statistics().waiting_exclusive == (phase == "queued")

    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    if holder is not None:
        gate.release(holder)

    assert made.slots[A].leases == 0
    assert is_idle(gate)


async def test_an_exclusive_lease_without_a_guard_needs_the_proof() -> None:
    """The gate alone is not enough: an engine that does not run empty is an error, and the gate is free again."""
    drain = Drain()
    drain.answer = False
    drain.empty.set()
    made = scheduler((A, status(guarded=False)), proof=drain)

    with pytest.raises(DeterminismUnavailable, match="did not run empty"):
        await made.lease(plan(Mode.ISOLATED)).__aenter__()
    async with made.lease(plan(Mode.STANDARD)) as lease:
        assert lease.peak == 1

    assert drain.asked == 1
    assert is_idle(made.slots[A].gate)
