"""Pools: for each kind of deterministic request, the one posture whose replicas serve it.

Repeats must meet one posture, so the first posture that served a kind of request keeps it for as long as a replica
shows that posture. A replica that comes back with another one is not in the pool until it matches again. Only when
nothing of the posture is left another one takes over, and with it a new epoch begins: cohorts are compared within one
posture, so theirs begin anew too.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from app.determinism.mode import Mitigation
from app.determinism.plan import Plan
from app.scheduling.slot import ROUTED, Slot
from app.upstream.replica import UNKNOWN_POSTURE

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Pool:
    """The posture that serves a kind of request, and how many it is since the gateway started; 1 is the first."""

    posture: str
    epoch: int


Kind = tuple[str | None, frozenset[Mitigation]]
"""A model, and the mitigations that depend on the replica. Bounded: models are those that are served."""


class Pools:
    """The pools that were established so far."""

    def __init__(self) -> None:
        self._pools: dict[Kind, Pool] = {}

    def members(self, plan: Plan, candidates: Sequence[Slot], *, establish: bool) -> list[Slot]:
        """Those candidates that are of the plan's pool; it is founded on the first candidate where there is none.

        ``candidates`` must not be empty, and all must be equally fit. Nothing is remembered unless ``establish``, and
        never a posture that is not known: an engine that has just started will soon show the one that it had.
        """
        kind = (plan.model, plan.mitigations & ROUTED)
        pool = self._pools.get(kind)
        posture = pool.posture if pool is not None else None
        members = [slot for slot in candidates if slot.status.digest == posture]
        if members:
            return members
        posture = candidates[0].status.digest
        if establish and not posture.startswith(UNKNOWN_POSTURE):
            self._pools[kind] = Pool(posture, 1 if pool is None else pool.epoch + 1)
            if pool is not None:
                _log.warning("no replica of posture %s is left; its requests go to posture %s", pool.posture, posture)
        return [slot for slot in candidates if slot.status.digest == posture]

    def of(self, plan: Plan) -> Pool | None:
        """The pool of a plan, if it was established."""
        return self._pools.get((plan.model, plan.mitigations & ROUTED))

    def established(self) -> tuple[tuple[Kind, Pool], ...]:
        """Every pool, in the order of founding."""
        return tuple(self._pools.items())
