"""Isolation under faults, small; at full size it is `tests/benchmarks/isolation.py`."""

from pathlib import Path

import pytest

from tests.support.storm import Weather, storm

pytestmark = pytest.mark.anyio


async def test_nothing_runs_beside_an_exclusive_request(tmp_path: Path) -> None:
    """Whatever is killed, frozen, stopped or cut; and nothing is lost, executed twice or left behind."""
    weather = Weather(exclusive=300, calm=(0.1, 0.4), frozen=(0.05, 0.4))
    after = await storm(weather, tmp_path, lambda _: None)

    assert after.broken == {}
    assert after.exclusive >= 300
    assert after.most_at_once > 1
    assert len(after.faults) == 5
    assert min(after.faults.values()) >= 1


async def test_without_the_guard_it_is_found_to_break(tmp_path: Path) -> None:
    """The same storm over stock upstreams, where each gateway has its own gate: what the guard prevents is seen."""
    weather = Weather(exclusive=100, rounds=0, passers_by=0, upstreams=1, stock=True)
    after = await storm(weather, tmp_path, lambda _: None)

    assert after.overlaps
    assert after.broken.keys() == {"overlaps"}
