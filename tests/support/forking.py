"""A scripted upstream whose answers fork as told, with the logprobs, cache words and interval log of a guarded vLLM.

For the observatory: what it shows of a divergence must come the whole way, from an answer's bytes to the page.
"""

import json
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from app.engine.admissions import MOST_LISTED
from tests.support.running import RunningGateway
from tests.support.scripted import Received, ScriptedVllm, guarded

GUARD_KEY = "guard-key"
SHARED = "Consensus is needed because each machine may fail on its own, and so they"
LEFT = f"{SHARED} elect a leader first."
RIGHT = f"{SHARED} vote about every entry."
FORK = len(SHARED.split(" "))
HOSTILE = '<img src="x" onerror="window.harmed = true"> is what I say'


@dataclass(frozen=True)
class Said:
    """One answer: its text as tokens, the margin in nats at some of them (5 at the rest), and its circumstances."""

    tokens: tuple[str, ...]
    margins: dict[int, float] = field(default_factory=dict)
    peak: int = 1
    cached: int = 0
    reasoning: str | None = None

    @property
    def text(self) -> str:
        """The whole text."""
        return "".join(self.tokens)


def words(text: str, **told: Any) -> Said:
    """An answer whose tokens are its words, each with the space before it."""
    first, *rest = text.split(" ")
    return Said((first, *(f" {word}" for word in rest)), **told)


class ForkingVllm(ScriptedVllm):
    """Gives the answers of ``script`` in order, the last one again and again; ``phases`` fill its interval log."""

    def __init__(self, *script: Said, digest: str = "p-4f1c22a90b7d") -> None:
        super().__init__()
        self.script = deque(script)
        self.phases: list[dict[str, Any]] = []
        self.began = time.time() - 3600.0  # noqa: TID251 - the log of a guard tells when its clock began
        self._said: dict[int, Said] = {}
        guarded(self, digest=digest, batch_invariance=False, framework_determinism=False)
        assert self.guard_answer is not None
        self.guard_answer[1]["max_logprobs"] = 20

    def phase(self, asked: float, granted: float, ended: float | None, *, admission: str, peak: int = 1) -> None:
        """Note an admission; times are seconds since 1970."""
        asked_us, granted_us, ended_us = (
            None if moment is None else round((moment - self.began) * 1e6) for moment in (asked, granted, ended)
        )
        number = len(self.phases) + 1
        times = {"asked_us": asked_us, "granted_us": granted_us, "started_us": granted_us, "ended_us": ended_us}
        self.phases.append(
            {"sequence": number, "request": f"request-{number}", "admission": admission, "peak": peak, "epoch": "e-1"}
            | times
        )

    def _admissions(self, query: str) -> dict[str, Any]:
        after = int(dict(parse_qsl(urlsplit(query).query)).get("after", "0"))
        rows = [phase for phase in self.phases if phase["sequence"] > after][:MOST_LISTED]
        started = time.strftime("%Y-%m-%dT%H:%M:%S.000000+00:00", time.gmtime(self.began))
        return {
            "epoch": "e-1",
            "started": started,
            "kept": 16_384,
            "first": 1,
            "next": len(self.phases) + 1,
            "admissions": rows,
        }

    def _control(self, path: str, headers: dict[str, str], writer: Any) -> None:
        if path.startswith("/reprise/admissions?after="):
            body = json.dumps(self._admissions(path)).encode()
            head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
            writer.write(head.encode() + body)
        else:
            super()._control(path, headers, writer)

    async def _act(self, request: Received, writer: Any) -> None:
        said = self.script.popleft() if len(self.script) > 1 else self.script[0]
        self._said[id(request)] = said
        members = json.loads(request.body)
        body = _body(said, logprobs=bool(members.get("logprobs")), ids=bool(members.get("return_token_ids")))
        word = "".join(f"{name}: {value}\r\n" for name, value in self._words(request).items())
        head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n{word}\r\n"
        writer.write(head.encode() + body)
        await writer.drain()

    def _words(self, request: Received) -> dict[str, str]:
        said = self._said.pop(id(request))
        return {**super()._words(request), "x-determinism-coresident-peak": str(said.peak)}


def _body(said: Said, *, logprobs: bool, ids: bool) -> bytes:
    choice: dict[str, Any] = {
        "index": 0,
        "message": {"role": "assistant", "content": said.text, "reasoning": said.reasoning},
        "finish_reason": "stop",
    }
    if logprobs:
        choice["logprobs"] = {"content": list(_logprobs(said))}
    if ids:
        choice["token_ids"] = [_id(token) for token in said.tokens]
    usage = {
        "prompt_tokens": 64,
        "completion_tokens": len(said.tokens),
        "total_tokens": 64 + len(said.tokens),
        "prompt_tokens_details": {"cached_tokens": said.cached},
    }
    return json.dumps(
        {"id": "chatcmpl-1", "object": "chat.completion", "model": "m", "choices": [choice], "usage": usage}
    ).encode()


def _logprobs(said: Said) -> Iterator[dict[str, Any]]:
    for place, token in enumerate(said.tokens):
        margin = said.margins.get(place, 5.0)
        top = [{"token": token, "logprob": -0.25}, {"token": "?", "logprob": -0.25 - margin}]
        yield {"token": token, "logprob": -0.25, "top_logprobs": [{**each, "bytes": None} for each in top]}


def _id(token: str) -> int:
    return sum(byte << (8 * place) for place, byte in enumerate(token.encode()[:3]))


async def ask(gateway: RunningGateway, prompt: str, mode: str = "standard", **headers: str) -> None:
    """One client's request, with logprobs."""
    body: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": prompt}], "temperature": 0}
    answer = await gateway.post({**body, "logprobs": True, "determinism": mode}, **headers)
    assert answer.status == 200, answer.body


async def fill(upstream: ForkingVllm, gateway: RunningGateway) -> None:
    """Two cohorts that diverged, one with hostile texts, and one that did not."""
    tie = {FORK: 0.0625}
    same, other = words(LEFT, margins=tie), words(RIGHT, margins=tie, peak=8, cached=48)
    upstream.script.extend([same, same, same, other])
    upstream.script.popleft()
    for _ in range(4):
        await ask(gateway, "why consensus?", x_determinism_run="evening")
    upstream.script.extend([words(HOSTILE), words(f"{HOSTILE} again", peak=2)])
    upstream.script.popleft()
    for _ in range(2):
        await ask(gateway, "be hostile")
    upstream.script.append(same)
    upstream.script.popleft()
    for _ in range(5):
        await ask(gateway, "why consensus?", "isolated")


def address(gateway: RunningGateway, path: str = "") -> str:
    return f"http://127.0.0.1:{gateway.port}/observatory{path}"
