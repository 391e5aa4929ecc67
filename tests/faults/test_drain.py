"""SIGTERM: readiness off first, new requests still served, streams finished, and what is left ended with an error."""

import signal
from pathlib import Path

import anyio
import pytest

from tests.support.process import gateway_process
from tests.support.running import CHAT, RunningGateway, request_bytes, start
from tests.support.scripted import ScriptedVllm

pytestmark = pytest.mark.anyio


async def refuses(gateway: RunningGateway) -> None:
    """Ask until nobody listens any more."""
    while True:
        try:
            await gateway.get("/healthz")
        except OSError:
            return


async def test_readiness_turns_off_first_and_streams_finish(upstream: ScriptedVllm, tmp_path: Path) -> None:
    """While the delay lasts everything goes on; a stream that was under way comes to its end, then the process does."""
    settings = {"REPRISE_SHUTDOWN_DELAY": "1.5", "REPRISE_SHUTDOWN_GRACE": "20"}
    async with gateway_process(tmp_path, upstream, **settings) as (process, gateway):
        with anyio.fail_after(30):
            stream = start(gateway.post({"model": "m", "stream": True, "x_script": {"hold": 1}}))
            await upstream.until(1)
            process.send_signal(signal.SIGTERM)
            while (readiness := await gateway.get("/readyz")).status == 200:
                pass
            assert readiness.json()["retired"] is True
            assert (await gateway.get("/healthz")).status == 200
            assert (await gateway.post({"model": "m"})).status == 200
            assert process.returncode is None
            await refuses(gateway)
            upstream.release.set()
            answer = await stream
            await process.wait()
    assert answer.complete
    assert b"data: [DONE]" in answer.body


async def test_after_ctrl_c_streams_finish_too(upstream: ScriptedVllm, tmp_path: Path) -> None:
    """Without a delay: the listener closes at once, the stream comes to its end, and the exit status is a shell's."""
    settings = {"REPRISE_SHUTDOWN_DELAY": "20", "REPRISE_SHUTDOWN_GRACE": "20"}
    async with gateway_process(tmp_path, upstream, **settings) as (process, gateway):
        with anyio.fail_after(15):
            stream = start(gateway.post({"model": "m", "stream": True, "x_script": {"hold": 1}}))
            await upstream.until(1)
            process.send_signal(signal.SIGINT)
            await refuses(gateway)
            assert process.returncode is None
            upstream.release.set()
            answer = await stream
            await process.wait()
    assert answer.complete
    assert b"data: [DONE]" in answer.body
    assert process.returncode == 130


async def test_what_outlives_the_grace_ends_with_an_error_event(upstream: ScriptedVllm, tmp_path: Path) -> None:
    """It never looks complete, and the process ends."""
    settings = {"REPRISE_SHUTDOWN_DELAY": "0", "REPRISE_SHUTDOWN_GRACE": "1"}
    async with gateway_process(tmp_path, upstream, **settings) as (process, gateway):
        with anyio.fail_after(30):
            async with gateway.connection() as (reader, writer):
                body = b'{"model":"m","stream":true,"x_script":{"do":"stream","events":2,"then":"silent"}}'
                writer.write(request_bytes("POST", CHAT, body, {}))
                await reader.readuntil(b"finish_reason")
                process.send_signal(signal.SIGTERM)
                said = await reader.read()
            await process.wait()
    assert b"shutting down" in said
    assert b"[DONE]" not in said
    assert not said.endswith(b"0\r\n\r\n")


async def test_a_second_signal_skips_the_delay(upstream: ScriptedVllm, tmp_path: Path) -> None:
    """Whoever is in a hurry says so twice."""
    async with gateway_process(tmp_path, upstream, REPRISE_SHUTDOWN_DELAY="600") as (process, gateway):
        with anyio.fail_after(30):
            process.send_signal(signal.SIGTERM)
            while (await gateway.get("/readyz")).status == 200:
                pass
            process.send_signal(signal.SIGTERM)
            await process.wait()
