"""The lease: the right to run on a replica now, and what the guard's word makes of it when the answer comes."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from app.determinism.mode import MODE_MITIGATIONS, Mitigation, Mode
from app.determinism.plan import OnUnavailable, Plan
from app.errors import DeterminismUnavailable
from app.scheduling.slot import ROUTED
from app.scheduling.ticket import Admission, Ticket
from app.upstream.replica import Replica, ReplicaStatus
from app.upstream.word import GuardsWord

ERRORS: Final = 400
"""HTTP's border between answers and errors."""


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

        What the engine that answered is not seen to have done is missing: it is not the one that was probed, or did not
        run the request alone. An answer that is an error (``status`` 400 and above) has none of the plan's mitigations.
        """
        if status >= ERRORS:
            refused = dict.fromkeys(plan.mitigations, f"the replica answered HTTP {status}")
            return replace(self, applied=(), missing=refused) if refused else self
        if not self.status.guarded:
            return self
        lease = self if word.posture in {None, self.posture} else replace(self, posture=str(word.posture))
        broken = lease.broken_promises(word)
        if not broken:
            return lease
        applied = tuple(mitigation for mitigation in self.applied if mitigation not in broken)
        return replace(lease, applied=applied, missing={**self.missing, **broken})

    def insist(self, plan: Plan, status: int) -> None:
        """Raises DeterminismUnavailable where an answer lacks what its caller insists on."""
        if self.missing and status < ERRORS and plan.on_unavailable is OnUnavailable.REJECT:
            said = "; ".join(f"'{mitigation}' is unavailable: {reason}" for mitigation, reason in self.missing.items())
            raise DeterminismUnavailable(f"{said} (replica {self.replica.name}).", param="determinism")

    def broken_promises(self, word: GuardsWord) -> dict[Mitigation, str]:
        """The mitigations of the lease that the guard's word contradicts or does not confirm, with the reason."""
        promised = [mitigation for mitigation in self.applied if mitigation in ROUTED]
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


def applied_of(plan: Plan, status: ReplicaStatus, missing: Mapping[Mitigation, str]) -> tuple[Mitigation, ...]:
    """What of a plan a replica honours, and what it adds, in the order of the vocabulary."""
    if not plan.mitigations:
        return ()
    extra = frozenset(mitigation for mitigation in plan.welcome if status.provides(mitigation).held)
    applied = (plan.mitigations | extra) - missing.keys()
    return tuple(mitigation for mitigation in Mitigation if mitigation in applied)
