"""A gateway in a process of its own, so that it can be told to end."""

import asyncio
import os
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio

from tests.support.running import RunningGateway
from tests.support.scripted import ScriptedVllm

ROOT = Path(__file__).resolve().parents[2]


@asynccontextmanager
async def gateway_process(
    state: Path, upstream: ScriptedVllm, **settings: str
) -> AsyncIterator[tuple[asyncio.subprocess.Process, RunningGateway]]:
    """A gateway in a process of its own, ready."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    argv = ["-m", "app.cli", "serve", "--port", str(port), "--upstream", upstream.url, "--state-dir", str(state)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **settings}
    process = await asyncio.create_subprocess_exec(
        sys.executable, *argv, env=environment, stderr=asyncio.subprocess.DEVNULL
    )
    gateway = RunningGateway(port)
    try:
        while True:
            assert process.returncode is None
            try:
                if (await gateway.get("/readyz")).status == 200:
                    break
            except OSError:
                await anyio.lowlevel.checkpoint()
        yield process, gateway
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
