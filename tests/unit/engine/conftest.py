"""What the tests of app/engine share."""

import pytest


@pytest.fixture
def anyio_backend() -> str:
    """The guard runs on asyncio, as vLLM does."""
    return "asyncio"
