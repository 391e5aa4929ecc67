"""A gateway whose ledger holds real forks, and what looks at it: an HTTP client and a browser."""

import os
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from playwright.async_api import Browser, async_playwright

from tests.support.forking import GUARD_KEY, LEFT, ForkingVllm, fill, words
from tests.support.running import RunningGateway, running_gateway
from tests.support.tools import tool


@pytest.fixture
async def forking() -> AsyncIterator[ForkingVllm]:
    """A guarded upstream whose answers fork as told."""
    async with ForkingVllm(words(LEFT)).serve() as upstream:
        assert isinstance(upstream, ForkingVllm)
        yield upstream


@pytest.fixture
async def observed(forking: ForkingVllm, tmp_path: Path) -> AsyncIterator[RunningGateway]:
    """A gateway that keeps texts, with forks in its ledger."""
    async with running_gateway(tmp_path, forking.url, ledger=True, keep_texts=True, guard_key=GUARD_KEY) as gateway:
        await fill(forking, gateway)
        yield gateway


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    """A client that names the host by its address, as a browser on the machine does."""
    async with httpx.AsyncClient() as made:
        yield made


@pytest.fixture(scope="module")
async def browser() -> AsyncIterator[Browser]:
    """One Chromium for all tests here."""
    path = tool("chromium")
    # Chromium's own sandbox refuses to run as root, as which a container's tests run.
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    async with async_playwright() as playwright:
        launched = await playwright.chromium.launch(executable_path=path, args=arguments)
        yield launched
        await launched.close()
