"""A scripted engine in which each layer of nondeterminism can be switched on by itself, for tests of the diagnosis.

Its language model is a hash: the tokens so far decide the two likeliest next ones, their margin and their logprobs; one
margin in seven is close to a tie. What a layer does is added to margin and logprob:

* ``shape``: noise that belongs to the size of the batch. Now and then a request arrives late, and its batch is smaller.
* ``content``: an expert is full, and another computes the token: tokens and logprobs of their own, large differences.
  Whether it is full depends on what the neighbours say, and more often in larger batches.
* ``cache``, ``kv``, ``replica``: noise that belongs to a prompt from the prefix cache, to long neighbours beside a long
  prompt, to a server.
* ``run``: noise that is another one each time.
* ``fault``: now and then a token that nothing explains.

Time is virtual: every answer moves the clock by what it would have taken.
"""

import json
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

import anyio
import httpx

from app.diagnose.diagnosis import Diagnosis
from app.diagnose.findings import Suspect
from app.diagnose.investigation import Investigation
from app.diagnose.verdict import Verdict

SUSPECTS: Final = {
    "shape": Suspect.BATCH_SHAPE,
    "content": Suspect.NEIGHBOUR_CONTENT,
    "cache": Suspect.PREFIX_CACHE,
    "kv": Suspect.KV_LENGTH,
    "replica": Suspect.REPLICA,
    "run": Suspect.RUN_TO_RUN,
    "fault": Suspect.FAULT,
}
LAYERS: Final = tuple(SUSPECTS)

FIRST, SECOND = "http://first.test", "http://second.test"
"""Two replicas; their engine is one object, so one layer at most tells them apart."""

_MASK: Final = (1 << 64) - 1
_NOISE: Final = 0.04
"""Nats; bfloat16 was measured at 0.03 to 0.1."""

_BLOCK: Final = 128
_LATE: Final = 0.1
_FULL: Final = 0.1
_FAULTY: Final = 0.12
_TOKEN_SECONDS: Final = 0.04
_MARGIN_STEPS: Final = 7

Ids = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Diagnosed:
    """One diagnosis of a scripted engine. ``blamed`` are those that act, but ties: they follow from others."""

    verdict: Verdict
    seconds: float

    @property
    def blamed(self) -> frozenset[Suspect]:
        """Who was blamed."""
        acting = {finding.suspect for finding in self.verdict.findings if finding.acts}
        return frozenset(acting & set(SUSPECTS.values()))


def expected(layers: Iterable[str]) -> frozenset[Suspect]:
    """Who is to be blamed where these layers act."""
    return frozenset(SUSPECTS[layer] for layer in layers)


def diagnose(layers: Iterable[str], seed: int) -> Diagnosed:
    """Diagnose an engine with these layers, in the default budget of its virtual time."""
    engine = LayeredEngine(frozenset(layers), seed)
    investigation = Investigation(FIRST, replicas=(SECOND,), tokens=20)
    diagnosis = Diagnosis(investigation, transport=engine.transport, clock=engine.clock)
    anyio.run(diagnosis.run)
    verdict = diagnosis.verdict
    assert verdict is not None
    return Diagnosed(verdict, diagnosis.seconds)


@dataclass(slots=True)
class LayeredEngine:
    """The engine. ``layers`` are switched on; ``seed`` is of the model and of everything that happens by chance."""

    layers: frozenset[str]
    seed: int
    context: int = 4096
    now: float = 0.0
    requests: int = 0
    beside: list[Ids] = field(default_factory=list)
    _cached: set[tuple[str, Ids]] = field(default_factory=set)
    _random: Random = field(init=False)

    def __post_init__(self) -> None:
        self._random = Random(self.seed)  # noqa: S311 - a script's chance

    @property
    def transport(self) -> httpx.MockTransport:
        """The network on which both replicas are."""
        return httpx.MockTransport(self.handle)

    def clock(self) -> float:
        """Virtual seconds."""
        return self.now

    async def handle(self, request: httpx.Request) -> httpx.Response:
        """One request to either replica."""
        if request.method == "GET":
            return httpx.Response(200, json={"data": [{"id": "scripted", "max_model_len": self.context}]})
        self.requests += 1
        body = json.loads(request.content)
        if body.get("stream"):
            return httpx.Response(200, stream=_Neighbour(self.beside, _ids(body["prompt"])))
        chat = "messages" in body
        prompts = [_ids(body["messages"][0]["content"])] if chat else _prompts(body["prompt"])
        replica = int(request.url.host == httpx.URL(SECOND).host)
        choices = self._answers(prompts, body["max_tokens"], body["cache_salt"], replica)
        self.now += (0.01 + body["max_tokens"] * _TOKEN_SECONDS) * (1 + len(prompts) / 16)
        document: dict[str, Any] = {"choices": [_choice(*each, chat=chat) for each in enumerate(choices)]}
        for choice, prompt in zip(document["choices"], prompts, strict=True):
            choice["prompt_token_ids"] = prompt
        return httpx.Response(200, json={**document, "usage": self._usage(), "system_fingerprint": "scripted-1"})

    _hits: int = 0

    def _usage(self) -> dict[str, Any]:
        return {"prompt_tokens_details": {"cached_tokens": self._hits}, "completion_tokens": 1}

    def _answers(self, prompts: list[Ids], tokens: int, salt: str, replica: int) -> list[list["_Token"]]:
        size = len(prompts) + len(self.beside)
        late = size > 1 and "shape" in self.layers and self._random.random() < _LATE
        self._hits = 0
        answers = []
        for place, prompt in enumerate(prompts):
            others = (*prompts[:place], *prompts[place + 1 :], *self.beside)
            warm = (salt, prompt) in self._cached and len(prompt) > _BLOCK
            self._hits += _BLOCK * warm
            keys = self._keys(prompt, others, size - late, warm=warm, replica=replica)
            answers.append(self._answer(prompt, tokens, keys, others))
        self._cached.update((salt, prompt) for prompt in prompts)
        return answers

    def _keys(
        self, prompt: Ids, others: tuple[Ids, ...], size: int, *, warm: bool, replica: int
    ) -> list[tuple[int, ...]]:
        """What noise belongs to; an answer of the same keys has the same noise."""
        keys: list[tuple[int, ...]] = []
        if "shape" in self.layers and size > 1:
            keys.append((1, size))
        if "cache" in self.layers and warm:
            keys.append((2,))
        if "kv" in self.layers and len(prompt) > _BLOCK and any(len(other) > _BLOCK for other in others):
            keys.append((3,))
        if "replica" in self.layers and replica:
            keys.append((4, replica))
        if "run" in self.layers:
            keys.append((5, self._random.getrandbits(40)))
        return keys

    def _answer(self, prompt: Ids, tokens: int, keys: list[tuple[int, ...]], others: tuple[Ids, ...]) -> list["_Token"]:
        faulty = self._random.randrange(tokens) if self._fault_strikes(tokens) else None
        content = hash(others) if others and "content" in self.layers else None
        full = _FULL * len(others) ** 0.5
        state, answer = _mixed(self.seed, *prompt), []
        for place in range(tokens):
            base = state
            if place == faulty:
                base = _mixed(state, 99, self._random.getrandbits(40)) | 1 << 63
            elif content is not None and _share(_mixed(state, 7, content)) < full:
                base = _mixed(state, 8) | 1 << 63
            token = _token(
                base, sum(_noise(base, key) for key in keys), sum(_noise(~base & _MASK, key) for key in keys)
            )
            answer.append(token)
            state = _mixed(state, token.taken)
        return answer

    def _fault_strikes(self, tokens: int) -> bool:
        return "fault" in self.layers and tokens > 1 and self._random.random() < _FAULTY


@dataclass(frozen=True, slots=True)
class _Token:
    taken: int
    other: int
    logprob: float
    margin: float


class _Neighbour(httpx.AsyncByteStream):
    """A stream that is being answered until it is closed."""

    def __init__(self, beside: list[Ids], prompt: Ids) -> None:
        self._beside, self._prompt = beside, prompt

    async def __aiter__(self) -> AsyncIterator[bytes]:
        self._beside.append(self._prompt)
        while True:
            yield b"data: {}\n\n"

    async def aclose(self) -> None:
        if self._prompt in self._beside:
            self._beside.remove(self._prompt)


def _token(base: int, margin_noise: float, logprob_noise: float) -> _Token:
    """The likeliest token of a state; one with the highest bit set had a clear choice."""
    first, second = 1 + base % 4999, 5001 + (base >> 20) % 4999
    share = _share(_mixed(base, 1))
    clear = base >> 63 or base % _MARGIN_STEPS
    margin = (1.5 + 3 * share if clear else 0.12 * share) + margin_noise
    logprob = -0.2 - _share(_mixed(base, 2)) + logprob_noise
    return _Token(first, second, logprob, margin) if margin >= 0 else _Token(second, first, logprob, -margin)


def _choice(position: int, tokens: list[_Token], *, chat: bool) -> dict[str, Any]:
    words = [f" t{token.taken}" for token in tokens]
    common = {"index": position, "finish_reason": "length", "token_ids": [token.taken for token in tokens]}
    tops = [{f" t{each.taken}": each.logprob, f" t{each.other}": each.logprob - each.margin} for each in tokens]
    if not chat:
        own = [token.logprob for token in tokens]
        logprobs: Mapping[str, Any] = {"tokens": words, "token_logprobs": own, "top_logprobs": tops}
        return {**common, "text": "".join(words), "logprobs": logprobs}
    content = [
        {
            "token": word,
            "logprob": token.logprob,
            "top_logprobs": [{"token": name, "logprob": value} for name, value in top.items()],
        }
        for word, token, top in zip(words, tokens, tops, strict=True)
    ]
    return {**common, "message": {"content": "".join(words)}, "logprobs": {"content": content}}


def _prompts(prompt: Any) -> list[Ids]:
    return [_ids(each) for each in prompt] if isinstance(prompt[0], list) else [_ids(prompt)]


def _ids(prompt: Any) -> Ids:
    return tuple(1 + sum(map(ord, word)) for word in prompt.split()) if isinstance(prompt, str) else tuple(prompt)


def _mixed(*parts: int) -> int:
    """Sixty-three well-mixed bits of some numbers (the finaliser of splitmix64, G. Steele and others, 2014)."""
    value = hash(parts) & _MASK
    value = ((value ^ value >> 30) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ value >> 27) * 0x94D049BB133111EB) & _MASK
    return (value ^ value >> 31) >> 1


def _share(value: int) -> float:
    return (value & (1 << 62) - 1) / (1 << 62)


def _noise(base: int, key: tuple[int, ...]) -> float:
    drawn = _mixed(base, *key)
    return ((drawn & 0xFFFFF) / 0xFFFFF + (drawn >> 20 & 0xFFFFF) / 0xFFFFF - 1) * 2.4 * _NOISE
