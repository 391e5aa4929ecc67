"""Which replica takes a request, and the way to its lease.

Posture comes first: a replica that lacks a mitigation of the plan is no candidate, unless the caller asked for a
report instead. A plan with mitigations stays in one pool (`app.scheduling.pools`), so that repeats meet one posture.
Among what is left `app.scheduling.choice` decides. The choice is synchronous; only the lease waits.

A replica with the guard holds its own gate inside the engine's server, so any number of gateways meet there and this
module only counts. For a replica without one the gate runs here, and an exclusive lease begins once the engine's own
metrics show nothing running and nothing waiting: a request whose client left may still be computing.

A replica that fails its probes is passed over while another one is healthy. When none is, those that were ever
healthy are tried all the same: the last replica is never ejected.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType, TracebackType
from typing import Final

from app.determinism.mode import Mitigation
from app.determinism.plan import OnUnavailable, Plan
from app.errors import DeterminismUnavailable, ModelNotFound, NotReady
from app.scheduling.choice import for_exclusive, for_shared
from app.scheduling.gate import Gate, GatePolicy
from app.scheduling.lease import Lease, applied_of
from app.scheduling.pools import Pool, Pools
from app.scheduling.slot import Slot
from app.scheduling.ticket import Admission, Ticket
from app.upstream.drain import DrainProof
from app.upstream.replica import Replica, ReplicaStatus

_LOST_RETRY: Final = 2.0
"""Seconds after which a request whose replica was lost may find another one, or the same again."""


@dataclass(frozen=True, slots=True)
class Queueing:
    """How requests wait; times in seconds.

    ``patience``: the longest wait for a turn. ``spill``: the expected wait at which exclusive requests go to another
    replica. ``drain_timeout``: how long a replica without the guard may take to run empty, which is looked at every
    ``drain_interval``.
    """

    patience: float = 300.0
    spill: float = 5.0
    drain_timeout: float = 30.0
    drain_interval: float = 0.02


@dataclass(frozen=True, slots=True)
class Asking:
    """Who asks: ``key`` names the caller, whose exclusive seconds are bounded; a lower ``priority`` goes first."""

    key: str = ""
    priority: int = 0


ANYBODY: Final = Asking()
DEFAULT_POLICY: Final = GatePolicy()
_NOTHING: Final[Mapping[Mitigation, str]] = MappingProxyType({})
DEFAULT_QUEUEING: Final = Queueing()


@dataclass(frozen=True, slots=True)
class Prospect:
    """What one replica would be for a plan: what it lacks, and the expected wait in seconds."""

    replica: Replica
    posture: str
    healthy: bool
    missing: Mapping[Mitigation, str]
    expected_wait: float
    in_pool: bool


class Scheduler:
    """Chooses replicas and hands out leases.

    ``served`` holds the models of all replicas; ``by_priority`` says that every engine schedules by priority; after
    ``retire`` it is not ready any more, but serves on. ``clock`` gives monotonic seconds.
    """

    def __init__(
        self,
        replicas: tuple[Replica, ...],
        proof: DrainProof,
        *,
        clock: Callable[[], float],
        policy: GatePolicy = DEFAULT_POLICY,
        queueing: Queueing = DEFAULT_QUEUEING,
    ) -> None:
        self.slots = {replica: Slot(replica, Gate(policy, clock=clock)) for replica in replicas}
        self.pools = Pools()
        self.served: frozenset[str] = frozenset()
        self.by_priority = False
        self.queueing = queueing
        self.retired = False
        self._proof = proof
        self.clock = clock

    def update(self, replica: Replica, status: ReplicaStatus) -> None:
        """Take over what a probe saw."""
        self.slots[replica].status = status
        statuses = [slot.status for slot in self.slots.values()]
        self.served = frozenset().union(*(status.served for status in statuses))
        self.by_priority = all(status.posture.scheduling_policy == "priority" for status in statuses)

    def retire(self) -> None:
        """Tell whoever asks for readiness that no more requests should be sent here."""
        self.retired = True

    @property
    def ready(self) -> bool:
        """Whether at least one replica is healthy, and the gateway means to stay."""
        return not self.retired and any(slot.status.healthy for slot in self.slots.values())

    def lease(
        self,
        plan: Plan,
        asking: Asking = ANYBODY,
        *,
        without: Replica | None = None,
        prefer: Replica | None = None,
    ) -> "_Leasing":
        """Hold a replica that fits the plan, as an async context manager; ``without`` is not considered.

        ``prefer`` is taken, where it fits, unless another one's expected wait is shorter by more than the spill.

        Entering raises ModelNotFound, NotReady (no replica to ask, or it was lost meanwhile), DeterminismUnavailable
        naming the mitigation and the reason, and for replicas without the guard QueueFull and QueueTimeout.
        """
        return _Leasing(self, plan, asking, without, prefer)

    def choose(
        self, plan: Plan, *, without: Replica | None = None, prefer: Replica | None = None, establish: bool = True
    ) -> tuple[Slot, Mapping[Mitigation, str]]:
        """The slot for a plan, and what it lacks (empty unless the caller wants a report). Raises as `lease` does.

        ``establish``: the choice may found the plan's pool.
        """
        serving = self._serving(plan, without)
        if not plan.mitigations:
            return _for_shared(serving), _NOTHING
        candidates = [(slot, slot.missing(plan)) for slot in serving]
        fewest = min(len(missing) for _, missing in candidates)
        if fewest and plan.on_unavailable is OnUnavailable.REJECT:
            raise DeterminismUnavailable(_unavailable_text(plan, candidates), param="determinism")
        fit = [slot for slot, missing in candidates if len(missing) == fewest]
        pool = self._pool(plan, fit, establish=establish)
        wait = partial(Slot.expected_wait, admission=Admission.EXCLUSIVE if plan.exclusive else Admission.SHARED)
        kept = next((slot for slot in pool if slot.replica is prefer), None)
        if kept is not None and wait(kept) <= min(map(wait, pool)) + self.queueing.spill:
            slot = kept
        elif plan.exclusive:
            slot = for_exclusive(pool, wait=wait, spill=self.queueing.spill)
        else:
            slot = _for_shared(pool)
        return slot, slot.missing(plan)

    def survey(self, plan: Plan) -> tuple[Prospect, ...]:
        """What every replica that serves the model would be for a plan. Raises ModelNotFound and NotReady."""
        serving = self._serving(plan, None)
        fewest = min(len(slot.missing(plan)) for slot in serving)
        fit = [slot for slot in serving if len(slot.missing(plan)) == fewest]
        pool = self._pool(plan, fit, establish=False) if plan.mitigations else fit
        return tuple(
            Prospect(
                slot.replica,
                slot.status.digest,
                slot.status.healthy,
                slot.missing(plan),
                slot.expected_wait(_admission(plan, slot.missing(plan))),
                slot in pool,
            )
            for slot in serving
        )

    def pool(self, plan: Plan) -> Pool | None:
        """The pool of a plan, where one was established."""
        return self.pools.of(plan)

    def another(self, plan: Plan, without: Replica) -> bool:
        """Whether a plan that could not reach a replica has another one to go to, of the same pool if it has one."""
        try:
            slot, _ = self.choose(plan, without=without, establish=False)
        except (NotReady, ModelNotFound):
            return False
        pool = self.pool(plan) if plan.mitigations else None
        return pool is None or pool.posture == slot.status.digest

    def still_fits(self, slot: Slot, plan: Plan, before: ReplicaStatus) -> Mapping[Mitigation, str]:
        """What a slot that was chosen ``before`` lacks after a wait. Raises as `choose` does."""
        if before.healthy and not slot.status.healthy:
            raise NotReady(
                f"Replica {slot.replica.name} was lost while the request waited: {slot.status.problem}.",
                retry_after=_LOST_RETRY,
            )
        if plan.mitigations and slot.status.digest != before.digest:
            raise NotReady(
                f"Replica {slot.replica.name} changed its posture while the request waited.", retry_after=_LOST_RETRY
            )
        missing = slot.missing(plan)
        if missing and plan.on_unavailable is OnUnavailable.REJECT:
            raise DeterminismUnavailable(_unavailable_text(plan, [(slot, missing)]), param="determinism")
        return missing

    async def prove_drained(self, slot: Slot, before: ReplicaStatus) -> None:
        """Wait until the engine itself shows nothing running, or is seen to be lost.

        Raises DeterminismUnavailable in the end, and UpstreamUnavailable where it cannot be reached.
        """
        deadline, interval = self.queueing.drain_timeout, self.queueing.drain_interval

        def lost() -> bool:
            return before.healthy and not slot.status.healthy

        drained = await self._proof.drained(slot.replica, deadline=deadline, interval=interval, lost=lost)
        if not drained and not lost():
            raise DeterminismUnavailable(
                f"'{Mitigation.BATCH_ISOLATION}' is unavailable: replica {slot.replica.name} did not run empty within "
                f"{deadline:g} s; other clients reach it past this gateway.",
                param="determinism",
                retry_after=_LOST_RETRY,
            )

    def _pool(self, plan: Plan, fit: list[Slot], *, establish: bool) -> list[Slot]:
        """Those of the replicas that fit that are of the plan's pool.

        Where none was founded yet, exclusive requests found theirs on engines that run one sequence at a time, if there
        are any: nobody is driven out there.
        """
        if plan.exclusive:
            fit = sorted(fit, key=lambda slot: not slot.status.serial)
        return self.pools.members(plan, fit, establish=establish)

    def _serving(self, plan: Plan, without: Replica | None) -> list[Slot]:
        """The replicas that may be asked for the plan's model, in the operator's order, never none."""
        known = [slot for slot in self.slots.values() if slot.replica is not without and slot.status.models]
        if not known:
            problems = "; ".join(f"{slot.replica.name}: {slot.status.problem}" for slot in self.slots.values())
            raise NotReady(f"No replica is ready ({problems}).", retry_after=_LOST_RETRY)
        serving = [slot for slot in known if plan.model is None or plan.model in slot.status.served]
        if not serving:
            raise ModelNotFound(f"The model '{_cut(plan.model)}' does not exist.", param="model")
        return [slot for slot in serving if slot.status.healthy] or serving


def _admission(plan: Plan, missing: Mapping[Mitigation, str]) -> Admission:
    isolated = plan.exclusive and Mitigation.BATCH_ISOLATION not in missing
    return Admission.EXCLUSIVE if isolated else Admission.SHARED


def _for_shared(slots: list[Slot]) -> Slot:
    if len(slots) == 1:
        return slots[0]
    return for_shared(slots, exclusive=lambda each: each.exclusive_backlog, leases=lambda each: each.leases)


class _Leasing:
    """The lease of one request. A class and not a generator: every request passes here."""

    __slots__ = ("_asking", "_exclusive", "_plan", "_prefer", "_scheduler", "_slot", "_ticket", "_without")

    @property
    def replica(self) -> Replica:
        """The replica that was chosen. Only after the choice."""
        assert self._slot is not None  # noqa: S101 - the order of calls; never depends on input
        return self._slot.replica

    def __init__(
        self, scheduler: Scheduler, plan: Plan, asking: Asking, without: Replica | None, prefer: Replica | None
    ) -> None:
        self._scheduler = scheduler
        self._plan = plan
        self._asking = asking
        self._without = without
        self._prefer = prefer
        self._exclusive = 0
        self._slot: Slot | None = None
        self._ticket: Ticket | None = None

    async def __aenter__(self) -> Lease:
        slot, missing = self._scheduler.choose(self._plan, without=self._without, prefer=self._prefer)
        admission = _admission(self._plan, missing)
        isolated = admission is Admission.EXCLUSIVE
        status = slot.status
        self._exclusive = int(isolated)
        slot.leases += 1
        slot.exclusive += self._exclusive
        self._slot = slot
        if status.guarded:
            applied = applied_of(self._plan, status, missing)
            return Lease(slot.replica, status, admission, applied, missing, 0.0, None, status.digest)
        try:
            self._ticket = ticket = await slot.gate.acquire(
                admission,
                key=self._asking.key,
                priority=self._asking.priority,
                patience=self._scheduler.queueing.patience,
            )
            if isolated:
                await self._scheduler.prove_drained(slot, status)
            # The wait may have been long: what is leased is the replica as it is now.
            missing = self._scheduler.still_fits(slot, self._plan, status)
        except BaseException:
            self._release(slot)
            raise
        waited = self._scheduler.clock() - ticket.asked
        status = slot.status
        applied = applied_of(self._plan, status, missing)
        return Lease(slot.replica, status, admission, applied, missing, waited, ticket, status.digest)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._slot is not None:
            self._release(self._slot)

    def _release(self, slot: Slot) -> None:
        slot.leases -= 1
        slot.exclusive -= self._exclusive
        if self._ticket is not None:
            slot.gate.release(self._ticket)


def _unavailable_text(plan: Plan, candidates: list[tuple[Slot, Mapping[Mitigation, str]]]) -> str:
    """Each mitigation that no single replica can add to the others, with each replica's reason."""
    wanted = [m for m in Mitigation if any(m in missing for _, missing in candidates)]
    parts = [
        f"'{mitigation}' is unavailable: "
        + ", ".join(
            f"{missing[mitigation]} on {slot.replica.name}" for slot, missing in candidates if mitigation in missing
        )
        for mitigation in wanted
    ]
    return f"Mode '{plan.mode}' cannot be honoured. {'; '.join(parts)}."


def _cut(name: str | None) -> str:
    return (name or "")[:80]
