"""A verifier, and a gateway before it."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.running import RunningGateway
from tests.support.verifying import Verifying, verifying_gateway


@pytest.fixture
async def verifier() -> AsyncIterator[Verifying]:
    """A verifier that drafts for itself."""
    async with Verifying().serve() as server:
        yield server
        assert server.wrong == []


@pytest.fixture
async def site(verifier: Verifying, tmp_path: Path) -> AsyncIterator[RunningGateway]:
    """A gateway before it."""
    async with verifying_gateway(tmp_path, verifier) as gateway:
        yield gateway
