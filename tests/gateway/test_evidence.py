"""What the gateway asks an engine for on its own account: the engine is asked, the caller sees nothing of it."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.running import RunningGateway, running_gateway
from tests.support.scripted import ScriptedVllm, guarded

pytestmark = pytest.mark.anyio

LOGPROBS = {"content": [{"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": []}]}


def answer(**choice: object) -> dict[str, Any]:
    """A chat answer as vLLM writes it."""
    filled = {"index": 0, "message": {"role": "assistant", "content": "a"}, "logprobs": None, "finish_reason": "stop"}
    return {"id": "1", "choices": [{**filled, "token_ids": None, **choice}], "prompt_token_ids": None}


def dump(value: object) -> str:
    """Compact, as vLLM does."""
    return json.dumps(value, separators=(",", ":"))


FULL = dump(answer(logprobs=LOGPROBS, token_ids=[5]) | {"prompt_token_ids": [1, 2]})


async def test_a_deterministic_answer_is_as_if_nobody_had_asked(
    gateway: RunningGateway, upstream: ScriptedVllm
) -> None:
    """Byte for byte; a stock engine, of which no limit of logprobs is known, is asked for token ids alone."""
    got = await gateway.post({"model": "m", "determinism": "isolated", "x_script": {"raw": FULL}})
    sent = json.loads(upstream.received[0].body)
    assert sent["return_token_ids"] is True
    assert "logprobs" not in sent
    assert got.body.decode() == dump(answer(logprobs=LOGPROBS))
    assert got.headers["content-length"] == str(len(got.body))


async def test_an_ordinary_request_goes_out_as_it_came(gateway: RunningGateway, upstream: ScriptedVllm) -> None:
    """And comes back so."""
    body = b'{"model": "m",  "x_script": {"raw": %s}}' % dump(FULL).encode()
    got = await gateway.post(body)
    assert upstream.received[0].body == body
    assert got.body.decode() == FULL


@pytest.mark.parametrize(("limit", "asked"), [(20, True), (2, True), (1, False), (0, False), (None, False)])
async def test_logprobs_are_asked_for_within_the_engines_limit(
    upstream: ScriptedVllm, tmp_path: Path, limit: int | None, asked: bool
) -> None:
    """More would be refused, and the refusal would be our fault."""
    guarded(upstream, max_logprobs=limit)
    async with running_gateway(tmp_path, upstream.url, guard_key="k") as gateway:
        await gateway.post({"model": "m", "determinism": "isolated"})
    sent = json.loads(upstream.received[0].body)
    assert sent.get("top_logprobs") == (2 if asked else None)
    assert sent["return_token_ids"] is True


async def test_an_operator_may_forbid_it(upstream: ScriptedVllm, tmp_path: Path) -> None:
    """Then nothing is asked for, and answers are left alone."""
    async with running_gateway(tmp_path, upstream.url, evidence="none") as gateway:
        got = await gateway.post({"model": "m", "determinism": "isolated", "x_script": {"raw": FULL}})
    assert "return_token_ids" not in json.loads(upstream.received[0].body)
    assert got.body.decode() == FULL
