"""What is found out of the server before the ladder is climbed: what it takes, what it tells, and how fast it is."""

import secrets
from dataclasses import dataclass, replace
from statistics import median
from typing import Final

import httpx
import orjson

from app.determinism.divergence import TIE_NATS
from app.diagnose.investigation import PROMPTS_USED, Investigation
from app.diagnose.material import LONG_PROMPTS, PARAGRAPH, Material
from app.diagnose.rungs import Salts
from app.diagnose.wire import Asking, Prompt, Reply, Trouble, Wire
from app.errors import DeterminismUnavailable
from app.probe.experiment import NotMeasurable
from app.probe.server import Clock, find_model, open_client

SEED: Final = 0
"""What is sent where something is sampled and nobody named a seed."""

_TIMED_TOKENS: Final = 16
_CONNECTIONS: Final = 8
_OK: Final = 200
_WITHOUT_CHAT: Final = frozenset({404, 405, 501})
_LEAST_TOKENS: Final = 4


@dataclass(frozen=True, slots=True)
class Deployment:
    """The server as it was found.

    ``prompts`` are those that are asked; ``context`` is the model's in tokens, ``token_seconds`` how long one token
    takes alone. ``gateway`` says that it is one of ours, ``alone_proven`` that it confirmed running requests alone;
    ``unsaid`` names what it does not tell, with the reason. ``replica`` and ``posture`` are those of one answer.
    """

    url: str
    model: str
    prompts: tuple[str, ...]
    context: int | None
    token_seconds: float
    gateway: bool
    alone_proven: bool
    logprobs: bool
    exact: bool
    unsaid: tuple[str, ...]
    replica: str | None
    posture: str | None


@dataclass(frozen=True, slots=True)
class Found:
    """A deployment, the way to ask it, and what to ask it."""

    deployment: Deployment
    wire: Wire
    material: Material
    salts: Salts


def connect(investigation: Investigation, url: str, transport: httpx.AsyncBaseTransport | None) -> httpx.AsyncClient:
    """A client for one of the investigation's servers; ``transport`` replaces the network."""
    return open_client(
        url,
        api_key=investigation.api_key,
        timeout=investigation.timeout,
        connections=_CONNECTIONS,
        transport=transport,
    )


async def discover(client: httpx.AsyncClient, investigation: Investigation, clock: Clock) -> Found:
    """Look at the server. Raises NotMeasurable with the reason when nothing can be asked of it."""
    url = investigation.url
    model = await find_model(client, url, investigation.model)
    context = await _context_of(client, url, model)
    sampled = investigation.temperature > 0
    seed = investigation.seed if investigation.seed is not None or not sampled else SEED
    asking = Asking(model, investigation.temperature, seed)
    search = _Search(Wire(client, asking, investigation.timeout, clock), Salts(secrets.token_hex(8)))
    try:
        return await search.run(investigation, context)
    except Trouble as exc:
        raise NotMeasurable(f"{url} gives no answer that could be compared: {exc.reason}") from exc


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A prompt with its ids (None where they are not told), and an answer of so many tokens."""

    text: str
    ids: tuple[int, ...] | None
    tokens: int
    reply: Reply

    @property
    def close(self) -> int:
        """How many of the answer's choices were close."""
        return sum(margin <= TIE_NATS for margin in self.reply.choices[0].margins or ())


class _Search:
    """Asks for little, and gives up one thing after the other that the server does not take."""

    def __init__(self, wire: Wire, salts: Salts) -> None:
        self._wire = wire
        self._salts = salts
        self._chat = True
        self._unsaid: list[str] = []

    async def run(self, investigation: Investigation, context: int | None) -> Found:
        """Raises Trouble when there is no answer, NotMeasurable when the context is too short."""
        # Whatever the server prepares at its first requests is not to be timed.
        await self._learn(investigation.prompts[0], 1)
        candidates = [await self._candidate(text, context) for text in investigation.prompts]
        last = candidates[-1].reply
        if last.choices[0].logprobs is None and self._wire.asking.logprobs:
            self._unsaid.append("its answers hold no logprobs, so only whole tokens are compared")
        chosen = sorted(candidates, key=lambda candidate: -candidate.close)[:PROMPTS_USED]
        paragraph = (await self._complete(PARAGRAPH, 1)).prompt_ids[0]
        known = [candidate.ids for candidate in chosen if candidate.ids is not None]
        exact = len(known) == len(chosen) and bool(paragraph)
        if not exact:
            self._unsaid.append("it does not tell token ids, so neighbours of exactly the same length cannot be made")
        lengths = [length for length in LONG_PROMPTS if context is None or length + _TIMED_TOKENS <= context]
        probes: list[Prompt] = [*known] if exact else [candidate.text for candidate in chosen]
        # Its first token may be one that begins a text, and has no place within one.
        vocabulary = paragraph[1:] if exact and paragraph else PARAGRAPH.split()
        material = Material.of(probes, vocabulary, lengths)
        shared = any((candidate.reply.peak or 1) > 1 for candidate in candidates)
        deployment = Deployment(
            url=investigation.url,
            model=self._wire.asking.model,
            prompts=tuple(candidate.text for candidate in chosen),
            context=context,
            token_seconds=median(candidate.reply.seconds / candidate.tokens for candidate in candidates),
            gateway=last.mode is not None,
            alone_proven=last.mode is not None and self._wire.asking.isolated and not shared,
            logprobs=last.choices[0].logprobs is not None,
            exact=exact,
            unsaid=tuple(self._unsaid),
            replica=last.replica,
            posture=last.posture,
        )
        return Found(deployment, self._wire, material, self._salts)

    async def _candidate(self, text: str, context: int | None) -> "_Candidate":
        ids = (await self._learn(text, 1)).prompt_ids[0]
        tokens = _TIMED_TOKENS if context is None or ids is None else min(_TIMED_TOKENS, context - len(ids))
        if tokens < _LEAST_TOKENS:
            raise NotMeasurable(
                f"the model's context of {context} tokens is too short: a prompt alone has {len(ids or ())}"
            )
        return _Candidate(text, ids, tokens, await self._complete(text if ids is None else ids, tokens))

    async def _learn(self, text: str, tokens: int) -> Reply:
        """The beginning of an answer to a prompt, for the ids of the prompt."""
        while self._chat:
            try:
                return await self._wire.chat(text, tokens, self._salts.fresh())
            except Trouble as exc:
                if not self._asks_for_less(exc):
                    if exc.status not in _WITHOUT_CHAT and "chat template" not in exc.reason:
                        raise
                    self._chat = False
        return await self._complete(text, tokens)

    async def _complete(self, prompt: Prompt, tokens: int) -> Reply:
        while True:
            try:
                return await self._wire.complete([prompt], tokens, self._salts.fresh())
            except Trouble as exc:
                if not self._asks_for_less(exc):
                    raise

    def _asks_for_less(self, trouble: Trouble) -> bool:
        """Do without what was refused; False when that is nothing one could do without."""
        asking = self._wire.asking
        if trouble.code == DeterminismUnavailable.code and asking.isolated:
            self._unsaid.append(f"the gateway does not run requests alone here: {trouble.reason}")
            self._wire.asking = replace(asking, isolated=False)
        elif "logprobs" in trouble.reason and asking.logprobs:
            self._unsaid.append(f"it gives no logprobs, so only whole tokens are compared: {trouble.reason}")
            self._wire.asking = replace(asking, logprobs=False)
        else:
            return False
        return True


async def _context_of(client: httpx.AsyncClient, url: str, model: str) -> int | None:
    """The model's context in tokens, None where the server does not tell. Raises NotMeasurable for an unknown model."""
    try:
        response = await client.get("/v1/models")
        listed = orjson.loads(response.content)["data"] if response.status_code == _OK else []
        models = {str(entry["id"]): entry for entry in listed}
    except (httpx.HTTPError, orjson.JSONDecodeError, KeyError, TypeError):
        return None
    # A gateway takes a mode behind the name.
    entry = models.get(model) or models.get(model.partition("@")[0])
    if entry is None:
        if models:
            raise NotMeasurable(f"--model: {url} does not serve {model!r}; it serves {', '.join(sorted(models))}")
        return None
    context = entry.get("max_model_len")
    return context if isinstance(context, int) and context > 0 else None
