"""Clients that leave in every phase, small; at full size it is `tests/benchmarks/disconnects.py`."""

from pathlib import Path

import pytest

from tests.support.exodus import exodus

pytestmark = pytest.mark.anyio


async def test_clients_that_leave_leave_nothing_behind(tmp_path: Path) -> None:
    """No lease, no descriptor, no work for nobody, in either admission and before either kind of upstream."""
    result = await exodus(1200, seed=3, folder=tmp_path, say=lambda _: None, warming=100)

    assert result.broken == []
    assert result.left.total == 1200
    assert len(result.left.phases) == 11
    assert all(cost.after.sockets <= cost.before.sockets for cost in result.costs.values())
    # Generous, because the machine may be busy; the benchmark holds the figures.
    assert result.noticed(0.99) < 5
