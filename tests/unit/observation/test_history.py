"""What the gateway remembers of its last hour."""

from collections.abc import Awaitable, Callable

import anyio
import pytest

from app.observation.history import COMPARED_EVERY, RECENTLY, ComparisonHistory, Counts

KEY, OTHER = ("m", "standard", "client"), ("m", "isolated", "canary")
pytestmark = pytest.mark.anyio


class Wall:
    """A clock that stands still unless it is moved."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        """Seconds since 1970."""
        return self.now


def test_a_young_process_remembers_everything() -> None:
    """It begins at nothing, so what was compared since its start is all recent, to the moment of asking."""
    wall = Wall()
    history = ComparisonHistory(wall)
    wall.now = 1020.0
    recent = history.recent({KEY: (5, 2), OTHER: (1, 0)})

    assert (history.began, recent.since, recent.until) == (1000.0, 1000.0, 1020.0)
    assert recent.steps == {KEY: [(1020.0, 5, 2)], OTHER: [(1020.0, 1, 0)]}


def test_what_is_older_is_not_recent() -> None:
    """Counted are the steps since the last sample that is old enough; those in which nothing was compared are none."""
    wall = Wall()
    history = ComparisonHistory(wall)
    totals: list[Counts] = [{KEY: (10, 1)}, {KEY: (10, 1)}, {KEY: (12, 1), OTHER: (3, 3)}]
    for counts in totals:
        wall.now += COMPARED_EVERY
        history.add(counts)
    wall.now = 1000.0 + 2 * COMPARED_EVERY + RECENTLY
    recent = history.recent({KEY: (13, 2), OTHER: (3, 3)})

    assert recent.since == 1000.0 + 2 * COMPARED_EVERY
    assert recent.steps == {
        KEY: [(1000.0 + 3 * COMPARED_EVERY, 2, 0), (wall.now, 1, 1)],
        OTHER: [(1000.0 + 3 * COMPARED_EVERY, 3, 3)],
    }


def test_an_hour_is_kept_and_no_more() -> None:
    """However long the process runs; and while nothing happens one mapping serves for all samples."""
    wall = Wall()
    history = ComparisonHistory(wall)
    for _ in range(1000):
        wall.now += COMPARED_EVERY
        history.add({KEY: (1, 0)})
    recent = history.recent({KEY: (1, 0)}, seconds=1e9)

    assert wall.now - recent.since == 3600.0
    assert recent.steps == {}
    assert len({id(counts) for _, counts in history._samples}) == 1


async def test_samples_are_taken_at_the_pace_and_survive_a_fault() -> None:
    """A look that fails is one sample less."""
    wall = Wall()
    history = ComparisonHistory(wall)
    looks = iter([{KEY: (1, 0)}, None, {KEY: (2, 1)}])
    slept: list[float] = []

    def look() -> Counts:
        found = next(looks)
        if found is None:
            raise ValueError("a fault of the metrics")
        return found

    def pace(group: anyio.abc.TaskGroup) -> Callable[[float], Awaitable[None]]:
        async def sleep(seconds: float) -> None:
            slept.append(seconds)
            if len(slept) > 3:
                group.cancel_scope.cancel()
            wall.now += seconds
            await anyio.lowlevel.checkpoint()

        return sleep

    async with anyio.create_task_group() as group:
        group.start_soon(history.run, look, pace(group))

    assert slept == [COMPARED_EVERY] * 4
    assert history.recent({KEY: (2, 1)}).steps == {KEY: [(1015.0, 1, 0), (1045.0, 1, 1)]}
