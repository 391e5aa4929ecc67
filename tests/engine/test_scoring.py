"""Verification passes of a real vLLM: rows are a function of tokens and grid, whatever was cached, evicted or drafted.

The cache of the engine is so small that a few prompts of other traffic evict a chain.
"""

import random
import secrets
from collections.abc import AsyncIterator
from typing import Any

import anyio
import httpx
import pytest

from tests.engine.conftest import VERIFIER_LENGTH as LENGTH
from tests.engine.conftest import Engine

pytestmark = [pytest.mark.anyio, pytest.mark.engine]

BLOCK = 128
VOCABULARY = 49_152
PATIENCE = 300.0
"""Seconds for one answer of a busy machine."""

STORY = "The lighthouse keeper wrote one letter every evening. This is the letter of the first day of winter:\n"


class Client:
    """A gateway's side of the two paths."""

    def __init__(self, engine: Engine, http: httpx.AsyncClient) -> None:
        self.engine, self.http = engine, http
        self.key = {"x-determinism-guard-key": engine.guard_key}
        self.exclusive = {**self.key, "x-determinism-admission": "exclusive"}

    async def page(self) -> dict[str, Any]:
        """The posture page."""
        page: dict[str, Any] = (await self.http.get("/reprise/posture", headers=self.key)).raise_for_status().json()
        return page

    async def score(self, ids: list[int], first: int, chain: str | None = None, prefix: int = 0) -> dict[str, Any]:
        """One pass; with ``chain``, its salt, over cached blocks."""
        cached = None if chain is None else (len(ids) - 1) // BLOCK * BLOCK
        body = {"ids": ids, "first": first, "k": 3, "cached": cached, "prefix": prefix, "block": BLOCK, "salt": chain}
        answer = await self.http.post("/reprise/score", json=body, headers=self.exclusive)
        assert answer.status_code == 200, answer.text
        assert answer.headers["x-determinism-coresident-peak"] == "1"
        content: dict[str, Any] = answer.json()
        assert content["cached"] == (cached or 0)
        assert len(content["ids"]) == len(content["logprobs"]) == len(ids) - first + 1
        return content

    async def complete(self, **changes: Any) -> dict[str, Any]:
        """An ordinary completion."""
        answer = await self.http.post("/v1/completions", json={"model": self.engine.model, "temperature": 0, **changes})
        assert answer.status_code == 200, answer.text
        choice: dict[str, Any] = answer.json()["choices"][0]
        return choice

    async def tokens(self, text: str) -> list[int]:
        """Token ids of a text, from the engine's own tokenizer."""
        body = {"model": self.engine.model, "prompt": text, "add_special_tokens": False}
        found: list[int] = (await self.http.post("/tokenize", json=body)).raise_for_status().json()["tokens"]
        return found

    async def render(self, path: str, request: dict[str, Any]) -> httpx.Response:
        """The guard's rendering of a caller's request."""
        return await self.http.post("/reprise/render", json={"path": path, "request": request}, headers=self.key)

    async def text(self, prompt: list[int], ids: list[int], **changes: Any) -> dict[str, Any]:
        """The text of given tokens."""
        body: dict[str, Any] = {"prompt": prompt, "ids": ids, "stop": [], "min_tokens": 0, "ended": False, "decode": []}
        flags = ("skip_special_tokens", "spaces_between_special_tokens", "include_stop_str_in_output")
        body |= dict(zip(flags, (True, True, False), strict=True)) | changes
        found: dict[str, Any] = (
            (await self.http.post("/reprise/text", json=body, headers=self.key)).raise_for_status().json()
        )
        return found


@pytest.fixture
async def client(verifier: Engine) -> AsyncIterator[Client]:
    """A client of the engine itself."""
    async with httpx.AsyncClient(base_url=verifier.url, timeout=PATIENCE, trust_env=False) as http:
        yield Client(verifier, http)


def some_tokens(seed: int, count: int) -> list[int]:
    """Ordinary token ids, always the same for a seed."""
    source = random.Random(seed)  # noqa: S311 - test data
    return [source.randrange(1000, 40_000) for _ in range(count)]


def rows(answer: dict[str, Any]) -> list[tuple[list[int], list[float]]]:
    """The rows of an answer."""
    return list(zip(answer["ids"], answer["logprobs"], strict=True))


async def test_the_model_is_told_and_the_engine_passes_its_test(client: Client) -> None:
    """What the gateway goes by; the self-test is made with the first pass."""
    await client.score(some_tokens(1, 8), 8)
    page = await client.page()
    assert page["self_test"] == {"held": True, "reason": ""}
    assert page["provides"]["verification"] == {"held": True, "reason": ""}
    facts = {"logprobs_mode": "raw_logprobs", "max_logprobs": 20, "max_scheduled_tokens": 2048, "kv_connector": "none"}
    assert facts.items() <= page["posture"].items()
    assert page["posture"]["generation_config_digest"] is not None
    assert page["model"] == {
        "length": LENGTH,
        "vocabulary": VOCABULARY,
        "eos": 2,
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


async def test_rows_are_those_of_vllms_own_endpoint(client: Client) -> None:
    """The same tensors as ``prompt_logprobs`` of a completion, to the last bit, and the sampled row after them."""
    ids = some_tokens(2, 150)
    answer = await client.score(ids, 100)
    choice = await client.complete(prompt=ids, max_tokens=1, prompt_logprobs=3, return_token_ids=True)
    for position, (tokens, logprobs) in zip(range(100, 150), rows(answer), strict=False):
        told = choice["prompt_logprobs"][position]
        assert {str(token): told[str(token)]["logprob"] for token in tokens} == dict(
            zip(map(str, tokens), logprobs, strict=True)
        )
    assert answer["ids"][-1][0] == choice["token_ids"][0]


async def test_rows_at_one_length_do_not_depend_on_what_follows(client: Client) -> None:
    """The claim of the whole mode, on a prompt of several blocks; and again on the same tokens."""
    ids = some_tokens(3, 500)
    first = rows(await client.score(ids, 300))
    for seed in (4, 5):
        other = rows(await client.score(ids[:440] + some_tokens(seed, 60), 300))
        assert other[:141] == first[:141]
        assert other[141:] != first[141:]
    assert rows(await client.score(ids, 300)) == first


@pytest.mark.parametrize("length", [100, 300])
async def test_a_chain_is_a_function_of_its_tokens(client: Client, length: int) -> None:
    """Grown block by block, over wrong candidates, computed anew, and after other traffic has evicted it."""
    prefix = (length - 1) // BLOCK * BLOCK
    ids = some_tokens(length, prefix + 3 * BLOCK)
    ends = [prefix + number * BLOCK for number in (1, 2, 3)]
    grown = secrets.token_hex(8)

    async def at(end: int, chain: str, tokens: list[int] = ids) -> dict[str, Any]:
        return await client.score(tokens[:end], max(end - BLOCK + 1, length), chain, prefix)

    known: dict[int, list[tuple[list[int], list[float]]]] = {}
    for end in ends:
        wrong = ids[: end - 40] + some_tokens(end, 40)
        before = rows(await at(end, grown, wrong))
        answer = await at(end, grown)
        known[end] = rows(answer)
        assert answer["engine_passes"] == 1
        assert before[:-40] == known[end][:-40]
        assert before != known[end]
    assert rows(await at(ends[-1], grown)) == known[ends[-1]]

    anew = secrets.token_hex(8)
    answer = await at(ends[-1], anew)
    assert answer["engine_passes"] == (prefix > 0) + 3
    assert rows(answer) == known[ends[-1]]
    assert rows(await at(ends[0], anew)) == known[ends[0]]

    for seed in range(2):
        await client.complete(prompt=some_tokens(1000 + seed, LENGTH - 100), max_tokens=1)
    answer = await at(ends[-1], grown)
    assert answer["engine_passes"] > 1
    assert rows(answer) == known[ends[-1]]
    assert (await at(ends[-1], grown))["engine_passes"] == 1


async def test_a_chain_reaches_the_context_limit(client: Client) -> None:
    """The last pass is cut at one token less; its sampled row decides the last position there is."""
    ids = some_tokens(6, LENGTH - 1)
    prefix = LENGTH - BLOCK
    first = await client.score(ids, prefix + 1, "to the limit", prefix)
    assert len(first["ids"]) == BLOCK - 1
    assert rows(await client.score(ids, prefix + 1, "to the limit", prefix)) == rows(first)


async def test_drafts_do_not_reach_the_answer(client: Client) -> None:
    """Windows of 32 on the chain, from a good draft, from rubbish, and from nothing: one answer."""
    prompt = await client.tokens(STORY)
    window, wanted = 32, 48

    async def decode(draft: list[int], chain: str) -> tuple[list[int], int]:
        decided: list[int] = []
        passes = 0
        while len(decided) < wanted:
            position = len(prompt) + len(decided)
            end = -(-position // window) * window
            known = prompt + decided
            candidate = (known + draft[len(decided) :] + [0] * window)[:end]
            answer = await client.score(candidate, position, chain)
            passes += 1
            for number, (tokens, logprobs) in enumerate(rows(answer)):
                best = min(token for token, value in zip(tokens, logprobs, strict=True) if value == max(logprobs))
                decided.append(best)
                if position + number < end and candidate[position + number] != best:
                    break
        return decided[:wanted], passes

    choice = await client.complete(prompt=prompt, max_tokens=wanted, ignore_eos=True, return_token_ids=True)
    good, few = await decode(choice["token_ids"], "good")
    lying, many = await decode([token if n % 5 else 7 for n, token in enumerate(choice["token_ids"])], "lying")
    assert lying == good
    assert few < many
    assert (await decode(good, "good"))[0] == good
    assert (await decode([], "none"))[0][:wanted] == good


CORPUS = "héllo 🎉🧑‍🚀👩‍👩‍👧 日本語テキスト 中文。 <|im_start|>user\n<|im_end|> stop here, please\n\n  and ¡más! \u200b"


@pytest.mark.parametrize("skip", [True, False])
@pytest.mark.parametrize("length", [9, 150])
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"stop": ["please", "本"]},
        {"stop": ["e", "🎉"], "include_stop_str_in_output": True, "min_tokens": 8},
        {"spaces_between_special_tokens": False},
    ],
)
async def test_text_is_that_of_a_stream(client: Client, more: dict[str, Any], length: int, *, skip: bool) -> None:
    """Sampled from the tokens of a text with characters of several bytes and special tokens, in any wild order.

    After prompts that end at any place of a character, a few tokens long or many.
    """
    corpus = await client.tokens(CORPUS)
    for seed in range(3):
        prompt = (corpus * 4)[: length + seed]
        assert len(prompt) == length + seed
        body = {
            "model": "smollm2",
            "prompt": prompt,
            "max_tokens": 40,
            "temperature": 1.5,
            "seed": seed,
            "allowed_token_ids": sorted(set(corpus)),
            "stream": True,
            "return_token_ids": True,
            "skip_special_tokens": skip,
            **more,
        }
        ids: list[int] = []
        text, finish, reason = "", None, None
        async with client.http.stream("POST", "/v1/completions", json=body) as stream:
            async for line in stream.aiter_lines():
                if not line.startswith("data: {"):
                    continue
                for choice in httpx.Response(200, content=line[6:]).json()["choices"]:
                    ids += choice["token_ids"] or []
                    text += choice["text"]
                    finish = choice["finish_reason"] or finish
                    reason = choice["stop_reason"]
        ended = finish == "stop" and reason is None
        found = await client.text(prompt, ids, ended=ended, skip_special_tokens=skip, **more)
        assert found["text"] == text
        assert len(found["ends"]) == len(ids)
        assert found["ends"][-1] == len(text)
        assert found["ends"] == sorted(found["ends"])
        assert (found["stop"] or {}).get("string") == reason


async def test_a_client_that_leaves_frees_the_engine(client: Client) -> None:
    """Its pass is aborted, and the next one is served with the rows it should have."""
    ids = some_tokens(7, LENGTH - 1)
    fresh = rows(await client.score(ids[:200], 150, "of those that stay"))
    left = anyio.Event()

    async def leave() -> None:
        with anyio.CancelScope() as scope:

            async def watch() -> None:
                while not (await client.page())["gate"]["exclusive"]:
                    pass
                scope.cancel()
                left.set()

            async with anyio.create_task_group() as group:
                group.start_soon(watch)
                await client.score(ids, LENGTH - 20, "of those that leave", LENGTH - BLOCK)

    with anyio.fail_after(PATIENCE):
        await leave()
        await left.wait()
        began = anyio.current_time()
        while (await client.page())["gate"]["exclusive"]:
            pass
    assert anyio.current_time() - began < 5
    assert rows(await client.score(ids[:200], 150, "of those that stay")) == fresh


CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
MESSAGES = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": CORPUS}]


@pytest.mark.parametrize(
    ("path", "request_"),
    [
        (CHAT, {"messages": MESSAGES}),
        (CHAT, {"messages": MESSAGES, "reasoning_effort": "low", "chat_template_kwargs": {"reasoning_effort": "high"}}),
        (CHAT, {"messages": MESSAGES[1:], "add_generation_prompt": False, "add_special_tokens": True}),
        (CHAT, {"messages": MESSAGES, "model": "smollm2", "truncate_prompt_tokens": 20, "cache_salt": "abc"}),
        (COMPLETIONS, {"prompt": CORPUS, "add_special_tokens": False}),
        (COMPLETIONS, {"prompt": [[1, 2, 49_151]]}),
    ],
)
async def test_what_is_rendered_is_what_runs(client: Client, path: str, request_: dict[str, Any]) -> None:
    """The ids that vLLM's own endpoint says it ran."""
    answer = await client.render(path, request_)
    assert answer.status_code == 200, answer.text
    asked = {**request_, "max_tokens": 1, "return_token_ids": True}
    ran = (await client.http.post(path, json=asked)).raise_for_status().json()
    assert answer.json() == {"ids": ran["prompt_token_ids"] if path == CHAT else ran["choices"][0]["prompt_token_ids"]}


REFUSED: list[tuple[str, dict[str, Any]]] = [
    (CHAT, {"reasoning_effort": "banana"}),
    (CHAT, {"documents": [1]}),
    (CHAT, {"seed": 2**64 - 1}),
    (CHAT, {"truncation_side": "up"}),
    (CHAT, {"routed_experts_prompt_start": -1}),
    (CHAT, {"session_id": 5}),
    (CHAT, {"user": 5}),
    (CHAT, {"cache_salt": 5}),
    (CHAT, {"cache_salt": ""}),
    (CHAT, {"cache_salt": "a/b"}),
    (CHAT, {"stream_options": "x"}),
    (CHAT, {"messages": "x"}),
    (CHAT, {"messages": []}),
    (CHAT, {"messages": [{"role": "user", "content": "word " * 3000}]}),
    (CHAT, {"model": "nobody"}),
    (CHAT, {"chat_template": "{{ 1 }}"}),
    (CHAT, {"max_tokens": LENGTH + 1}),
    (CHAT, {"logprobs": True, "top_logprobs": 21}),
    (COMPLETIONS, {"prompt": "x" * 2_000_000}),
    (COMPLETIONS, {"prompt": [2 * VOCABULARY]}),
    (COMPLETIONS, {"prompt": [1] * (LENGTH + 1)}),
    (COMPLETIONS, {"prompt": [1] * LENGTH}),
    (COMPLETIONS, {"prompt": []}),
    (COMPLETIONS, {"prompt": ""}),
    (COMPLETIONS, {"prompt": [-1]}),
    (COMPLETIONS, {"prompt": {"a": 1}}),
    (COMPLETIONS, {"user": 5}),
    (COMPLETIONS, {"logprobs": 21}),
]


@pytest.mark.parametrize(("path", "changes"), REFUSED, ids=lambda value: str(value)[:60])
async def test_what_vllm_refuses_is_refused_in_its_words(client: Client, path: str, changes: dict[str, Any]) -> None:
    """Status, message, field and all."""
    request = {"messages": MESSAGES} if path == CHAT else {"prompt": "Hi"}
    theirs = await client.http.post(path, json={**request, **changes})
    assert 400 <= theirs.status_code < 500, theirs.text
    ours = await client.render(path, {**request, **changes})
    assert (ours.status_code, ours.json()) == (theirs.status_code, theirs.json())


async def test_a_prompt_that_is_too_long_is_not_tokenized(client: Client) -> None:
    """Its characters are counted first."""
    answer = await client.render(COMPLETIONS, {"prompt": "word " * 400_000})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "input_text")


async def test_several_prompts_are_not_rendered_as_one(client: Client) -> None:
    """400 that names the field."""
    answer = await client.render(COMPLETIONS, {"prompt": ["a", "b"]})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "prompt")
