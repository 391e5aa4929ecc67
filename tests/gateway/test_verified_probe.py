"""`reprise probe --modes verified` against a gateway: what it asks can be verified, and what it cannot ask is said."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from app.determinism.mode import Mode
from app.probe.experiment import Experiment
from app.probe.runner import Probe
from app.probe.tally import Row, Status
from tests.support.verifying import verified_site

pytestmark = pytest.mark.anyio


@pytest.fixture
async def url(tmp_path: Path) -> AsyncIterator[str]:
    """A gateway before a verifier whose drafter lies."""
    async with verified_site(tmp_path, drafter="lies") as (_, gateway):
        yield f"http://127.0.0.1:{gateway.port}"


async def measured(url: str, **options: Any) -> Row:
    experiment = Experiment(url, (Mode.VERIFIED,), repeats=3, tokens=12, concurrency=2, load=2, **options)
    probe = Probe(experiment)
    await probe.run()
    (row,) = probe.rows
    return row


@pytest.mark.parametrize("seed", [None, 7])
async def test_verified_is_measured(url: str, seed: int | None) -> None:
    """Every repeat is compared by its token ids, under load, and none diverges."""
    row = await measured(url, seed=seed)
    assert (row.status, row.diverged, row.peak) == (Status.MEASURED, 0, 1)
    assert row.compared == 3 * 4
    assert row.failed == 0


@pytest.mark.parametrize(
    ("options", "words"), [({"temperature": 0.8}, "'temperature' must be 0"), ({"together": True}, "'prompt' must be")]
)
async def test_what_cannot_be_verified_is_a_row_with_the_reason(url: str, options: dict[str, Any], words: str) -> None:
    """Asked once, and no failure of the server's."""
    row = await measured(url, **options)
    assert row.status is Status.UNAVAILABLE
    assert words in (row.reason or "")
