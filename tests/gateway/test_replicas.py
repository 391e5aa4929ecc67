"""Several replicas: one retry where nothing was sent, none where something was, and who is told to a guard."""

from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.support.running import CHAT, running_gateway
from tests.support.scripted import ScriptedVllm, guarded

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("mode", ["standard", "isolated"])
async def test_one_that_cannot_be_reached_is_passed_over(tmp_path: Path, mode: str) -> None:
    """The request goes to the other replica, once; the caller notices nothing."""
    async with AsyncExitStack() as stack, ScriptedVllm().serve() as second:
        first = await stack.enter_async_context(ScriptedVllm().serve())
        for replica in (first, second):
            guarded(replica)
        async with running_gateway(tmp_path, first.url, second.url, guard_key="k", probe_interval=60) as gateway:
            while not all(each["healthy"] for each in (await gateway.get("/readyz")).json()["replicas"]):
                pass
            await stack.aclose()
            answers = [await gateway.post({"model": "m", "determinism": mode}) for _ in range(3)]
            state = (await gateway.get("/readyz")).json()["replicas"]
            gauges = [
                await gateway.metric(f'reprise_leases{{admission="{admission}",replica="{each["replica"]}"}}')
                for each in state
                for admission in ("shared", "exclusive")
                if mode == ("isolated" if admission == "exclusive" else "standard")
            ]

    assert {answer.status for answer in answers} == {200}
    assert {answer.headers["x-determinism-replica"] for answer in answers} == {second.url.removeprefix("http://")}
    assert len(second.received) == 3
    assert [each["leases"] for each in state] == gauges == [0, 0]


async def test_a_deterministic_request_is_not_retried_in_another_pool(tmp_path: Path) -> None:
    """Another posture might answer otherwise: an error is the better answer."""
    async with AsyncExitStack() as stack, ScriptedVllm().serve() as second:
        first = await stack.enter_async_context(ScriptedVllm().serve())
        guarded(first)
        guarded(second, digest="p-2")
        async with running_gateway(tmp_path, first.url, second.url, guard_key="k", probe_interval=60) as gateway:
            while not all(each["healthy"] for each in (await gateway.get("/readyz")).json()["replicas"]):
                pass
            founding = {"model": "m", "determinism": "isolated", "x_script": {"do": "close"}}
            assert (await gateway.post(founding)).status == 502
            await stack.aclose()
            refused = await gateway.post({"model": "m", "determinism": "isolated"})
            served = await gateway.post({"model": "m"})

    assert (refused.status, refused.error["code"]) == (502, "upstream_unavailable")
    assert served.status == 200
    assert len(second.received) == 1


@pytest.mark.parametrize("action", ["reset", "close", "short", "garbage"])
async def test_what_may_have_run_is_not_sent_again(tmp_path: Path, action: str) -> None:
    """Once a byte was sent the request may be running: the caller gets a 502, and the other replica nothing."""
    async with (
        ScriptedVllm().serve() as first,
        ScriptedVllm().serve() as second,
        running_gateway(tmp_path, first.url, second.url) as gateway,
    ):
        while not all(each["healthy"] for each in (await gateway.get("/readyz")).json()["replicas"]):
            pass
        answer = await gateway.post({"model": "m", "x_script": {"do": action}})
    assert answer.status == 502
    assert len(first.received) + len(second.received) == 1


async def test_a_guard_is_told_who_asks_and_how_urgent_it_is(upstream: ScriptedVllm, tmp_path: Path) -> None:
    """For exclusive requests: a digest of the caller's key, never the key; his priority; and how long it may wait."""
    guarded(upstream)
    async with running_gateway(tmp_path, upstream.url, guard_key="k", queue_timeout=12) as gateway:
        for authorization in ("Bearer one", "Bearer two", "Bearer one"):
            await gateway.post({"model": "m", "determinism": "isolated", "priority": -3}, authorization=authorization)
        await gateway.post({"model": "m", "determinism": "isolated"})
        await gateway.post({"model": "m", "priority": 5})
    told = [request.headers for request in upstream.received]

    callers = [headers.get("x-determinism-caller") for headers in told]
    assert callers[0] == callers[2] != callers[1]
    assert len(str(callers[0])) == 16
    assert callers[3:] == ["", None]
    assert [headers.get("x-determinism-priority") for headers in told] == ["-3", "-3", "-3", "0", None]
    assert {headers["x-determinism-queue-timeout"] for headers in told} == {"12.000"}
    assert b"priority" not in upstream.received[0].body


@pytest.mark.parametrize("name", ["admission", "guard_key", "priority", "caller", "queue_timeout"])
async def test_what_only_a_gateway_may_say_is_stripped(upstream: ScriptedVllm, tmp_path: Path, name: str) -> None:
    """A client that sends the headers between gateway and guard is served as if it had not."""
    guarded(upstream)
    async with running_gateway(tmp_path, upstream.url, guard_key="k") as gateway:
        answer = await gateway.post({"model": "m"}, CHAT, **{f"x_determinism_{name}": "exclusive"})
    headers = upstream.received[0].headers
    assert answer.status == 200
    assert "exclusive" not in headers.values()
    assert headers["x-determinism-admission"] == "shared"


async def test_a_full_guard_is_the_callers_to_wait_for(upstream: ScriptedVllm, tmp_path: Path) -> None:
    """Its 429 passes with Retry-After, counts as unavailable and not as the client's fault, and is sent once."""
    guarded(upstream)
    async with running_gateway(tmp_path, upstream.url, guard_key="k") as gateway:
        answer = await gateway.post({"model": "m", "determinism": "isolated", "x_script": {"status": 429}})
        counted = await gateway.metric('reprise_requests_total{mode="isolated",model="m",outcome="unavailable"}')
    assert (answer.status, answer.headers["retry-after"], counted) == (429, "7", 1)
    assert len(upstream.received) == 1
