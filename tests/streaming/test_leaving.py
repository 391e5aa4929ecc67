"""A client that leaves, at any moment and in any mode: nothing stays behind, and the upstream learns of it at once."""

import asyncio
import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from tests.support.running import CHAT, RunningGateway, request_bytes, running_gateway, start
from tests.support.scripted import ScriptedVllm

pytestmark = pytest.mark.anyio

MODES = ["standard", "isolated"]


def body(mode: str, **script: object) -> bytes:
    return json.dumps({"model": "m", "stream": True, "determinism": mode, "x_script": script}).encode()


async def idle(gateway: RunningGateway, upstream: ScriptedVllm) -> None:
    """Wait until the gateway holds no lease and the upstream runs nothing."""
    while (await gateway.get("/readyz")).json()["replicas"][0]["leases"] or upstream.running:
        pass


async def leave(gateway: RunningGateway, request: bytes, when: Callable[[asyncio.StreamReader], object]) -> None:
    """Send a request, wait for ``when``, and cut the connection."""
    async with gateway.connection() as (reader, writer):
        writer.write(request_bytes("POST", CHAT, request, {"content-type": "application/json"}))
        waited = when(reader)
        if asyncio.iscoroutine(waited):
            await waited
        writer.transport.abort()


@pytest.mark.parametrize("mode", MODES)
async def test_before_the_headers(gateway: RunningGateway, upstream: ScriptedVllm, mode: str) -> None:
    """While the engine computes, the upstream connection closes and the lease ends."""
    await leave(gateway, body(mode, do="silent"), lambda _: upstream.until(1))

    async with asyncio.timeout(5):
        await upstream.received[0].closed_by_client.wait()
        await idle(gateway, upstream)
    assert await gateway.metric(f'reprise_requests_total{{mode="{mode}",model="m",outcome="client_closed"}}') == 1


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("events", [1, 2])
async def test_in_the_middle_of_a_stream(
    gateway: RunningGateway, upstream: ScriptedVllm, mode: str, events: int
) -> None:
    """Between two chunks of a silent stream it is the same."""
    await leave(
        gateway,
        body(mode, do="stream", events=events, then="silent"),
        lambda reader: reader.readuntil(b'"choices"'),
    )

    async with asyncio.timeout(5):
        await upstream.received[0].closed_by_client.wait()
        await idle(gateway, upstream)


@pytest.mark.parametrize("mode", MODES)
async def test_in_the_queue(gateway: RunningGateway, upstream: ScriptedVllm, mode: str) -> None:
    """A request whose client leaves while it waits for its turn is never sent."""
    holder = start(gateway.post({"model": "m", "determinism": "isolated", "x_script": {"hold": 1}}))
    await upstream.until(1)

    async def queued(_: asyncio.StreamReader) -> None:
        while (await gateway.get("/readyz")).json()["replicas"][0]["leases"] < 2:
            pass

    await leave(gateway, body(mode), queued)
    while (await gateway.get("/readyz")).json()["replicas"][0]["leases"] > 1:
        pass
    upstream.release.set()

    assert (await holder).status == 200
    await idle(gateway, upstream)
    assert len(upstream.received) == 1
    assert (await gateway.post({"model": "m", "determinism": "isolated"})).status == 200


@pytest.mark.parametrize("script", [{"do": "silent"}, {"do": "stream", "events": 1, "then": "silent"}])
async def test_under_another_protocol_class(upstream: ScriptedVllm, tmp_path: Path, script: dict[str, object]) -> None:
    """Without our own protocol class it is the same, by what ASGI's receive tells."""
    async with running_gateway(tmp_path, upstream.url, protocol=HttpToolsProtocol) as gateway:
        await leave(gateway, body("isolated", **script), lambda _: upstream.until(1))
        async with asyncio.timeout(5):
            await upstream.received[0].closed_by_client.wait()
            await idle(gateway, upstream)
        assert (await gateway.post({"model": "m", "determinism": "isolated"})).status == 200


@pytest.mark.parametrize("mode", MODES)
async def test_a_client_that_stops_reading(upstream: ScriptedVllm, tmp_path: Path, mode: str) -> None:
    """It is given up after its time, so that it cannot hold the replica, and the upstream is let go."""
    async with running_gateway(tmp_path, upstream.url, write_timeout=0.3) as gateway, asyncio.timeout(20):
        async with gateway.connection() as (_, writer):
            writer.write(request_bytes("POST", CHAT, body(mode, do="flood"), {}))
            received = await upstream.until(1)
            await received.closed_by_client.wait()
            assert (await gateway.post({"model": "m", "determinism": "isolated"})).status == 200
        labels = f'mode="{mode}",model="m",outcome="client_closed"'
        assert await gateway.metric(f"reprise_requests_total{{{labels}}}") == 1


@pytest.mark.parametrize("second", [b'{"model": "m", "determinism": "isolated"}', b"nonsense"])
async def test_a_client_that_never_reads_its_answers_holds_nothing(
    upstream: ScriptedVllm, tmp_path: Path, second: bytes
) -> None:
    """Behind an answer that fills every buffer, the next one waits too, and is given up with its connection."""
    async with running_gateway(tmp_path, upstream.url, write_timeout=0.3) as gateway, asyncio.timeout(30):
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port, limit=1)
        large = json.dumps({"model": "m", "x_script": {"raw": "x" * 2**24}}).encode()
        for request in (large, second):
            writer.write(request_bytes("POST", CHAT, request, {}))
        await upstream.until(1)
        while any("run_asgi" in repr(task.get_coro()) for task in asyncio.all_tasks()):
            await gateway.get("/healthz")
        assert (await gateway.post({"model": "m", "determinism": "isolated"})).status == 200
        await idle(gateway, upstream)
        assert len(await cut_off(reader)) < 2**24
        writer.close()


async def cut_off(reader: asyncio.StreamReader) -> bytes:
    """What still came over a connection that the gateway has cut."""
    got = bytearray()
    with suppress(ConnectionError):
        while piece := await reader.read(2**20):
            got += piece
    return bytes(got)


@pytest.mark.parametrize(
    ("script", "began"), [({"do": "silent"}, b""), ({"do": "stream", "events": 2, "then": "silent"}, b"finish_reason")]
)
async def test_what_outlives_the_grace_of_a_shutdown(
    upstream: ScriptedVllm, tmp_path: Path, script: dict[str, object], began: bytes
) -> None:
    """It is told so, before its first byte with a status and after it with an error event, and never looks complete."""
    async with running_gateway(tmp_path, upstream.url) as gateway:
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        writer.write(request_bytes("POST", CHAT, body("standard", **script), {}))
        await upstream.until(1)
        head = await reader.readuntil(began) if began else b""
    said = head + await reader.read()
    writer.close()

    assert said.startswith(b"HTTP/1.1 200" if began else b"HTTP/1.1 503")
    assert b"shutting down" in said
    assert b"[DONE]" not in said
    assert not said.endswith(b"0\r\n\r\n")


async def test_before_the_body_has_arrived(gateway: RunningGateway, upstream: ScriptedVllm) -> None:
    """A client that leaves half-way through its body costs nothing."""
    async with gateway.connection() as (_, writer):
        request = request_bytes("POST", CHAT, b"{}", {}).replace(b"content-length: 2", b"content-length: 200")
        writer.write(request)
        await writer.drain()
        writer.transport.abort()
    assert (await gateway.post({"model": "m"})).status == 200
    assert len(upstream.received) == 1


async def test_many_at_once(gateway: RunningGateway, upstream: ScriptedVllm) -> None:
    """A hundred clients that leave in every phase leave no lease, and the next requests succeed."""
    actions: list[dict[str, object]] = [
        {"do": "silent"},
        {"do": "stream", "events": 1, "then": "silent"},
        {"hold": 1},
        {},
    ]

    async def come_and_go(number: int) -> None:
        mode = MODES[number % 2] if number % 10 == 0 else "standard"
        async with gateway.connection() as (_, writer):
            writer.write(request_bytes("POST", CHAT, body(mode, **actions[number % 4]), {}))
            await writer.drain()
            if number % 3:
                await upstream.until(1 + number // 8)
            writer.transport.abort()

    async with asyncio.timeout(30):
        await asyncio.gather(*(come_and_go(number) for number in range(100)))
        upstream.release.set()
        await idle(gateway, upstream)

    answers = [await gateway.post({"model": "m"}, x_determinism_mode=mode) for mode in MODES for _ in range(10)]
    assert {200} == {answer.status for answer in answers}
