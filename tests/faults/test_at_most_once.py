"""No POST is executed twice, small; at full size it is `tests/benchmarks/at_most_once.py`."""

from pathlib import Path

import pytest

from tests.support.chaos import Fault
from tests.support.once import at_most_once

pytestmark = pytest.mark.anyio


async def test_no_request_is_executed_or_sent_twice(tmp_path: Path) -> None:
    """However a connection breaks, each POST is executed once at most, and its client gets a true answer or error."""
    count = await at_most_once(600, seed=2, folder=tmp_path, say=lambda _: None)

    assert count.broken == {}
    assert count.faulted >= 600
    assert {*Fault} - {Fault.NONE} <= count.struck.keys()
    assert {"200", "502 upstream_reset", "504 upstream_timeout"} <= count.outcomes.keys()
    assert count.outcomes["200"] <= count.executed < count.posts
