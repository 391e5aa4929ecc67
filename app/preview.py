"""What would happen to a request: the straight line of `app.gateway` up to the lease, with nothing sent or kept."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from app.determinism.evidence import ask
from app.determinism.mode import DETERMINISTIC_MODES, Mitigation
from app.determinism.plan import Plan, Wish, resolve
from app.determinism.request import InferenceRequest, parse
from app.determinism.sampling import Sampling, pin
from app.errors import NotReady, RepriseError
from app.gateway import Policy
from app.scheduling.scheduler import Prospect, Scheduler

_SALT: Final = "new for each request"
_MISSING: Final = object()


@dataclass(frozen=True, slots=True)
class Preview:
    """A request that was looked at.

    ``changed`` names the members that the engine would get otherwise than written, and ``asked`` those that the gateway
    would add on its own account. ``chosen`` is the replica that would take it now, None where ``error`` says why none
    would. ``reasons`` says what the mitigations rest on there.
    """

    path: str
    plan: Plan
    sampling: Sampling
    changed: frozenset[str]
    asked: frozenset[str]
    prospects: tuple[Prospect, ...]
    chosen: Prospect | None
    reasons: Mapping[Mitigation, str]
    pool_epoch: int | None
    error: RepriseError | None

    @property
    def missing(self) -> Mapping[Mitigation, str]:
        """What the plan would lack: on the chosen replica, or on the one that lacks least."""
        nearest = self.chosen or min(self.prospects, key=lambda each: len(each.missing), default=None)
        return nearest.missing if nearest is not None else {}


class Previewer:
    """Looks at requests."""

    def __init__(self, scheduler: Scheduler, policy: Policy) -> None:
        self._scheduler = scheduler
        self._policy = policy

    def look(self, body: bytes, wish: Wish) -> Preview:
        """Preview one body. Raises InvalidRequest, ModelNotFound and ModeNotImplemented as the gateway would."""
        request = _parsed(body)
        plan = resolve(request, wish, self._policy.default_mode, self._scheduler.served, self._policy.window)
        tiny, keep = self._policy.tiny_temperature, self._scheduler.by_priority
        pinned = pin(request, plan, salt=_SALT, tiny=tiny, keep_priority=keep)
        error: RepriseError | None = None
        chosen: Prospect | None = None
        prospects: tuple[Prospect, ...] = ()
        reasons: Mapping[Mitigation, str] = {}
        asked: frozenset[str] = frozenset()
        try:
            prospects = self._scheduler.survey(plan)
            slot, _ = self._scheduler.choose(plan, establish=False)
            chosen = next(each for each in prospects if each.replica == slot.replica)
            reasons = {mitigation: slot.status.provides(mitigation).reason for mitigation in plan.mitigations}
            if plan.mode in DETERMINISTIC_MODES:
                evidence = ask(request.path, request.members, self._policy.evidence, slot.status.max_logprobs)
                asked = frozenset(evidence.changes)
        except NotReady as unready:
            error = unready
        pool = self._scheduler.pool(plan)
        return Preview(
            request.path,
            plan,
            pinned.sampling,
            _changed(request, parse(request.path, pinned.body)),
            asked,
            prospects,
            chosen,
            reasons,
            pool.epoch if pool is not None and plan.mitigations else None,
            error,
        )


def _parsed(body: bytes) -> InferenceRequest:
    """The request, on the path to which its members belong."""
    request = parse("/v1/chat/completions", body)
    return request if "messages" in request.members else parse("/v1/completions", body)


def _changed(before: InferenceRequest, after: InferenceRequest) -> frozenset[str]:
    names = before.members.keys() | after.members.keys()
    return frozenset(name for name in names if before.members.get(name, _MISSING) != after.members.get(name, _MISSING))
