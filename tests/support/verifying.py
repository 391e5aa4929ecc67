"""A scripted verifier over real sockets: a small language model that scores, drafts, renders and writes text.

What a row holds is a pseudo-random function of the tokens before it and, at one place in eight, of the shape of the
pass: so a drafter is right most of the time, and a pass of another shape than the definition's gives itself away.
Exact ties are frequent, and which of several equals is shown depends on how many are asked for. `reference` goes token
by token, straight from the definition, and shares nothing with what it checks.
"""

import asyncio
import json
from collections import Counter, deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from random import Random
from typing import Any, Final

from tests.support.running import CHAT, Answer, RunningGateway, running_gateway
from tests.support.scripted import Received, ScriptedVllm, guarded

GUARD_KEY: Final = "guard-key-of-this-test"
TEXT: Final = "/v1/completions"
VOCABULARY: Final = 64
EOS: Final = 40
EMPTY: Final = 1
"""A token that has no text of its own, as the first half of a character has none."""

BLOCK: Final = 16
LENGTH: Final = 160
WINDOW: Final = 8
MOST: Final = 20
LEVELS: Final = 24
KINDS: Final = {"/reprise/render": "render", "/reprise/score": "pass", "/reprise/text": "text"}

Shape = tuple[int, int | None, int] | None
"""Tokens of a pass, those that it reads, and the length of its prefix pass; None: a decoding engine's steps."""


def piece(token: int) -> str:
    """A token's own text."""
    return "" if token in {EOS, EMPTY} else chr(97 + token % 26) * (1 + token // 26)


def logprobs_of(seed: int, shape: Shape, before: Sequence[int]) -> tuple[float, ...]:
    """The logprob of every token after these."""
    text = repr((seed, tuple(before)))
    if blake2b(f"{shape}{text}".encode()).digest()[0] % 8 == 0:
        text = f"{shape}{text}"
    digest = blake2b(text.encode(), digest_size=VOCABULARY).digest()
    return tuple(-0.125 - byte * LEVELS // 256 / 8 for byte in digest)


def likeliest(logprobs: Sequence[float], masked: frozenset[int] = frozenset()) -> int:
    """The token with the highest logprob, the lowest id among equals."""
    return min(
        (token for token in range(VOCABULARY) if token not in masked), key=lambda token: (-logprobs[token], token)
    )


def tokenized(members: dict[str, Any]) -> list[int]:
    """The ids of a prompt that is not ids already."""
    if "messages" in members:
        turns = "".join(f"{turn['role']}:{turn['content']};" for turn in members["messages"])
        text = turns + (">" if members.get("add_generation_prompt", True) else "")
    else:
        text = members["prompt"]
    return [2 + ord(character) % (VOCABULARY - 2) for character in text]


class Refused(Exception):
    """What vLLM refuses of a request when it renders it: its words, the member, and the status."""

    def __init__(self, message: str, param: str, status: int = 400) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.status = status


def rendered(path: str, request: dict[str, Any]) -> list[int]:
    """The ids of a request's prompt. Raises Refused, for a few of vLLM's own reasons."""
    if path == CHAT and not request.get("messages"):
        raise Refused("no messages", "messages")
    prompt = request.get("prompt")
    if path == TEXT and not prompt:
        raise Refused("no prompt", "prompt")
    salt = request.get("cache_salt")
    if not (salt is None or isinstance(salt, str)) or salt == "":
        raise Refused("no salt", "cache_salt")
    ids = list(prompt) if isinstance(prompt, list) else tokenized(request)
    if len(ids) >= LENGTH:
        raise Refused(f"the maximum context length is {LENGTH} tokens, not {len(ids)}", "input_tokens")
    return ids


@dataclass(frozen=True)
class Reference:
    """What a verified answer must be. ``logprobs`` are the rows' own, of all tokens."""

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    text: str
    finish_reason: str
    stop_reason: int | str | None
    logprobs: tuple[tuple[float, ...], ...] = field(repr=False)


def shape_at(position: int, prompt: int, window: int, *, chain: bool) -> Shape:
    """The shape of the pass that decides a position, by the definition."""
    end = 0 if chain else prompt
    while end < position + (not chain):
        end += window
    total = min(end, LENGTH - 1)
    return (total, (total - 1) // BLOCK * BLOCK, (prompt - 1) // BLOCK * BLOCK) if chain else (total, None, 0)


def reference(members: dict[str, Any], *, seed: int = 0, chain: bool = True) -> Reference:
    """The answer to a request, token by token."""
    given = members.get("prompt")
    prompt = given if isinstance(given, list) else tokenized(members)
    most = members.get("max_completion_tokens") or members.get("max_tokens") or (16 if given is not None else LENGTH)
    wish = members["determinism"]
    window = wish.get("window", WINDOW) if isinstance(wish, dict) else WINDOW
    stop = members.get("stop") or []
    stop_ids, fewest = members.get("stop_token_ids", []), members.get("min_tokens", 0)
    stop, include = [stop] if isinstance(stop, str) else stop, members.get("include_stop_str_in_output", False)
    ends = {*stop_ids, *(() if members.get("ignore_eos") else (EOS,))}
    known, rows, text = list(prompt), list[tuple[float, ...]](), ""

    def ended(reason: str, why: int | str | None) -> Reference:
        return Reference(tuple(prompt), tuple(known[len(prompt) :]), text, reason, why, tuple(rows))

    while True:
        count = len(known) - len(prompt)
        logprobs = logprobs_of(seed, shape_at(len(known), len(prompt), window, chain=chain), known)
        token = likeliest(logprobs, frozenset({EOS, *stop_ids}) if count < fewest else frozenset())
        known.append(token)
        rows.append(logprobs)
        if token not in ends or include:
            text += piece(token)
            fresh = len(piece(token)) if count + 1 > fewest else 0
            if (found := found_stop(text, fresh, stop, include=include)) is not None:
                text = text[: found[1]]
                return ended("stop", found[0])
        if token in ends:
            return ended("stop", token if token in stop_ids and token != EOS else None)
        if count + 1 == most or len(known) == LENGTH:
            return ended("length", None)


def found_stop(text: str, fresh: int, stop: Sequence[str], *, include: bool) -> tuple[str, int] | None:
    """The first stop string of the list that the fresh characters completed, and where the text is cut."""
    for string in stop:
        at = text.find(string, max(len(text) - fresh - len(string) + 1, 0))
        if fresh and at >= 0:
            return string, at + len(string) if include else at
    return None


class Verifying(ScriptedVllm):
    """The server. ``faults`` are consumed in order, one by each request of that kind; "" is none.

    Faults of any kind: reset, half, die, an HTTP status, unavailable, error, null, no_json, silent. Of a pass: posture,
    company, no_word, cached, few, many, short, twice, foreign, nan, words; of a text: backwards, stop, decoded; of a
    rendering: foreign.
    ``held`` are the kinds that wait for ``release``: "head" before anything of the answer is sent, "body" in the middle
    of it. ``drafter``: honest, lies, foreign, garbage.
    """

    def __init__(self, *, seed: int = 0, drafter: str = "honest", digest: str = "p-1", **facts: Any) -> None:
        super().__init__()
        self.seed = seed
        self.drafter = drafter
        self.digest = digest
        self.faults: dict[str, deque[str]] = {}
        self.held: dict[str, str] = {}
        self.reached: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.models[0]["max_model_len"] = LENGTH
        self._random = Random(seed)  # noqa: S311 - a script, no secret
        guarded(self, digest=digest, batch_invariance=False, max_logprobs=MOST)
        self.page["model"] = model_facts() | facts

    @asynccontextmanager
    async def serve(self) -> AsyncIterator["Verifying"]:
        """Listen on a free loopback port."""
        async with super().serve():
            yield self

    def fail(self, kind: str, *faults: str) -> None:
        """What the next requests of a kind meet."""
        self.faults[kind] = deque(faults)

    def hold(self, kind: str, place: str) -> None:
        """Let the requests of a kind wait."""
        self.held[kind] = place

    @property
    def page(self) -> dict[str, Any]:
        """What the guard's page says."""
        assert self.guard_answer is not None
        return self.guard_answer[1]

    def of(self, kind: str) -> list[Received]:
        """The requests of a kind that came."""
        return [request for request in self.received if kind_of(request.path) == kind]

    async def until_held(self, kind: str, count: int = 1) -> Received:
        """Wait until so many requests of a kind are held; the last of them is returned."""
        async with self.arrived:
            await self.arrived.wait_for(lambda: self.reached[kind] >= count)
        return self.of(kind)[-1]

    async def until_next_held(self, kind: str) -> Received:
        """Let those go that are held, and wait for the next one of the kind."""
        count = self.reached[kind]
        self.release.set()
        self.release = asyncio.Event()
        return await self.until_held(kind, count + 1)

    async def _act(self, request: Received, writer: asyncio.StreamWriter) -> None:
        kind, members = kind_of(request.path), json.loads(request.body)
        if kind == "draft" and not isinstance(members.get("prompt"), list):
            await super()._act(request, writer)
            return
        faults = self.faults.get(kind)
        fault = faults.popleft() if faults else ""
        if self.held.get(kind) == "head":
            await self._hold(kind)
        if fault in {"reset", "die"}:
            if fault == "die" and self.listener is not None:
                self.listener.close()
            writer.transport.abort()
            raise ConnectionResetError
        if fault == "silent":
            await asyncio.Event().wait()
        status, body, words = self._answered(kind, members, fault, request)
        head = "".join(f"{name}: {value}\r\n" for name, value in words.items())
        start = f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n{head}\r\n"
        half = len(body) // 2
        writer.write(start.encode() + body[:half])
        await writer.drain()
        if self.held.get(kind) == "body":
            await self._hold(kind)
        if fault == "half":
            writer.close()
            raise ConnectionResetError
        writer.write(body[half:])

    async def _hold(self, kind: str) -> None:
        async with self.arrived:
            self.reached[kind] += 1
            self.arrived.notify_all()
        await self.release.wait()

    def _answered(
        self, kind: str, members: dict[str, Any], fault: str, request: Received
    ) -> tuple[int, bytes, dict[str, str]]:
        words = {"x-determinism-coresident-peak": "1", "x-determinism-posture": self.digest}
        words["x-determinism-admission-wait"] = "0.125"
        words |= {"company": {"x-determinism-coresident-peak": "2"}, "posture": {"x-determinism-posture": "p-2"}}.get(
            fault, {}
        )
        if kind in {"render", "text"} or fault == "no_word" or "x-determinism-guard-key" not in request.headers:
            words = {}
        if fault.isdigit():
            error = {"message": f"scripted {fault}", "type": "x", "param": "prompt", "code": "scripted"}
            return int(fault), json.dumps({"error": error}).encode(), words | {"retry-after": "7"}
        if fault == "unavailable":
            error = {"message": "the self-test failed", "code": "determinism_unavailable"}
            return 503, json.dumps({"error": error}).encode(), words
        odd = {"error": b'{"error": {"message": "late"}}', "null": b"null", "no_json": b"{nonsense"}.get(fault)
        if odd is not None:
            return 200, odd, words
        made = {"render": self._render, "pass": self._scores, "text": self._text, "draft": self._draft}
        try:
            return 200, json.dumps(made[kind](members, fault)).encode(), words
        except Refused as exc:
            told = {"message": exc.message, "type": "BadRequestError", "param": exc.param, "code": exc.status}
            return exc.status, json.dumps({"error": told}).encode(), words
        except AssertionError as exc:
            self.wrong.append(f"{kind}: {exc}")
            return 400, json.dumps({"error": {"message": f"the contract is broken: {exc}"}}).encode(), words

    @staticmethod
    def _render(members: dict[str, Any], fault: str) -> dict[str, Any]:
        assert set(members) == {"path", "request"}, sorted(members)
        assert members["path"] in {CHAT, TEXT}, members["path"]
        request = members["request"]
        assert "determinism" not in request
        assert request.get("model", "m") != "m@verified"
        ids = rendered(members["path"], request)
        return {"ids": [*ids, VOCABULARY] if fault == "foreign" else ids}

    def _scores(self, members: dict[str, Any], fault: str) -> dict[str, Any]:
        ids, first, k, cached = members["ids"], members["first"], members["k"], members["cached"]
        self._check(members)
        shape = (len(ids), cached, members["prefix"] if cached is not None else 0)
        rows = [self._row(shape, ids[:position], k) for position in range(first, len(ids) + 1)]
        _spoil(rows, fault)
        return {
            "ids": [row[0] for row in rows],
            "logprobs": [row[1] for row in rows],
            "sampled": True,
            "cached": (cached or 0) + (BLOCK if fault == "cached" else 0),
            "engine_passes": 1,
            "seconds": 0.25,
        }

    def _check(self, members: dict[str, Any]) -> None:
        """What the guard would refuse."""
        ids, cached = members["ids"], members["cached"]
        assert set(members) == {"ids", "first", "k", "cached", "prefix", "block", "salt"}, sorted(members)
        assert 0 < len(ids) < LENGTH, len(ids)
        assert all(type(token) is int and 0 <= token < VOCABULARY for token in ids), ids
        assert 1 <= members["first"] <= len(ids), members["first"]
        assert 1 <= members["k"] <= MOST, members["k"]
        if cached is not None:
            assert members["block"] == BLOCK, members["block"]
            assert cached == (len(ids) - 1) // BLOCK * BLOCK < members["first"], cached
            assert members["prefix"] % BLOCK == 0, members["prefix"]
            assert members["prefix"] <= cached, members["prefix"]
            assert members["salt"]

    def _row(self, shape: Shape, before: Sequence[int], k: int) -> tuple[list[int], list[Any]]:
        logprobs = logprobs_of(self.seed, shape, before)
        order = list(range(VOCABULARY))
        Random(repr((tuple(before), k))).shuffle(order)  # noqa: S311 - a script, no secret
        best = sorted(order, key=lambda token: -logprobs[token])[:k]
        return best, [logprobs[token] for token in best]

    def _draft(self, members: dict[str, Any], _fault: str) -> Any:
        known, ids = list(members["prompt"]), list[int]()
        assert members["temperature"] == 0
        if self.drafter == "garbage":
            return self._random.choice([None, [], {"choices": []}, {"choices": [{"token_ids": "x"}]}, {"choices": 1}])
        while len(ids) < members["max_tokens"]:
            token = likeliest(logprobs_of(self.seed, None, [*known, *ids]))
            if self.drafter == "lies" and self._random.random() < 0.4:
                token = self._random.randrange(VOCABULARY)
            if self.drafter == "foreign" and self._random.random() < 0.2:
                token = self._random.choice([-1, VOCABULARY, 2**31, 2**62])
            ids.append(token)
            if (token == EOS and not members.get("ignore_eos")) or token in members.get("stop_token_ids", ()):
                break
        return {"choices": [{"index": 0, "text": "", "token_ids": ids}]}

    @staticmethod
    def _text(members: dict[str, Any], fault: str) -> dict[str, Any]:
        text, ends, include = "", list[int](), members["include_stop_str_in_output"]
        answer: dict[str, Any] = {
            "stop": None,
            "decoded": [[piece(token) for token in row] for row in members["decode"]],
        }
        for index, token in enumerate(members["ids"]):
            before = len(text)
            if not (members["ended"] and index == len(members["ids"]) - 1) or include:
                text += piece(token)
            ends.append(len(text))
            fresh = len(text) - before if index + 1 > members["min_tokens"] else 0
            found = found_stop(text, fresh, members["stop"], include=include)
            if found is not None:
                text, answer["stop"] = text[: found[1]], {"index": index, "string": found[0]}
                break
        if fault == "backwards":
            text = f"?{text}"
        if fault == "stop":
            answer["stop"] = {"index": len(members["ids"]), "string": "x"}
        if fault == "decoded":
            answer["decoded"] = []
        return answer | {"text": text, "ends": ends}


def _spoil(rows: list[tuple[list[int], list[Any]]], fault: str) -> None:
    """Make of good rows what no verifier may send."""
    ids, logprobs = rows[0]
    match fault:
        case "few":
            rows.pop()
        case "many":
            rows.append(rows[-1])
        case "short":
            ids.pop(), logprobs.pop()
        case "twice":
            ids[1] = ids[0]
        case "foreign":
            ids[0] = VOCABULARY
        case "nan":
            logprobs[0] = None
        case "words":
            logprobs[0] = "-0.5"


def kind_of(path: str) -> str:
    """Render, pass, text, or draft for what generates."""
    return KINDS.get(path, "draft")


def model_facts() -> dict[str, Any]:
    """What the guard tells of the model."""
    return {
        "length": LENGTH,
        "vocabulary": VOCABULARY,
        "eos": EOS,
        "stops": [],
        "defaults": {},
        "max_tokens_default": None,
        "max_tokens_cap": None,
        "reasoning_parser": None,
        "tool_parser": None,
        "harmony": False,
        "multimodal": False,
        "logits_processors": False,
        "logprobs_mode": "raw_logprobs",
        "speculation": False,
        "block_size": BLOCK,
        "prefix_caching": True,
    }


@asynccontextmanager
async def verifying_gateway(state: Path, *servers: Verifying, **settings: Any) -> AsyncIterator[RunningGateway]:
    """A gateway before the servers, all of them seen."""
    chosen = {"guard_key": GUARD_KEY, "window": WINDOW, **settings}
    async with running_gateway(state, *(server.url for server in servers), **chosen) as gateway:
        while not all(replica["healthy"] for replica in (await gateway.get("/readyz")).json()["replicas"]):
            pass
        yield gateway


@asynccontextmanager
async def verified_site(
    state: Path, *, seed: int = 0, drafter: str = "honest", **facts: Any
) -> AsyncIterator[tuple[Verifying, RunningGateway]]:
    """A verifier that drafts for itself, and a gateway before it; the verifier must have got nothing wrong."""
    async with (
        Verifying(seed=seed, drafter=drafter, **facts).serve() as server,
        verifying_gateway(state, server) as gateway,
    ):
        yield server, gateway
        assert server.wrong == []


def chat(content: str = "why?", **members: Any) -> dict[str, Any]:
    """A verified chat."""
    turn = {"role": "user", "content": content}
    return {"model": "m", "messages": [turn], "temperature": 0, "determinism": "verified", **members}


def text(prompt: str | list[int] = "why?", **members: Any) -> dict[str, Any]:
    """A verified completion."""
    return {"model": "m", "prompt": prompt, "temperature": 0, "determinism": "verified", **members}


async def ask(gateway: RunningGateway, members: dict[str, Any], **headers: str) -> Any:
    """A whole answer to a request."""
    answer = await gateway.post(members, path_of(members), **headers)
    assert answer.status == 200, answer.body
    assert answer.complete
    return answer


@dataclass(frozen=True)
class Said:
    """What an answer says, whole or put together from a stream."""

    text: str
    finish_reason: str | None
    stop_reason: int | str | None
    token_ids: list[int]
    logprobs: list[dict[str, Any]]
    usage: dict[str, Any] | None
    events: list[dict[str, Any]]


def said(answer: Answer) -> Said:
    """Read an answer of either path."""
    if answer.headers["content-type"].startswith("application/json"):
        body = answer.json()
        return _joined([body], body["usage"])
    found = events(answer)
    assert answer.body.endswith(b"data: [DONE]\n\n")
    usage = next((event["usage"] for event in reversed(found) if event.get("usage")), None)
    return _joined(found, usage)


def events(answer: Answer) -> list[dict[str, Any]]:
    """The events of a stream, its end left out."""
    lines = [line.removeprefix(b"data: ") for line in answer.body.split(b"\n") if line.startswith(b"data: ")]
    return [json.loads(line) for line in lines if line != b"[DONE]"]


def comment(answer: Answer) -> dict[str, Any]:
    """What a stream says in its comment."""
    line = answer.body.rpartition(b"\n: determinism ")[2].partition(b"\n")[0]
    found: dict[str, Any] = json.loads(line)
    return found


def _joined(found: list[dict[str, Any]], usage: dict[str, Any] | None) -> Said:
    choices = [event["choices"][0] for event in found if event["choices"]]
    last = choices[-1]
    return Said(
        text="".join(_text_of(choice) for choice in choices),
        finish_reason=last["finish_reason"],
        stop_reason=last["stop_reason"],
        token_ids=[token for choice in choices for token in choice.get("token_ids") or []],
        logprobs=[choice["logprobs"] for choice in choices if choice.get("logprobs")],
        usage=usage,
        events=found,
    )


def _text_of(choice: dict[str, Any]) -> str:
    if "text" in choice:
        return str(choice["text"])
    return str((choice.get("message") or choice.get("delta") or {}).get("content") or "")


def path_of(members: dict[str, Any]) -> str:
    """Where a request goes."""
    return CHAT if "messages" in members else TEXT
