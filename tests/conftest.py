"""What all tests share."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.running import RunningGateway, running_gateway
from tests.support.scripted import ScriptedVllm


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """asyncio, under which uvicorn runs the gateway."""
    return "asyncio"


@pytest.fixture
async def upstream() -> AsyncIterator[ScriptedVllm]:
    """A scripted upstream without a guard."""
    async with ScriptedVllm().serve() as server:
        yield server


@pytest.fixture
async def gateway(upstream: ScriptedVllm, tmp_path: Path) -> AsyncIterator[RunningGateway]:
    """A gateway before the scripted upstream, with short deadlines."""
    async with running_gateway(
        tmp_path, upstream.url, max_body_bytes=10_000, first_byte_timeout=1, idle_timeout=1, body_timeout=1
    ) as running:
        yield running
