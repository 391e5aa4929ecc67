"""One request's verifier: a pool of one posture that renders the prompt, scores the passes and writes the text.

Every answer is held against the posture that was chosen at the beginning: an answer of another one would be an answer
of another verifier. A replica that breaks off is replaced by another of the same posture, with the same pass.
"""

import hmac
from array import array
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

from app.determinism.mode import Mitigation
from app.determinism.output import CHAT_PATH
from app.determinism.plan import OnUnavailable, Plan
from app.determinism.request import InferenceRequest
from app.errors import DeterminismUnavailable, InvalidRequest, ModelNotFound, NotReady, UpstreamError
from app.scheduling.lease import Lease
from app.scheduling.scheduler import Scheduler
from app.scheduling.slot import Slot
from app.upstream.replica import Replica, ReplicaStatus
from app.verification.decoding import FEWEST_LOGPROBS
from app.verification.facts import Model
from app.verification.grid import Grid, GridKind, Pass
from app.verification.refusals import NOT_VERIFIABLE
from app.verification.rows import Row
from app.verifier.errands import Lost, Sender, Told, blaming, other_posture
from app.verifier.scores import Scores, read_scores

SCORE_PATH: Final = "/reprise/score"
TEXT_PATH: Final = "/reprise/text"
RENDER_PATH: Final = "/reprise/render"

_MOST_LOGPROBS: Final = 128
"""Of each token; an engine may show all of its vocabulary, and a row of that would cost more than its pass."""

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Chosen:
    """A replica that can verify a request: where its prompt is rendered, and what all others must equal.

    ``plan`` is that of a pass, ``name`` the one that the engine gives its model in every answer.
    """

    replica: Replica
    posture: str
    model: Model
    most_logprobs: int
    plan: Plan
    name: str


def choose(scheduler: Scheduler, plan: Plan, *, establish: bool = True) -> Chosen:
    """The verifier of a request. Raises as `Scheduler.lease` does, and DeterminismUnavailable where its model cannot.

    Where no kernel depends on the batch, passes may run beside anything; everywhere else they run alone.
    ``establish``: the choice may found the pool of the passes. Raises InvalidRequest for an adapter's name.
    """
    rejecting = replace(plan, on_unavailable=OnUnavailable.REJECT)
    slot, _ = scheduler.choose(rejecting, establish=False)
    needed = Mitigation.BATCH_INVARIANCE if _invariant(slot) else Mitigation.BATCH_ISOLATION
    passes = replace(rejecting, mitigations=plan.mitigations | {needed})
    slot, _ = scheduler.choose(passes, establish=establish)
    status = slot.status
    model = _model(status, plan.model)
    return Chosen(slot.replica, status.digest, model, _logprobs(status), passes, _name(status))


def _invariant(slot: Slot) -> bool:
    return slot.status.provides(Mitigation.BATCH_INVARIANCE).held is True


def _name(status: ReplicaStatus) -> str:
    """The model's first name, under which vLLM answers whatever alias was asked for; adapters have a parent."""
    return next((str(entry["id"]) for entry in status.models if entry.get("parent") is None), "")


def _model(status: ReplicaStatus, asked: str | None) -> Model:
    """The model that passes run. An adapter's name is refused: its passes would run the model below it."""
    if any(entry.get("id") == asked and entry.get("parent") is not None for entry in status.models):
        raise InvalidRequest("An adapter's answers cannot be verified.", param="model", code=NOT_VERIFIABLE)
    return status.model.model()


def _logprobs(status: ReplicaStatus) -> int:
    if status.max_logprobs < FEWEST_LOGPROBS:
        raise DeterminismUnavailable(
            f"'{Mitigation.VERIFICATION}' is unavailable on this verifier: with {status.max_logprobs} logprobs of a "
            "token (--max-logprobs) no tie can be seen.",
            param="determinism",
        )
    return min(status.max_logprobs, _MOST_LOGPROBS)


def chain_key(key: bytes, salt: object) -> bytes:
    """The key to the salts of a caller's chains: callers who salt their caches apart share no chain either."""
    return hmac.digest(key, b"cache_salt" + salt.encode(), "sha256") if isinstance(salt, str) else key


class Verifier:
    """The verifier of one request. ``key`` keys the salts of its cache, which nobody else must be able to name.

    ``seconds`` is what its passes took on their engines, ``waited`` how long they queued, ``peak`` the most that ran
    beside one of them, itself included; ``lease`` is that of the last one.
    """

    def __init__(self, sender: Sender, chosen: Chosen, key: bytes) -> None:
        self._sender = sender
        self._chosen = chosen
        self._key = key
        self._replica = chosen.replica
        self._failed: Replica | None = None
        self._sent = 0
        self.seconds = 0.0
        self.waited = 0.0
        self.lease: Lease | None = None
        self.peak: int | None = None

    async def render(self, request: InferenceRequest) -> list[int]:
        """The prompt's token ids, as the engine makes them of the same request in any other mode.

        Ids that the caller sent are rendered too: their length is the engine's to judge before anything here walks
        over them. Raises InvalidRequest with the engine's words and status.
        """
        content = {"path": request.path, "request": _rendered(request, self._chosen.plan.model)}
        tokens = await self._somewhere(lambda without: self._tokens(content, without))
        if max(tokens) >= self._chosen.model.vocabulary:
            # A tokenizer may know more ids than its model; passes over them would be refused one by one.
            raise InvalidRequest(
                f"The prompt holds a token id that is not in 0 to {self._chosen.model.vocabulary - 1}.",
                param="messages" if request.path == CHAT_PATH else "prompt",
            )
        return tokens

    async def score(self, wanted: Pass, candidate: Sequence[int], k: int, grid: Grid) -> tuple[Row, ...]:
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
        self._sent += 1
        told, scores = await self._somewhere(lambda without: self._pass(content, wanted, k, without))
        self._replica, self.lease = told.lease.replica, told.lease
        self.peak = told.peak if self.peak is None else max(self.peak, told.peak or 0)
        self.seconds += scores.seconds
        self.waited += told.lease.waited
        return scores.rows

    async def text(self, content: Mapping[str, Any], read: Callable[[Any], _T]) -> _T:
        """What ``read`` makes of the text that the engine's detokenizer makes of token ids."""
        return await self._somewhere(lambda without: self._read_aside(TEXT_PATH, "t", content, read, without))

    async def _tokens(self, content: Mapping[str, Any], without: Replica | None) -> list[int]:
        return await self._read_aside(RENDER_PATH, "p", content, _ids, without, callers=True)

    async def _pass(
        self, content: Mapping[str, Any], wanted: Pass, k: int, without: Replica | None
    ) -> tuple[Told, Scores]:
        posture = self._chosen.posture
        # Who computed the last pass holds the chain; anybody else would compute the prompt anew.
        last = self.lease.replica if self.lease is not None else None
        told = await self._sender.leased(
            self._chosen.plan, SCORE_PATH, f"v{self._sent}", content, posture=posture, without=without, prefer=last
        )
        with blaming(told.lease.replica):
            if told.lease.posture != posture:
                raise other_posture(told.lease.replica, told.lease.posture, posture)
            return told, read_scores(told.said, wanted, k, self._chosen.model.vocabulary)

    async def _read_aside(
        self,
        path: str,
        name: str,
        content: Mapping[str, Any],
        read: Callable[[Any], _T],
        without: Replica | None,
        *,
        callers: bool = False,
    ) -> _T:
        replica = self._beside(without)
        said = await self._sender.aside(replica, path, name, content, callers=callers)
        with blaming(replica):
            found = read(said)
        self._replica = replica
        return found

    async def _somewhere(self, attempt: Callable[[Replica | None], Awaitable[_T]]) -> _T:
        """Try, and where a replica fails, once more on another one of the posture, if there is one.

        ``attempt`` takes the replica that is not to be asked. One that failed is not the first to be asked again.
        """
        failed = self._failed
        try:
            return await attempt(failed if failed is not None and self._another(failed) is not None else None)
        except Lost as error:
            lost = error
        self._failed = lost.replica
        if self._another(lost.replica) is None:
            raise lost.cause from lost
        try:
            return await attempt(lost.replica)
        except Lost as error:
            self._failed = error.replica
            raise error.cause from error

    def _beside(self, without: Replica | None) -> Replica:
        """The replica of the last pass while it is what it was, else another one of the posture. Raises NotReady."""
        found = self._sender.scheduler.slots[self._replica].status.digest
        if self._replica != without and found == self._chosen.posture:
            return self._replica
        other = self._another(without or self._replica)
        if other is None:
            raise other_posture(self._replica, found, self._chosen.posture)
        return other

    def _another(self, without: Replica) -> Replica | None:
        try:
            slot, _ = self._sender.scheduler.choose(self._chosen.plan, without=without, establish=False)
        except (NotReady, ModelNotFound):
            return None
        return slot.replica if slot.status.digest == self._chosen.posture else None

    def _salt(self, prefix: Sequence[int]) -> str:
        """The name of the cache in which only passes over these first tokens write."""
        return hmac.digest(self._key, b"verification" + array("q", prefix).tobytes(), "sha256").hex()[:32]


def _rendered(request: InferenceRequest, model: str | None) -> dict[str, Any]:
    """What is rendered: the caller's members as they came, for the model without a suffix of ours."""
    members = {name: value for name, value in request.members.items() if name not in {"determinism", "model"}}
    return members if model is None else members | {"model": model}


def _ids(said: Any) -> list[int]:  # noqa: ANN401 - any JSON
    ids = said.get("ids") if isinstance(said, dict) else None
    if not isinstance(ids, list) or set(map(type, ids)) != {int} or min(ids) < 0:
        raise UpstreamError("The verifier did not render the prompt.")
    return ids
