# ruff: noqa: T201 - its figures are its output
"""What the ledger loses under faults: kills, a full disk, write errors, another process's lock, a store that hangs.

Run it from the repository root with ``python tests/benchmarks/ledger_faults.py [KILLS]`` (200, some three minutes). The
exit status is 1 when a row is missing that nobody counted.
"""

import asyncio
import logging
import random
import sys
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from prometheus_client import CollectorRegistry

from app.determinism.output import Choice, Output
from app.observation.metrics import Metrics
from app.observation.recorder import Limits, Recorder
from app.observation.sqlite import SqliteStore
from app.observation.store import CohortId, Observation, Reference, Sighting
from tests.support.ledger_faults import (
    Rows,
    kill_writers,
    under_contention,
    under_full_disk,
    under_lost_descriptors,
    under_write_errors,
)

ROUNDS = 20
COUNT = 5000
SUBMITS = 5000


class Hanging(SqliteStore):
    """A store whose writes do not return before they are let go."""

    release = threading.Event()

    def record(self, sightings: Sequence[Sighting]) -> Mapping[CohortId, Reference]:
        """Wait, and record."""
        self.release.wait()
        return super().record(sightings)


def kills(count: int) -> bool:
    """Kill writers, print what came of it, and say whether nothing was lost."""
    with tempfile.TemporaryDirectory() as folder:
        figures = kill_writers(Path(folder), count, seed=4)
    print(
        f"{figures.kills} kill -9: {figures.acknowledged} sightings acknowledged, {figures.lost} of them lost, "
        f"{figures.unacknowledged} recorded beyond those, {figures.torn} batches torn, {figures.damaged} files damaged"
    )
    return figures.lost == figures.torn == figures.damaged == 0


def faults() -> bool:
    """Run every fault several times, at places that are drawn, and say whether every missing row was counted."""
    chance = random.Random(4)  # noqa: S311 - places, no secrets
    trials: dict[str, Callable[[Path], Awaitable[Rows]]] = {
        "disk full": lambda path: under_full_disk(path, COUNT, chance.randrange(200)),
        "write errors": lambda path: under_write_errors(path, 1000, chance.randrange(100_000)),
        "lost descriptors": lambda path: under_lost_descriptors(path, COUNT),
        "lock contention": lambda path: under_contention(path, COUNT),
    }
    exact = True
    for name, trial in trials.items():
        rows = [_one(trial) for _ in range(ROUNDS)]
        submitted, missing, dropped = (
            sum(getattr(each, member) for each in rows) for member in ("submitted", "missing", "dropped")
        )
        equal = all(each.missing == each.dropped and each.stored == each.written for each in rows)
        exact &= equal
        print(
            f"{name:<17} {ROUNDS} rounds: {submitted} rows, {missing} missing, {dropped} counted as dropped, "
            f"{'equal in every round' if equal else 'NOT EQUAL'}"
        )
    return exact


def _one(trial: Callable[[Path], Awaitable[Rows]]) -> Rows:
    async def run() -> Rows:
        return await trial(Path(folder) / "ledger.sqlite3")

    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(run())


async def hang() -> None:
    """What handing over costs while the store hangs, against a store that does not."""
    for name, kind in (("a store that works", SqliteStore), ("a store that hangs", Hanging)):
        with tempfile.TemporaryDirectory() as folder:
            metrics = Metrics(CollectorRegistry())
            recorder = Recorder(metrics, lambda: kind(Path(folder) / "a"), Limits(queue_observations=1000))  # noqa: B023 - opened within this turn
            output = Output.of([Choice(0, "answer", finish_reason="stop")])
            spent = []
            async with recorder:
                for number in range(SUBMITS):
                    start = time.perf_counter()
                    recorder.submit(Observation("r", f"{number % 100:064x}", "m", "standard", "r", "p-1", 1, output))
                    spent.append(time.perf_counter() - start)
                    await asyncio.sleep(0)
                Hanging.release.set()
        spent.sort()
        median, late = spent[SUBMITS // 2] * 1e6, spent[SUBMITS * 99 // 100] * 1e6
        print(f"handing over to {name}: median {median:.1f} us, p99 {late:.1f} us")


def main() -> int:
    """Print all figures."""
    logging.disable(logging.CRITICAL)
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    good = [kills(count), faults()]
    asyncio.run(hang())
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
