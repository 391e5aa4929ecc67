"""Which replica takes a request, and the lease on it.

Posture comes first: a replica that lacks a mitigation of the plan is no candidate, unless the caller asked for a
report instead. A plan with mitigations stays in one pool, that is, on replicas of one posture: the first in the
operator's order, so that repeats meet the same posture. Within it the replica with the fewest leases wins. The choice
is synchronous; only the lease waits.

A replica with the guard holds its own gate inside the engine's server, so any number of gateways meet there and this
module only counts. For a replica without one the gate runs here, and an exclusive lease begins once the engine's own
metrics show nothing running and nothing waiting: a request whose client left may still be computing.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType, TracebackType
from typing import Final

from app.determinism.mode import MODE_MITIGATIONS, POSTURE_MITIGATIONS, Mitigation, Mode
from app.determinism.plan import OnUnavailable, Plan
from app.determinism.posture import Provision
from app.errors import DeterminismUnavailable, ModelNotFound, NotReady
from app.scheduling.gate import Admission, Gate, Ticket
from app.upstream.prober import Prober
from app.upstream.replica import Replica, ReplicaStatus
from app.upstream.word import GuardsWord

_ROUTED: Final = POSTURE_MITIGATIONS | {Mitigation.BATCH_ISOLATION}
"""Mitigations that depend on the replica; the others are edits of the request."""

_NONE_MISSING: Final[Mapping[Mitigation, str]] = MappingProxyType({})


class Slot:
    """One replica as the scheduler sees it: its latest status, its gate, and how many leases run."""

    def __init__(self, replica: Replica, exclusive_run: int) -> None:
        self.replica = replica
        self.status = ReplicaStatus()
        self.gate = Gate(exclusive_run)
        self.leases = 0

    def provisions(self) -> Mapping[Mitigation, Provision]:
        """What the replica honours of the mitigations that depend on it."""
        return {mitigation: self.status.provides(mitigation) for mitigation in Mitigation if mitigation in _ROUTED}

    def missing(self, plan: Plan) -> Mapping[Mitigation, str]:
        """The mitigations of a plan that this replica does not honour, each with the reason."""
        if not plan.mitigations:
            return _NONE_MISSING
        provisions = {mitigation: self.status.provides(mitigation) for mitigation in plan.mitigations & _ROUTED}
        return {mitigation: provision.reason for mitigation, provision in provisions.items() if not provision.held}


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to run on a replica now. ``waited`` is in seconds."""

    replica: Replica
    status: ReplicaStatus
    admission: Admission
    applied: tuple[Mitigation, ...]
    missing: Mapping[Mitigation, str]
    waited: float
    ticket: Ticket | None
    posture: str

    def confirmed(self, plan: Plan, word: GuardsWord, status: int) -> "Lease":
        """The lease with the guard's own word on this answer in place of the last probe's.

        Raises DeterminismUnavailable where the engine that answered is not the one that was probed, or did not run the
        request alone. An answer that is an error (``status`` 400 and above) claims nothing.
        """
        if not self.status.guarded or status >= 400:  # noqa: PLR2004 - HTTP's border between answers and errors
            return self
        lease = self if word.posture in {None, self.posture} else replace(self, posture=str(word.posture))
        broken = lease.broken_promises(word)
        if not broken:
            return lease
        if plan.on_unavailable is OnUnavailable.REJECT:
            said = "; ".join(f"'{mitigation}' is unavailable: {reason}" for mitigation, reason in broken.items())
            raise DeterminismUnavailable(f"{said} (replica {self.replica.name}).", param="determinism")
        applied = tuple(mitigation for mitigation in self.applied if mitigation not in broken)
        return replace(lease, applied=applied, missing={**self.missing, **broken})

    def broken_promises(self, word: GuardsWord) -> dict[Mitigation, str]:
        """The mitigations of the lease that the guard's word contradicts or does not confirm, with the reason."""
        promised = [mitigation for mitigation in self.applied if mitigation in _ROUTED]
        if promised and self.posture != self.status.digest:
            return dict.fromkeys(promised, f"the engine that answered has another posture, {self.posture}")
        if promised and word.posture is None:
            return dict.fromkeys(promised, "the guard did not confirm it; the engine may have restarted without it")
        if self.admission is Admission.EXCLUSIVE and word.peak != 1:
            return {Mitigation.BATCH_ISOLATION: f"the guard counted {word.peak} co-resident requests"}
        return {}

    def counts_as(self, plan: Plan) -> tuple[Mode, str]:
        """The mode that the answer counts as, and what was applied where that is not just the mode's own mitigations.

        An answer to which a mitigation of its mode is missing is no evidence for or against the mode: it is custom.
        """
        if not plan.mitigations:
            return plan.mode, ""
        named = frozenset(self.applied) - plan.welcome
        applied = "" if named == MODE_MITIGATIONS.get(plan.mode) else ",".join(self.applied)
        return Mode.CUSTOM if self.missing else plan.mode, applied

    @property
    def peak(self) -> int | None:
        """Co-resident peak by the gateway's own gate; None where the guard counts."""
        return self.ticket.peak if self.ticket is not None else None


class Scheduler:
    """Chooses replicas and hands out leases.

    ``served`` holds the models of all replicas; ``by_priority`` says that every engine schedules by priority.
    """

    def __init__(
        self,
        replicas: tuple[Replica, ...],
        prober: Prober,
        *,
        clock: Callable[[], float],
        drain_timeout: float,
        drain_interval: float = 0.02,
        exclusive_run: int = 8,
    ) -> None:
        self.slots = {replica: Slot(replica, exclusive_run) for replica in replicas}
        self.served: frozenset[str] = frozenset()
        self.by_priority = False
        self._prober = prober
        self.clock = clock
        self._drain_timeout = drain_timeout
        self._drain_interval = drain_interval

    def update(self, replica: Replica, status: ReplicaStatus) -> None:
        """Take over what a probe saw."""
        self.slots[replica].status = status
        statuses = [slot.status for slot in self.slots.values()]
        self.served = frozenset().union(*(status.served for status in statuses))
        self.by_priority = all(status.posture.scheduling_policy == "priority" for status in statuses)

    @property
    def ready(self) -> bool:
        """Whether at least one replica is healthy."""
        return any(slot.status.healthy for slot in self.slots.values())

    def lease(self, plan: Plan) -> "_Leasing":
        """Hold a replica that fits the plan, as an async context manager.

        Entering raises ModelNotFound, NotReady (no healthy replica), or DeterminismUnavailable naming the mitigation
        and the reason.
        """
        return _Leasing(self, plan)

    def choose(self, plan: Plan) -> tuple[Slot, Mapping[Mitigation, str]]:
        """The slot for a plan, and what it lacks (empty unless the caller wants a report). Raises as `lease` does."""
        healthy = [slot for slot in self.slots.values() if slot.status.healthy]
        if not healthy:
            problems = "; ".join(f"{slot.replica.name}: {slot.status.problem}" for slot in self.slots.values())
            raise NotReady(f"No replica is ready ({problems}).")
        serving = [slot for slot in healthy if plan.model is None or plan.model in slot.status.served]
        if not serving:
            raise ModelNotFound(f"The model '{_cut(plan.model)}' does not exist.", param="model")
        candidates = [(slot, slot.missing(plan)) for slot in serving]
        pools: dict[str, int] = {}
        if plan.mitigations:
            for slot in serving:
                pools.setdefault(slot.status.digest, len(pools))
        best = min(candidates, key=lambda each: (len(each[1]), pools.get(each[0].status.digest, 0), each[0].leases))
        if best[1] and plan.on_unavailable is OnUnavailable.REJECT:
            raise DeterminismUnavailable(_unavailable_text(plan, candidates), param="determinism")
        return best

    def still_fits(self, slot: Slot, plan: Plan) -> Mapping[Mitigation, str]:
        """What a chosen slot lacks after a wait. Raises NotReady and DeterminismUnavailable as `choose` does."""
        if not slot.status.healthy:
            raise NotReady(f"Replica {slot.replica.name} was lost while the request waited: {slot.status.problem}.")
        missing = slot.missing(plan)
        if missing and plan.on_unavailable is OnUnavailable.REJECT:
            raise DeterminismUnavailable(_unavailable_text(plan, [(slot, missing)]), param="determinism")
        return missing

    async def prove_drained(self, slot: Slot) -> None:
        """Wait until the engine itself shows nothing running. Raises DeterminismUnavailable in the end."""
        drained = await self._prober.drained(slot.replica, deadline=self._drain_timeout, interval=self._drain_interval)
        if not drained:
            raise DeterminismUnavailable(
                f"'{Mitigation.BATCH_ISOLATION}' is unavailable: replica {slot.replica.name} did not run empty within "
                f"{self._drain_timeout:g} s; other clients reach it past this gateway.",
                param="determinism",
            )


class _Leasing:
    """The lease of one request. A class and not a generator: every request passes here."""

    __slots__ = ("_plan", "_scheduler", "_slot", "_ticket")

    def __init__(self, scheduler: Scheduler, plan: Plan) -> None:
        self._scheduler = scheduler
        self._plan = plan
        self._slot: Slot | None = None
        self._ticket: Ticket | None = None

    async def __aenter__(self) -> Lease:
        slot, missing = self._scheduler.choose(self._plan)
        isolated = self._plan.exclusive and Mitigation.BATCH_ISOLATION not in missing
        admission = Admission.EXCLUSIVE if isolated else Admission.SHARED
        status = slot.status
        slot.leases += 1
        self._slot = slot
        if status.guarded:
            applied = _applied(self._plan, status, missing)
            return Lease(slot.replica, status, admission, applied, missing, 0.0, None, status.digest)
        started = self._scheduler.clock()
        try:
            self._ticket = ticket = await slot.gate.acquire(admission)
            if isolated:
                await self._scheduler.prove_drained(slot)
            # The wait may have been long: what is leased is the replica as it is now.
            missing = self._scheduler.still_fits(slot, self._plan)
        except BaseException:
            self._release(slot)
            raise
        waited = self._scheduler.clock() - started
        status = slot.status
        applied = _applied(self._plan, status, missing)
        return Lease(slot.replica, status, admission, applied, missing, waited, ticket, status.digest)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._slot is not None:
            self._release(self._slot)

    def _release(self, slot: Slot) -> None:
        slot.leases -= 1
        if self._ticket is not None:
            slot.gate.release(self._ticket)


def _applied(plan: Plan, status: ReplicaStatus, missing: Mapping[Mitigation, str]) -> tuple[Mitigation, ...]:
    """What of a plan a replica honours, and what it adds, in the order of the vocabulary."""
    if not plan.mitigations:
        return ()
    extra = frozenset(mitigation for mitigation in plan.welcome if status.provides(mitigation).held)
    applied = (plan.mitigations | extra) - missing.keys()
    return tuple(mitigation for mitigation in Mitigation if mitigation in applied)


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
