"""What would happen to a request: the straight line of `app.gateway` up to the lease, with nothing sent or kept."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from app.determinism.evidence import ask
from app.determinism.mode import DETERMINISTIC_MODES, Mitigation
from app.determinism.plan import Plan, Wish
from app.determinism.request import InferenceRequest, parse
from app.determinism.sampling import Pinned, Sampling, pin
from app.errors import NotReady, RepriseError
from app.gateway import Policy
from app.scheduling.scheduler import Prospect, Scheduler
from app.verification.grid import GridKind, ruling
from app.verification.request import read_wanted
from app.verifier.passes import choose

_SALT: Final = "new for each request"
_MISSING: Final = object()


@dataclass(frozen=True, slots=True)
class Preview:
    """A request that was looked at.

    ``changed`` names the members that the engine would get otherwise than written, and ``asked`` those that the gateway
    would add on its own account. ``chosen`` is the replica that would take it now, None where ``error`` says why none
    would. ``reasons`` says what the mitigations rest on there. ``passes`` is the plan of a verified answer's passes and
    ``grid`` the one that would rule, None for other answers and where that is not known.
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
    passes: Plan | None = None
    grid: GridKind | None = None

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
        """Preview one body. Raises InvalidRequest and ModelNotFound as the gateway would."""
        request = _parsed(body)
        plan = self._policy.plan(request, wish, self._scheduler.served)
        tiny, keep = self._policy.tiny_temperature, self._scheduler.by_priority
        pinned = pin(request, plan, salt=_SALT, tiny=tiny, keep_priority=keep)
        if plan.window is not None:
            return self._verified(request, plan, pinned)
        blank = self._blank(request, plan, pinned, _changed(request, parse(request.path, pinned.body)))
        try:
            seen = self._seen(blank, plan)
        except NotReady as unready:
            return replace(blank, prospects=self._prospects(plan), error=unready)
        asked: frozenset[str] = frozenset()
        if plan.mode in DETERMINISTIC_MODES and seen.chosen is not None:
            most = self._scheduler.slots[seen.chosen.replica].status.max_logprobs
            asked = frozenset(ask(request.path, request.members, self._policy.evidence, most).changes)
        return replace(seen, asked=asked)

    def _verified(self, request: InferenceRequest, plan: Plan, pinned: Pinned) -> Preview:
        """Of a request that is answered by the verifier's word: its body goes to no engine as it is."""
        blank = self._blank(request, plan, pinned, frozenset())
        try:
            verifier = choose(self._scheduler, plan, establish=False)
        except NotReady as unready:
            return replace(blank, prospects=self._prospects(plan), error=unready)
        model, window = verifier.model, plan.window or 1
        pinned_temperature = Mitigation.TINY_TEMPERATURE in plan.mitigations
        read_wanted(request, model, window=window, most_logprobs=verifier.most_logprobs, pinned=pinned_temperature)
        grid = ruling(window, model.block_size, prefix_caching=model.prefix_caching)
        return replace(self._seen(blank, verifier.plan), passes=verifier.plan, grid=grid)

    def _blank(self, request: InferenceRequest, plan: Plan, pinned: Pinned, changed: frozenset[str]) -> Preview:
        pool = self._scheduler.pool(plan)
        epoch = pool.epoch if pool is not None and plan.mitigations else None
        return Preview(
            request.path, plan, pinned.sampling, changed, frozenset(), (), None, MappingProxyType({}), epoch, None
        )

    def _seen(self, blank: Preview, plan: Plan) -> Preview:
        """With the replica that would take the plan. Raises NotReady."""
        prospects = self._scheduler.survey(plan)
        slot, _ = self._scheduler.choose(plan, establish=False)
        chosen = next(each for each in prospects if each.replica == slot.replica)
        reasons = {mitigation: slot.status.provides(mitigation).reason for mitigation in plan.mitigations}
        pool = self._scheduler.pool(plan)
        epoch = pool.epoch if pool is not None and plan.mitigations else None
        return replace(blank, prospects=prospects, chosen=chosen, reasons=reasons, pool_epoch=epoch)

    def _prospects(self, plan: Plan) -> tuple[Prospect, ...]:
        try:
            return self._scheduler.survey(plan)
        except NotReady:
            return ()


def _parsed(body: bytes) -> InferenceRequest:
    """The request, on the path to which its members belong."""
    request = parse("/v1/chat/completions", body)
    return request if "messages" in request.members else parse("/v1/completions", body)


def _changed(before: InferenceRequest, after: InferenceRequest) -> frozenset[str]:
    names = before.members.keys() | after.members.keys()
    return frozenset(name for name in names if before.members.get(name, _MISSING) != after.members.get(name, _MISSING))
