"""One request's verifier: a pool of one posture that renders the prompt, scores the passes and writes the text.

Every answer is held against the posture that was chosen at the beginning: an answer of another one would be an answer
of another verifier. A replica that breaks off is replaced by another of the same posture, with the same pass.
"""

import hmac
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from app.determinism.mode import Mitigation
from app.determinism.output import CHAT_PATH
from app.determinism.plan import OnUnavailable, Plan
from app.determinism.request import InferenceRequest
from app.errors import InvalidRequest, NotReady, UpstreamError
from app.scheduling.lease import Lease
from app.scheduling.scheduler import Scheduler
from app.scheduling.slot import Slot
from app.upstream.replica import Replica
from app.verification.facts import Model
from app.verification.grid import Grid, GridKind, Pass
from app.verification.rows import Row
from app.verifier.errands import Lost, Sender, Told

SCORE_PATH: Final = "/reprise/score"
TEXT_PATH: Final = "/reprise/text"
TOKENIZE_PATH: Final = "/tokenize"

_TEMPLATE_MEMBERS: Final = ("documents", "reasoning_effort")
"""Members that chat completions hands to the template and ``/tokenize`` does not know (vLLM 0.32)."""

_RENDERING: Final = ("add_generation_prompt", "continue_final_message", "add_special_tokens", "chat_template")


@dataclass(frozen=True, slots=True)
class Chosen:
    """A replica that can verify a request: where its prompt is rendered, and what all others must equal.

    ``plan`` is that of a pass, ``name`` the model's as served.
    """

    replica: Replica
    posture: str
    model: Model
    most_logprobs: int
    plan: Plan
    name: str


def choose(scheduler: Scheduler, plan: Plan) -> Chosen:
    """The verifier of a request. Raises as `Scheduler.lease` does, and DeterminismUnavailable where its model cannot.

    Where no kernel depends on the batch, passes may run beside anything; everywhere else they run alone.
    """
    rejecting = replace(plan, on_unavailable=OnUnavailable.REJECT)
    slot, _ = scheduler.choose(rejecting, establish=False)
    needed = Mitigation.BATCH_INVARIANCE if _invariant(slot) else Mitigation.BATCH_ISOLATION
    passes = replace(rejecting, mitigations=plan.mitigations | {needed})
    slot, _ = scheduler.choose(passes)
    status = slot.status
    name = plan.model or next(iter(sorted(status.served)), "")
    return Chosen(slot.replica, status.digest, status.model.model(), status.max_logprobs, passes, name)


def _invariant(slot: Slot) -> bool:
    return slot.status.provides(Mitigation.BATCH_INVARIANCE).held is True


class Verifier:
    """The verifier of one request. ``key`` keys the salts of its cache, which nobody else must be able to name."""

    def __init__(self, sender: Sender, chosen: Chosen, key: bytes) -> None:
        self._sender = sender
        self._chosen = chosen
        self._key = key
        self._replica = chosen.replica
        self._sent = 0
        self.seconds = 0.0
        self.waited = 0.0
        self.lease: Lease | None = None
        self.peak: int | None = None

    async def render(self, request: InferenceRequest) -> list[int]:
        """The prompt's token ids, as the engine's own template and tokenizer make them. Raises InvalidRequest."""
        content = _tokenizable(request, self._chosen.plan.model)
        if isinstance(content, list):
            return content
        said = await self._aside(TOKENIZE_PATH, "p", content)
        tokens = said.get("tokens") if isinstance(said, dict) else None
        if not (isinstance(tokens, list) and all(type(token) is int for token in tokens)):
            raise UpstreamError("The verifier did not tokenize the prompt.")
        if not tokens:
            raise InvalidRequest("The prompt is empty.", param="messages" if request.path == CHAT_PATH else "prompt")
        return tokens

    async def score(self, wanted: Pass, candidate: Sequence[int], k: int, grid: Grid) -> list[Row]:
        """The rows of the positions that the pass decides, with ``k`` alternatives each."""
        content = {
            "ids": list(candidate),
            "first": wanted.first,
            "k": k,
            "cached": wanted.cached,
            "prefix": wanted.prefix,
            "block": grid.block,
            "salt": self._salt(candidate[: wanted.prefix]) if grid.kind is GridKind.CHAIN else None,
        }
        told = await self._pass(content)
        rows = _rows(told.said, wanted.total - wanted.first + 1, wanted.cached or 0)
        self.lease, self.peak = told.lease, told.peak
        self.seconds += float(told.said.get("seconds") or 0.0)
        self.waited += told.lease.waited
        return rows[: wanted.last - wanted.first + 1]

    async def text(self, content: Mapping[str, Any]) -> Any:  # noqa: ANN401 - any JSON
        """What the engine's detokenizer makes of token ids."""
        return await self._aside(TEXT_PATH, "t", content)

    async def _pass(self, content: Mapping[str, Any]) -> Told:
        self._sent += 1
        name = f"v{self._sent}"
        plan, lost = self._chosen.plan, None
        while True:
            try:
                told = await self._sender.leased(plan, SCORE_PATH, name, content, without=lost)
            except Lost as error:
                if lost is not None or not self._sender.scheduler.another(plan, error.replica):
                    raise error.cause from error
                lost = error.replica
                continue
            if told.lease.posture != self._chosen.posture:
                raise NotReady(
                    f"The verifier was lost: replica {told.lease.replica.name} has another posture, "
                    f"{told.lease.posture} and not {self._chosen.posture}."
                )
            self._replica = told.lease.replica
            return told

    async def _aside(self, path: str, name: str, content: Mapping[str, Any]) -> Any:  # noqa: ANN401 - any JSON
        try:
            return await self._sender.aside(self._replica, path, name, content)
        except Lost as error:
            if not self._sender.scheduler.another(self._chosen.plan, error.replica):
                raise error.cause from error
            slot, _ = self._sender.scheduler.choose(self._chosen.plan, without=error.replica, establish=False)
            if slot.status.digest != self._chosen.posture:
                raise error.cause from error
            self._replica = slot.replica
        return await self._sender.aside(self._replica, path, name, content)

    def _salt(self, prefix: Sequence[int]) -> str:
        """The name of the cache in which only passes over these first tokens write."""
        return hmac.digest(self._key, b"verification" + array("q", prefix).tobytes(), "sha256").hex()[:32]


def _tokenizable(request: InferenceRequest, model: str | None) -> dict[str, Any] | list[int]:
    """What ``/tokenize`` is asked; the ids themselves where the caller sent ids."""
    members = request.members
    if request.path != CHAT_PATH:
        prompt = members.get("prompt")
        if isinstance(prompt, list):
            return list(prompt)
        asked = {"model": model, "prompt": prompt, "add_special_tokens": members.get("add_special_tokens")}
        return {name: value for name, value in asked.items() if value is not None}
    template = {name: members[name] for name in _TEMPLATE_MEMBERS if members.get(name) is not None}
    if "reasoning_effort" in template:
        template["enable_thinking"] = template["reasoning_effort"] != "none"
    asked = {"model": model, "messages": members.get("messages")}
    asked |= {name: members[name] for name in _RENDERING if members.get(name) is not None}
    if kwargs := template | (members.get("chat_template_kwargs") or {}):
        asked["chat_template_kwargs"] = kwargs
    return {name: value for name, value in asked.items() if value is not None}


def _rows(said: Any, count: int, cached: int) -> list[Row]:  # noqa: ANN401 - any JSON
    """The rows of a pass. Raises UpstreamError for another number of them, or of cached tokens, than was wanted."""
    try:
        found = said["cached"]
        rows = [Row(tuple(ids), tuple(logprobs)) for ids, logprobs in zip(said["ids"], said["logprobs"], strict=True)]
    except (TypeError, ValueError, LookupError) as exc:
        raise UpstreamError(f"The verifier's scores cannot be read: {exc}.") from exc
    if found != cached or len(rows) != count:
        raise UpstreamError(
            f"The verifier sent {len(rows)} rows after {found} cached tokens, and not {count} after {cached}."
        )
    return rows
