"""What the gateway asks an engine for on its own account: the engine is asked, the caller sees nothing of it."""

import json
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from app.determinism.reading import read_unary
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


@pytest.mark.parametrize(
    ("size", "mode", "apart"), [(10, "isolated", 0), (300_000, "isolated", 1), (300_000, "standard", 1)]
)
async def test_a_large_answer_is_read_beside_the_loop(
    upstream: ScriptedVllm, tmp_path: Path, size: int, mode: str, apart: bool
) -> None:
    """With logprobs that takes a tenth of a second; a small one is read where it is. Both have their digest."""
    readers: list[int] = []

    def spy(frame: FrameType, event: str, _argument: object) -> None:
        if event == "call" and frame.f_code is read_unary.__code__:
            readers.append(threading.get_ident())

    whole = dump(answer(message={"role": "assistant", "content": "a" * size}, token_ids=[5]))
    asked = {"model": "m", "determinism": mode, "temperature": 0, "x_script": {"raw": whole}}
    async with running_gateway(tmp_path, upstream.url) as gateway:
        threading.setprofile(spy)
        sys.setprofile(spy)
        try:
            got = await gateway.post(asked)
        finally:
            sys.setprofile(None)
            threading.setprofile(None)

    assert [reader != threading.get_ident() for reader in readers] == [apart]
    assert got.headers["x-determinism-output"].startswith("o-")
    assert got.headers["x-determinism-verdict"] == "pending"
