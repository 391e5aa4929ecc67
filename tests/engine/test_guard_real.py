"""The guard inside a real vLLM: alone means alone, whoever leaves frees the gate, and keys decide who may ask."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Protocol

import anyio
import httpx
import pytest

from app.determinism.posture import Posture

pytestmark = [pytest.mark.anyio, pytest.mark.engine]

PROMPTS = ("The capital of France is", "Once upon a time", "def fibonacci(n):", "The three laws of motion are")
PATIENCE = 120.0
"""Seconds that a busy engine may need for one answer."""


class Engine(Protocol):
    """The `engine` fixture."""

    url: str
    guard_key: str
    model: str


@pytest.fixture
async def client(engine: Engine) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the engine itself, past any gateway."""
    limits = httpx.Limits(max_connections=64)
    async with httpx.AsyncClient(base_url=engine.url, timeout=PATIENCE, limits=limits) as client:
        yield client


def gateway_headers(engine: Engine, admission: str) -> dict[str, str]:
    """What a gateway sends."""
    return {"x-determinism-admission": admission, "x-determinism-guard-key": engine.guard_key}


def completion(engine: Engine, prompt: str, tokens: int, **more: object) -> dict[str, object]:
    """A greedy completion of exactly ``tokens`` tokens."""
    greedy: dict[str, object] = {"temperature": 0, "max_tokens": tokens, "ignore_eos": True}
    return {"model": engine.model, "prompt": prompt, **greedy, **more}


async def gate_of(client: httpx.AsyncClient, engine: Engine) -> dict[str, int]:
    """The gate's counts, from the guard."""
    answer = await client.get("/reprise/posture", headers={"x-determinism-guard-key": engine.guard_key})
    gate: dict[str, int] = answer.raise_for_status().json()["gate"]
    return gate


async def gate_becomes(client: httpx.AsyncClient, engine: Engine, seconds: float, **wanted: int) -> float:
    """Ask until the gate's counts are as wanted; returns how long that took."""
    began = anyio.current_time()
    with anyio.fail_after(seconds):
        while not wanted.items() <= (await gate_of(client, engine)).items():
            pass
    return anyio.current_time() - began


@asynccontextmanager
async def background_load(client: httpx.AsyncClient, engine: Engine, width: int) -> AsyncIterator[list[int]]:
    """``width`` shared requests at a time while the block runs; yields the list of their co-resident peaks."""
    peaks: list[int] = []

    async def keep_asking(number: int) -> None:
        while True:
            body = completion(engine, f"Story number {number}:", 16)
            answer = await client.post("/v1/completions", json=body, headers=gateway_headers(engine, "shared"))
            peaks.append(int(answer.headers["x-determinism-coresident-peak"]))

    async with anyio.create_task_group() as group:
        for number in range(width):
            group.start_soon(keep_asking, number)
        await gate_becomes(client, engine, PATIENCE, shared=width)
        yield peaks
        group.cancel_scope.cancel()


async def test_exclusive_requests_are_alone_under_load_and_repeat(engine: Engine, client: httpx.AsyncClient) -> None:
    """Every exclusive request under load has peak 1 and the idle engine's answer; shared ones have company."""
    exclusive = gateway_headers(engine, "exclusive")

    async def ask(prompt: str) -> tuple[str, int]:
        answer = await client.post("/v1/completions", json=completion(engine, prompt, 24), headers=exclusive)
        body = answer.raise_for_status().json()
        return body["choices"][0]["text"], int(answer.headers["x-determinism-coresident-peak"])

    alone = {prompt: await ask(prompt) for prompt in PROMPTS}
    crowded: list[tuple[str, tuple[str, int]]] = []

    async def ask_and_keep(prompt: str) -> None:
        crowded.append((prompt, await ask(prompt)))

    async with background_load(client, engine, width=6) as shared_peaks, anyio.create_task_group() as group:
        for prompt in PROMPTS * 2:
            group.start_soon(ask_and_keep, prompt)

    assert [peak for _, peak in alone.values()] == [1] * len(PROMPTS)
    assert len(crowded) == 2 * len(PROMPTS)
    for prompt, result in crowded:
        assert result == alone[prompt]
    assert max(shared_peaks) > 1


async def test_a_client_that_leaves_the_queue_leaves_no_ticket(engine: Engine, client: httpx.AsyncClient) -> None:
    """Behind a running exclusive request, a waiting one whose client leaves is off the queue at once."""
    long = completion(engine, PROMPTS[1], 1500, stream=True)
    headers = gateway_headers(engine, "exclusive")
    async with client.stream("POST", "/v1/completions", json=long, headers=headers) as running:
        chunks = running.aiter_bytes()
        await anext(chunks)
        async with anyio.create_task_group() as group:

            async def wait_in_line() -> None:
                await client.post("/v1/completions", json=completion(engine, PROMPTS[0], 4), headers=headers)

            group.start_soon(wait_in_line)
            await gate_becomes(client, engine, 10, waiting_exclusive=1)
            group.cancel_scope.cancel()
        gone = await gate_becomes(client, engine, 10, waiting_exclusive=0)
        assert (await gate_of(client, engine))["exclusive"] == 1
    assert gone < 5.0  # at once, and not when the holder is done; a busy machine may take its time
    await gate_becomes(client, engine, 10, exclusive=0)


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_frees_the_gate(engine: Engine, client: httpx.AsyncClient, *, stream: bool) -> None:
    """A running exclusive request whose client leaves ends its lease at once, and the engine has nothing left then."""
    long = completion(engine, PROMPTS[1], 1500, stream=stream)
    headers = gateway_headers(engine, "exclusive")
    async with anyio.create_task_group() as group:

        async def run() -> None:
            async with client.stream("POST", "/v1/completions", json=long, headers=headers) as answer:
                async for _ in answer.aiter_bytes():
                    pass

        group.start_soon(run)
        await gate_becomes(client, engine, 10, exclusive=1)
        await engine_runs(client, 1)
        group.cancel_scope.cancel()
    freed = await gate_becomes(client, engine, 10, exclusive=0)
    assert freed < 5.0  # as above: the request itself would run for a minute
    await engine_runs(client, 0)


async def engine_runs(client: httpx.AsyncClient, wanted: int) -> None:
    """Wait until vLLM's own metrics show so many running requests."""
    with anyio.fail_after(30):
        while True:
            page = (await client.get("/metrics")).text
            running = [line for line in page.splitlines() if line.startswith("vllm:num_requests_running{")]
            if sum(float(line.rpartition(" ")[2]) for line in running) == wanted:
                return


async def test_keys_decide_who_may_be_alone(engine: Engine, client: httpx.AsyncClient) -> None:
    """A wrong key is refused, no key is admitted shared and told nothing, and an unknown admission is an error."""
    body = completion(engine, PROMPTS[0], 1)

    async def ask(**headers: str) -> httpx.Response:
        named = {f"x-determinism-{name.replace('_', '-')}": value for name, value in headers.items()}
        return await client.post("/v1/completions", json=body, headers=named)

    wrong = await ask(admission="exclusive", guard_key="not-the-key")
    assert (wrong.status_code, wrong.json()["error"]["code"]) == (403, "forbidden")
    unknown = await ask(admission="private", guard_key=engine.guard_key)
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (400, "invalid_request")
    keyless = await ask(admission="exclusive")
    assert keyless.status_code == 200
    assert "x-determinism-coresident-peak" not in keyless.headers
    assert (await client.get("/reprise/posture")).status_code == 403


async def test_the_posture_digest_is_the_system_fingerprint(engine: Engine, client: httpx.AsyncClient) -> None:
    """Unary and streamed answers carry the digest that the posture page states, which is that posture's digest."""
    page = (await client.get("/reprise/posture", headers=gateway_headers(engine, "shared"))).raise_for_status().json()
    assert Posture.from_mapping(page["posture"]).digest == page["digest"]

    unary = await client.post("/v1/completions", json=completion(engine, PROMPTS[0], 2))
    assert unary.json()["system_fingerprint"] == page["digest"]
    assert "x-determinism-posture" not in unary.headers
    for admission in ("shared", "exclusive"):
        body, headers = completion(engine, PROMPTS[0], 2), gateway_headers(engine, admission)
        told = await client.post("/v1/completions", json=body, headers=headers)
        assert told.headers["x-determinism-posture"] == page["digest"]
    chat = {"model": engine.model, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2, "stream": True}
    events = await stream_of(client, "/v1/chat/completions", chat, {})
    prints = {json.loads(event[6:]).get("system_fingerprint") for event in events if event.startswith("data: {")}
    assert prints == {None, page["digest"]}
    assert events[-1] == "data: [DONE]"
    assert not any(event.startswith(":") for event in events)


async def test_a_stream_says_its_peak_before_it_ends(engine: Engine, client: httpx.AsyncClient) -> None:
    """With the guard key, the last event before [DONE] is one comment with the co-resident peak."""
    body = completion(engine, PROMPTS[0], 4, stream=True)
    events = await stream_of(client, "/v1/completions", body, gateway_headers(engine, "exclusive"))
    assert events[-2:] == [': reprise-guard {"coresident_peak":1}', "data: [DONE]"]
    assert sum(event.startswith(":") for event in events) == 1


async def test_a_response_cannot_run_on_in_the_background(engine: Engine, client: httpx.AsyncClient) -> None:
    """The guard itself refuses it and names the field; in the foreground the same request is answered."""
    asked = {"model": engine.model, "input": "hi", "max_output_tokens": 2}
    refused = await client.post("/v1/responses", json={**asked, "background": True})
    error = refused.json()["error"]
    assert (refused.status_code, error["param"]) == (400, "background")
    assert "this replica is guarded" in error["message"]
    answered = await client.post("/v1/responses", json={**asked, "background": False})
    assert answered.status_code == 200


async def stream_of(client: httpx.AsyncClient, path: str, body: dict[str, Any], headers: dict[str, str]) -> list[str]:
    """The events of a streamed answer."""
    answer = await client.post(path, json=body, headers=headers)
    return [event for event in answer.raise_for_status().text.split("\n\n") if event]
