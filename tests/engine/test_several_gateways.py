"""Several gateways before one real vLLM: the guard alone keeps isolation, whatever becomes of a gateway."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import anyio
import httpx
import pytest

pytestmark = [pytest.mark.anyio, pytest.mark.engine]

ROOT = Path(__file__).resolve().parents[2]


class Engine(Protocol):
    """The `engine` fixture."""

    url: str
    guard_key: str
    model: str


@contextmanager
def doomed_gateway(engine: Engine, state: Path, port: int) -> Iterator[subprocess.Popen[bytes]]:
    """A gateway that the test will treat badly."""
    argv = [sys.executable, "-m", "app.cli", "serve", "--port", str(port), "--upstream", engine.url]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "REPRISE_GUARD_KEY": engine.guard_key}
    with subprocess.Popen([*argv, "--state-dir", str(state)], env=environment, stderr=subprocess.DEVNULL) as process:
        try:
            yield process
        finally:
            process.kill()


async def ready(url: str) -> None:
    """Wait until a gateway is."""
    async with httpx.AsyncClient(trust_env=False) as client:
        with anyio.fail_after(30):
            while True:
                try:
                    if (await client.get(f"{url}/readyz")).status_code == httpx.codes.OK:
                        return
                except httpx.HTTPError:
                    await anyio.lowlevel.checkpoint()


def story(engine: Engine, tokens: int, mode: str, **more: object) -> dict[str, object]:
    """A completion of exactly so many tokens."""
    fixed = {"model": engine.model, "prompt": "Once upon a time", "temperature": 0, "ignore_eos": True}
    return {**fixed, "max_tokens": tokens, "determinism": mode, **more}


async def exclusive_at_engine(client: httpx.AsyncClient, engine: Engine) -> int:
    """Exclusive requests that the guard runs now."""
    page = await client.get(f"{engine.url}/reprise/posture", headers={"x-determinism-guard-key": engine.guard_key})
    return int(page.json()["gate"]["exclusive"])


async def test_a_gateway_that_is_killed_loses_its_own_request_only(
    engine: Engine, gateway_url: str, tmp_path: Path, unused_port: int
) -> None:
    """SIGKILL in the middle of an isolated stream: the guard aborts it and lets the next in, which is alone."""
    url = f"http://127.0.0.1:{unused_port}"
    async with httpx.AsyncClient(trust_env=False, timeout=120) as client:
        reference = await client.post(f"{gateway_url}/v1/completions", json=story(engine, 16, "isolated"))
        with doomed_gateway(engine, tmp_path, unused_port) as doomed:
            await ready(url)
            async with client.stream(
                "POST", f"{url}/v1/completions", json=story(engine, 1500, "isolated", stream=True)
            ) as stream:
                with pytest.raises(httpx.RemoteProtocolError):  # noqa: PT012 - the kill comes between two pieces
                    async for _ in stream.aiter_bytes():
                        if doomed.poll() is None:
                            assert await exclusive_at_engine(client, engine) == 1
                            doomed.kill()
        # The killed request would have run for a minute.
        with anyio.fail_after(15):
            answer = await client.post(f"{gateway_url}/v1/completions", json=story(engine, 16, "isolated"))
    assert answer.headers["x-determinism-coresident-peak"] == "1"
    assert answer.json()["choices"] == reference.json()["choices"]


async def test_a_gateway_that_is_frozen_delays_the_others_by_its_own_request_only(
    engine: Engine, gateway_url: str, tmp_path: Path, unused_port: int
) -> None:
    """SIGSTOP in the middle of an isolated stream: its tokens run out at the engine, and the next in is alone."""
    url = f"http://127.0.0.1:{unused_port}"
    async with httpx.AsyncClient(trust_env=False, timeout=120) as client:
        with doomed_gateway(engine, tmp_path, unused_port) as doomed:
            await ready(url)
            async with client.stream(
                "POST", f"{url}/v1/completions", json=story(engine, 48, "isolated", stream=True)
            ) as stream:
                pieces = stream.aiter_bytes()
                await anext(pieces)
                doomed.send_signal(signal.SIGSTOP)
                with anyio.fail_after(60):
                    answer = await client.post(f"{gateway_url}/v1/completions", json=story(engine, 16, "isolated"))
                doomed.send_signal(signal.SIGCONT)
                rest = b"".join([piece async for piece in pieces])
    assert answer.headers["x-determinism-coresident-peak"] == "1"
    assert float(answer.headers["x-determinism-admission-wait"]) > 0
    assert b'"coresident_peak":1' in rest
    assert rest.rstrip().endswith(b"data: [DONE]")


async def test_the_guards_log_is_the_receipts_interval(engine: Engine, gateway_url: str) -> None:
    """What the receipt of an answer states is what the guard's log says of that request, and nobody else ran then."""
    key = {"x-determinism-guard-key": engine.guard_key}
    async with httpx.AsyncClient(trust_env=False, timeout=120) as client:
        answers: list[httpx.Response] = []

        async def ask(mode: str) -> None:
            answers.append(await client.post(f"{gateway_url}/v1/completions", json=story(engine, 8, mode)))

        async with anyio.create_task_group() as group:
            for mode in ("standard", "isolated", "standard", "isolated"):
                group.start_soon(ask, mode)
        isolated = next(answer for answer in answers if answer.headers["x-determinism-mode"] == "isolated")
        name = isolated.headers["x-determinism-request"]
        receipt = (await client.get(f"{gateway_url}/v1/determinism/receipts/{name}")).json()["receipt"]
        page = (await client.get(f"{engine.url}/reprise/admissions", headers=key)).json()
    rows = page["admissions"]
    (own,) = [row for row in rows if row["request"] == name]
    (interval,) = receipt["intervals"]
    assert interval == {key: value for key, value in own.items() if key != "request"}
    for row in rows:
        apart = row["ended_us"] <= own["granted_us"] or own["ended_us"] <= row["granted_us"]
        assert row is own or apart
