"""One replica as the scheduler sees it: its latest status, its gate where the guard has none, and what runs there."""

from collections.abc import Mapping
from dataclasses import asdict
from types import MappingProxyType
from typing import Final

from app.determinism.mode import POSTURE_MITIGATIONS, Mitigation
from app.determinism.plan import Plan
from app.determinism.posture import Provision
from app.scheduling.gate import Gate
from app.scheduling.ticket import Admission
from app.upstream.replica import GateView, Replica, ReplicaStatus

ROUTED: Final = POSTURE_MITIGATIONS | {Mitigation.BATCH_ISOLATION, Mitigation.VERIFICATION}
"""Mitigations that depend on the replica; the others are edits of the request."""

_NONE_MISSING: Final[Mapping[Mitigation, str]] = MappingProxyType({})


class Slot:
    """The mutable state of one replica. ``leases`` counts this gateway's requests there, ``exclusive`` those alone."""

    def __init__(self, replica: Replica, gate: Gate) -> None:
        self.replica = replica
        self.status = ReplicaStatus()
        self.gate = gate
        self.leases = 0
        self.exclusive = 0

    def provisions(self) -> Mapping[Mitigation, Provision]:
        """What the replica honours of the mitigations that depend on it."""
        return {mitigation: self.status.provides(mitigation) for mitigation in Mitigation if mitigation in ROUTED}

    def missing(self, plan: Plan) -> Mapping[Mitigation, str]:
        """The mitigations of a plan that this replica does not honour, each with the reason."""
        if not plan.mitigations:
            return _NONE_MISSING
        provisions = {mitigation: self.status.provides(mitigation) for mitigation in plan.mitigations & ROUTED}
        return {mitigation: provision.reason for mitigation, provision in provisions.items() if not provision.held}

    @property
    def exclusive_backlog(self) -> int:
        """Exclusive requests that run or wait there, as far as this gateway and the last probe know.

        On an engine of one sequence every request is as good as one, and the next one would be too.
        """
        known = self.status.gate.exclusive_backlog if self.status.guarded else 0
        if self.status.serial:
            return 1 + max(known, self.leases)
        return max(known, self.exclusive)

    def gate_view(self) -> GateView:
        """The gate of this replica, be it the guard's at the last probe or the one here."""
        return self.status.gate if self.status.guarded else GateView.of(asdict(self.gate.statistics()))

    def expected_wait(self, admission: Admission) -> float:
        """Seconds that a request would wait for its turn there: an estimate from the last probe and what runs."""
        if not self.status.guarded:
            return self.gate.expected_wait(admission)
        seen = self.status.gate
        if admission is Admission.SHARED:
            return seen.expected_wait_shared
        # Other gateways' requests are in the guard's word, which may be some seconds old; our own we know.
        return max(seen.expected_wait_exclusive, self.exclusive * seen.exclusive_run_seconds)
