"""`verified` on a real engine, through a gateway: one answer per prompt, window and posture, however it was drafted.

The drafts are those of the engine itself, alone and in a batch, and of a proxy that replaces tokens of them at random.
"""

import json
import secrets
import sys
from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import Any

import anyio
import httpx
import pytest

from tests.engine.conftest import Engine, free_port, gateway_before, running, wait_for

pytestmark = [pytest.mark.anyio, pytest.mark.engine]

WINDOW = 32
TOKENS = 40
PATIENCE = 300.0
LYING_SHARE = 0.25
VOCABULARY = 49_152
PROMPTS = (
    "The lighthouse keeper wrote one letter every evening. This is the letter of the first day of winter:\n",
    "A list of twelve animals, and what each of them is afraid of:\n",
    "She opened the old map and",
)
KINDS = {"/v1/completions": "prompt", "/v1/chat/completions": "messages"}


@pytest.fixture(scope="module")
def chained(verifier: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A gateway before the engine with a prefix cache: the grid is the chain."""
    with gateway_before(tmp_path_factory.mktemp("chained"), verifier.url, guard_key=verifier.guard_key) as url:
        yield url


@pytest.fixture(scope="module")
def lied_to(verifier: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A gateway that reaches the same engine only through the proxy that lies."""
    port, folder = free_port(), tmp_path_factory.mktemp("lying")
    argv = [sys.executable, "-m", "tests.support.lying", verifier.url, str(LYING_SHARE), str(VOCABULARY), str(port)]
    with running(argv, folder / "log") as check:
        wait_for(f"http://127.0.0.1:{port}/health", {}, check)
        with gateway_before(folder / "state", f"http://127.0.0.1:{port}", guard_key=verifier.guard_key) as url:
            yield url


@pytest.fixture
async def http() -> AsyncIterator[httpx.AsyncClient]:
    """A client for any gateway."""
    async with httpx.AsyncClient(timeout=PATIENCE, trust_env=False) as client:
        yield client


def body(prompt: str, **changes: Any) -> dict[str, Any]:
    """A verified request that ends by its length alone."""
    wish = {"mode": "verified", "window": WINDOW}
    asked = {"model": "smollm2", "prompt": prompt, "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}
    return {**asked, "return_token_ids": True, "determinism": wish} | changes


async def ask(http: httpx.AsyncClient, gateway: str, prompt: str, **changes: Any) -> httpx.Response:
    """One answer."""
    answer = await http.post(f"{gateway}/v1/completions", json=body(prompt, **changes))
    assert answer.status_code == 200, answer.text
    return answer


def tokens_of(answer: httpx.Response) -> tuple[int, ...]:
    """Its token ids."""
    return tuple(answer.json()["choices"][0]["token_ids"])


async def together(http: httpx.AsyncClient, gateway: str, repeats: int) -> list[tuple[str, httpx.Response]]:
    """Every prompt so many times at once, beside ordinary requests that keep the batch full."""
    found: list[tuple[str, httpx.Response]] = []

    async def one(prompt: str) -> None:
        found.append((prompt, await ask(http, gateway, prompt)))

    async with anyio.create_task_group() as group:
        for number in range(repeats):
            for prompt in PROMPTS:
                group.start_soon(one, prompt)
                more = {"determinism": "standard", "max_tokens": 10 + 7 * number}
                group.start_soon(partial(ask, http, gateway, f"{number} {prompt}", **more))
    return found


async def test_an_answer_does_not_depend_on_its_drafts(http: httpx.AsyncClient, chained: str, lied_to: str) -> None:
    """Drafted alone, in a batch with others, and by one that lies: the same tokens, each pass alone."""
    known = {prompt: tokens_of(await ask(http, chained, prompt)) for prompt in PROMPTS}
    assert {len(tokens) for tokens in known.values()} == {TOKENS}
    crowd = await together(http, chained, 4)
    lies = [(prompt, await ask(http, lied_to, prompt)) for prompt in PROMPTS]
    for prompt, answer in [*crowd, *lies]:
        assert tokens_of(answer) == known[prompt]
        assert answer.headers["x-determinism-grid"] == "chain"
        assert answer.headers["x-determinism-coresident-peak"] == "1"
        assert answer.headers["x-determinism-applied"] == "cache_bypass,verification"
    refuted = [int(answer.headers["x-determinism-rollbacks"]) for _, answer in lies]
    assert all(refuted), refuted


async def test_an_answer_is_what_the_definition_says(http: httpx.AsyncClient, engine: Engine, gateway_url: str) -> None:
    """On the grid of a verifier without a prefix cache, from passes in which rubbish follows the token they decide."""
    prompt = PROMPTS[0]
    answer = await ask(http, gateway_url, prompt)
    assert answer.headers["x-determinism-grid"] == "prompt"
    tokens = tokens_of(answer)
    key = {"x-determinism-guard-key": engine.guard_key, "x-determinism-admission": "exclusive"}
    asked = {"model": "smollm2", "prompt": prompt}
    ids = (await http.post(f"{engine.url}/tokenize", json=asked)).raise_for_status().json()["tokens"]
    assert answer.json()["choices"][0]["prompt_token_ids"] == ids
    for number in (0, 1, WINDOW - 1, WINDOW, TOKENS - 1):
        position, total = len(ids) + number, len(ids) + (number // WINDOW + 1) * WINDOW
        rubbish = [1000 + secrets.randbelow(30_000) for _ in range(total - position)]
        content = {"ids": [*ids, *tokens[:number], *rubbish], "first": position, "k": 8}
        content |= {"cached": None, "prefix": 0, "block": 0, "salt": None}
        scores = (await http.post(f"{engine.url}/reprise/score", json=content, headers=key)).raise_for_status().json()
        logprobs = scores["logprobs"][0]
        assert logprobs.count(max(logprobs)) < len(logprobs)
        best = [token for token, value in zip(scores["ids"][0], logprobs, strict=True) if value == max(logprobs)]
        assert tokens[number] == min(best)


CACHED = ".usage.prompt_tokens_details"
"""What of the prompt was cached: of many errands there is no such figure, and vLLM writes null for none."""


NAMED = ".logprobs.top_logprobs[]"
"""In a completion its members are the tokens themselves."""


def members(value: object, path: str = "") -> Iterator[tuple[str, str]]:
    """Every member of a JSON value by its path, with its type."""
    if path.endswith(NAMED):
        yield path, type(value).__name__
    elif isinstance(value, dict):
        for name, each in value.items():
            yield from members(each, f"{path}.{name}")
    elif isinstance(value, list):
        for each in value:
            yield from members(each, f"{path}[]")
    elif not path.startswith(CACHED):
        yield path, type(value).__name__


SHAPED: tuple[dict[str, Any], ...] = (
    {},
    {"logprobs": 2},
    {"return_token_ids": True},
    {"stream_options": {"include_usage": True}},
    {"stream_options": {"include_usage": True, "continuous_usage_stats": True}, "logprobs": 1},
)


@pytest.mark.parametrize("more", SHAPED)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", KINDS)
async def test_an_answer_has_the_shape_of_an_ordinary_one(
    http: httpx.AsyncClient, gateway_url: str, path: str, stream: bool, more: dict[str, Any]
) -> None:
    """Member by member, as the same engine answers in `standard`; of a stream, all of its chunks together."""
    content = PROMPTS[2] if KINDS[path] == "prompt" else [{"role": "user", "content": "Say a word."}]
    asked = {"model": "smollm2", KINDS[path]: content, "max_tokens": 12, "temperature": 0, "ignore_eos": True, **more}
    if "logprobs" in more and KINDS[path] == "messages":
        asked |= {"logprobs": True, "top_logprobs": more["logprobs"]}
    if not stream:
        asked.pop("stream_options", None)
    found = []
    for wish in ("standard", {"mode": "verified", "window": 8}):
        answer = await http.post(f"{gateway_url}{path}", json={**asked, "stream": stream, "determinism": wish})
        assert answer.status_code == 200, answer.text
        events = [line[6:] for line in answer.text.splitlines() if line.startswith("data: {")]
        assert answer.text.endswith("data: [DONE]\n\n") is stream
        parts = [json.loads(event) for event in events] if stream else [answer.json()]
        found.append({member for part in parts for member in members(part)})
    assert found[1] == found[0]
