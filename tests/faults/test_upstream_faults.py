"""Upstream faults: a true status before the first byte, an error event after it, never a false completeness."""

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.running import RunningGateway, running_gateway
from tests.support.scripted import ScriptedVllm, stream_events

pytestmark = pytest.mark.anyio

MODES = ["standard", "isolated"]


async def served_again(gateway: RunningGateway) -> bool:
    """Whether the gateway still serves, in both admissions, so that no lease is left behind."""
    answers = [await gateway.post({"model": "m"}, x_determinism_mode=mode) for mode in MODES]
    return [answer.status for answer in answers] == [200, 200]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("script", "status", "code"),
    [
        ({"do": "reset"}, 502, "upstream_reset"),
        ({"do": "close"}, 502, "upstream_reset"),
        ({"do": "garbage"}, 502, "upstream_reset"),
        ({"do": "short"}, 502, "upstream_reset"),
        ({"do": "silent"}, 504, "upstream_timeout"),
    ],
)
async def test_before_the_first_byte(
    gateway: RunningGateway,
    upstream: ScriptedVllm,
    script: dict[str, Any],
    status: int,
    code: str,
    stream: bool,
    mode: str,
) -> None:
    """The true status in OpenAI's shape; the request was sent once and is not sent again."""
    answer = await gateway.post({"model": "m", "stream": stream, "x_script": script, "determinism": mode})

    assert (status, code) == (answer.status, answer.error["code"])
    assert len(upstream.received) == 1
    assert await served_again(gateway)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("events", [1, 2, 3])
@pytest.mark.parametrize("then", ["reset", "close", "end", "half", "silent"])
async def test_after_the_first_byte(gateway: RunningGateway, then: str, events: int, mode: str) -> None:
    """What came is passed on, then one error event; no [DONE], no final chunk, and the connection closes."""
    script = {"do": "stream", "events": events, "then": then, "text": "abcd"}

    answer = await gateway.post({"model": "m", "stream": True, "x_script": script, "determinism": mode})

    passed, _, error = answer.body.rstrip().rpartition(b"\n\ndata: ")
    assert answer.status == 200
    assert not answer.complete
    assert b"[DONE]" not in answer.body
    assert b"".join(stream_events("abcd")[:events]).rstrip() == passed
    assert ("upstream_timeout" if then == "silent" else "upstream_reset") == json.loads(error)["error"]["code"]
    assert await served_again(gateway)
    assert await gateway.metric(f'reprise_requests_total{{mode="{mode}",model="m",outcome="incomplete"}}') == 1


async def test_a_refused_connection(tmp_path: Path) -> None:
    """A replica that stops listening between two probes gives a 502 that says that nothing was sent."""
    server = ScriptedVllm()
    async with running_gateway_over(server, tmp_path) as gateway:
        answer = await gateway.post({"model": "m"})

    assert (answer.status, answer.error["code"]) == (502, "upstream_unavailable")
    assert server.received == []


@asynccontextmanager
async def running_gateway_over(server: ScriptedVllm, state_dir: Path) -> AsyncIterator[RunningGateway]:
    """A gateway that has seen ``server`` healthy, after ``server`` stopped; its next probe is far away."""
    async with AsyncExitStack() as listening:
        await listening.enter_async_context(server.serve())
        async with running_gateway(state_dir, server.url, probe_interval=60) as gateway:
            await listening.aclose()
            yield gateway


async def test_an_upstream_that_is_down(tmp_path: Path) -> None:
    """No replica at all: not ready, with the reason; nothing hangs."""
    dead = ScriptedVllm()
    async with dead.serve():
        url = dead.url
    async with ScriptedVllm().serve() as alive, running_gateway(tmp_path, alive.url, url) as gateway:
        while [r["healthy"] for r in (await gateway.get("/readyz")).json()["replicas"]] != [True, False]:
            pass
        answers = [await gateway.post({"model": "m"}) for _ in range(4)]
        assert {200} == {answer.status for answer in answers}
        assert "Connect" in (await gateway.get("/readyz")).json()["replicas"][1]["problem"]
