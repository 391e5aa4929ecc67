"""Faults of the ledger's file, made on purpose: what was acknowledged, what is there, what was counted as dropped."""

import asyncio
import os
import random
import resource
import select
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from prometheus_client import CollectorRegistry

from app.determinism.output import Choice, Output
from app.observation.labels import Drop
from app.observation.metrics import Metrics
from app.observation.recorder import Limits, Recorder
from app.observation.sqlite import SqliteStore
from app.observation.store import Observation, Store
from tests.support.ledger_writer import BATCH, RUN

ROOT: Final = Path(__file__).resolve().parents[2]
_KILLS_A_FILE: Final = 20
_LONGEST: Final = 0.2
_PAGE: Final = 10_000

_HOLDER: Final = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1])
connection.execute("BEGIN EXCLUSIVE")
print("held", flush=True)
sys.stdin.read()
"""


@dataclass(slots=True)
class Kills:
    """What came of killing writers. ``unacknowledged`` sightings were recorded, but killed before they could say so."""

    kills: int = 0
    acknowledged: int = 0
    lost: int = 0
    unacknowledged: int = 0
    torn: int = 0
    damaged: int = 0


def kill_writers(folder: Path, kills: int, seed: int) -> Kills:
    """Kill so many writers, each at a random moment of its work, and look for what they had acknowledged."""
    chance = random.Random(seed)  # noqa: S311 - moments, no secrets
    figures = Kills()
    first = after = 0
    path = folder / "0.sqlite3"
    for number in range(kills):
        if number % _KILLS_A_FILE == 0:
            path, after = folder / f"{number}.sqlite3", 0
        acknowledged = _run_and_kill(path, first, chance)
        figures.kills += 1
        figures.acknowledged += len(acknowledged) * BATCH
        recorded, after = _recorded(path, after)
        figures.lost += sum(BATCH - recorded.get(each, 0) for each in acknowledged)
        figures.unacknowledged += sum(found for each, found in recorded.items() if each not in acknowledged)
        figures.torn += sum(found != BATCH for found in recorded.values())
        figures.damaged += len(list(folder.glob("*damaged*"))) + (_integrity(path) != "ok")
        first = max([first, *acknowledged, *recorded]) + 1
    return figures


def _run_and_kill(path: Path, first: int, chance: random.Random) -> set[int]:
    command = [sys.executable, "-m", "tests.support.ledger_writer", str(path), str(first)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, bufsize=0) as process:
        assert process.stdout is not None
        said = b""
        # Now and then it is killed while it opens; else at some moment after its first batch.
        if chance.random() > 0.1:
            said = process.stdout.read(1)
            select.select([], [], [], chance.random() * _LONGEST)
        else:
            select.select([process.stdout], [], [], chance.random() * _LONGEST)
        process.kill()
        said += process.stdout.read()
    return {int(line) for line in said.split(b"\n")[:-1]}


def _recorded(path: Path, after: int) -> tuple[dict[int, int], int]:
    """How many sightings of each batch are in the file behind a number, and the last number."""
    store = SqliteStore(path)
    found: dict[int, int] = {}
    while entries := store.run(RUN, after=after, limit=_PAGE):
        for entry in entries:
            number = int(entry.request_id.partition(":")[0])
            found[number] = found.get(number, 0) + 1
        after = entries[-1].number
    store.close()
    return found, after


def _integrity(path: Path) -> str:
    connection = sqlite3.connect(path)
    try:
        (seen,) = connection.execute("SELECT coalesce(sum(seen), 0) FROM outputs").fetchone()
        (entries,) = connection.execute("SELECT count(*) FROM runs").fetchone()
        if seen != entries:
            return f"{seen} sightings are counted, and {entries} are in the run"
        return str(connection.execute("PRAGMA integrity_check").fetchone()[0])
    finally:
        connection.close()


@dataclass(frozen=True, slots=True)
class Rows:
    """Observations that were handed over, those in the file, and what the counters say."""

    submitted: int
    stored: int
    written: int
    dropped: int

    @property
    def missing(self) -> int:
        """Handed over, and not in the file."""
        return self.submitted - self.stored


class Trial:
    """A recorder over a ledger file, with a clock that stands until it is moved."""

    def __init__(self, path: Path, prepare: Callable[[SqliteStore], None] = lambda _: None) -> None:
        self.path = path
        self.prepare = prepare
        self.registry = CollectorRegistry()
        self.metrics = Metrics(self.registry)
        self.metrics.declare("m")
        self.now = 0.0
        self.submitted = 0
        limits = Limits(queue_observations=1_000_000, queue_bytes=2**40, linger=0.0)
        self.recorder = Recorder(self.metrics, self._open, limits, monotonic=lambda: self.now)

    def _open(self) -> Store:
        store = SqliteStore(self.path)
        self.prepare(store)
        return store

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Trial"]:
        """The recorder's thread runs while the block does."""
        async with self.recorder:
            yield self

    async def submit(self, count: int) -> None:
        """Hand over observations of cohorts that repeat now and then, a hundred at a time."""
        for number in range(self.submitted, self.submitted + count):
            key = f"{number * 7919 % 4093:064x}"
            output = Output.of([Choice(0, f"answer {number % 3}", finish_reason="stop")])
            self.recorder.submit(Observation(f"r-{number}", key, "m", "standard", "r", "p-1", 1, output, run="run"))
            if number % 100 == 0:
                await asyncio.sleep(0)
        self.submitted += count

    async def settle(self) -> None:
        """Wait until everything that was handed over is written or dropped."""
        assert await self.recorder.flush(120.0)

    async def later(self, seconds: float = 100.0) -> None:
        """Let the time come at which a lost store is tried again."""
        await self.settle()
        self.now += seconds

    def value(self, name: str, **labels: str) -> float:
        """A sample."""
        value = self.registry.get_sample_value(f"reprise_{name}", labels)
        assert value is not None
        return value

    def rows(self) -> Rows:
        """The sums, once the recorder is closed."""
        store = SqliteStore(self.path)
        listed = store.cohorts(limit=1_000_000)
        labelled = store.runs(limit=1_000_000)
        store.close()
        stored = sum(each.observed for each in listed)
        assert stored == sum(count for _, count in labelled)
        dropped = sum(self.value("ledger_dropped_total", reason=reason) for reason in Drop)
        return Rows(self.submitted, stored, round(self.value("ledger_written_total")), round(dropped))


@contextmanager
def no_larger_files(path: Path, room: int) -> Iterator[None]:
    """No file of this process may grow beyond the ledger's log as it is now, and some ``room`` bytes.

    Of a write that crosses that, the system refuses the rest, as a disk does that fails.
    """
    limit = path.with_name(f"{path.name}-wal").stat().st_size + room
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@contextmanager
def unwritable(path: Path) -> Iterator[None]:
    """What this process has open of the ledger can be read and not written, as on a disk that was mounted anew.

    The files are opened again, for reading, under the same descriptors; what is opened later is not affected.
    """
    for entry in Path("/proc/self/fd").iterdir():
        try:
            target = entry.readlink()
        except FileNotFoundError:
            continue
        if target.name.startswith(path.name) and target.parent == path.parent:
            reading = os.open(target, os.O_RDONLY)
            os.dup2(reading, int(entry.name))
            os.close(reading)
    yield


@contextmanager
def held_by_another(path: Path) -> Iterator[None]:
    """Another process has the file locked."""
    command = [sys.executable, "-c", _HOLDER, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        yield


async def under_full_disk(path: Path, count: int, pages: int) -> Rows:
    """SQLite may take only so many pages more; then there is room again."""
    state = {"full": False}

    def limit(store: SqliteStore) -> None:
        (held,) = store._connection.execute("PRAGMA page_count").fetchone()
        most = held + pages if state["full"] else 2**30
        store._connection.execute(f"PRAGMA max_page_count = {most}")

    trial = Trial(path, limit)
    async with trial.running():
        await trial.submit(count)
        await trial.settle()
        state["full"] = True
        await trial.recorder.ask(limit)  # type: ignore[arg-type]  # the store that this trial opened
        await trial.submit(count)
        await trial.later()
        await trial.submit(count)
        assert trial.value("ledger_dropped_total", reason=Drop.STORE_ERROR) > 0
        state["full"] = False
        await trial.later()
        await trial.recorder.ask(limit)  # type: ignore[arg-type]  # as above
        await trial.submit(count)
        await trial.settle()
        assert trial.recorder.problem is None
    return trial.rows()


async def under_write_errors(path: Path, count: int, room: int) -> Rows:
    """Writes beyond a size fail, at once and when the file is opened again; then they work again.

    At most 1,000 at a time: SQLite begins its log anew at 4 MiB, and would stay below the size for long.
    """
    trial = Trial(path)
    async with trial.running():
        await trial.submit(count)
        await trial.settle()
        with no_larger_files(path, room):
            await trial.submit(count)
            await trial.later()
            await trial.submit(count)
            await trial.later()
            assert trial.value("ledger_dropped_total", reason=Drop.STORE_ERROR) > 0
        await trial.submit(count)
        await trial.settle()
        assert trial.recorder.problem is None
    return trial.rows()


async def under_lost_descriptors(path: Path, count: int) -> Rows:
    """The open file can be read and no more; opened anew, it works."""
    trial = Trial(path)
    async with trial.running():
        await trial.submit(count)
        await trial.settle()
        with unwritable(path):
            await trial.submit(count)
            await trial.later()
        assert trial.value("ledger_dropped_total", reason=Drop.STORE_ERROR) > 0
        await trial.submit(count)
        await trial.settle()
        assert trial.recorder.problem is None
    return trial.rows()


async def under_contention(path: Path, count: int) -> Rows:
    """Another process has the file at the start, lets it go, and has it again when a lost store is opened anew."""
    trial = Trial(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    first = ExitStack()
    first.enter_context(held_by_another(path))  # before the recorder, which opens its store when it starts
    async with trial.running():
        with first:
            await trial.submit(count)
            await trial.settle()
            assert trial.value("ledger_dropped_total", reason=Drop.STORE_UNAVAILABLE) == count
            assert "locked" in str(trial.recorder.problem)
        await trial.later()
        await trial.submit(count)
        await trial.settle()
        with unwritable(path):
            await trial.submit(count)
            await trial.settle()
        with held_by_another(path):
            await trial.later()
            await trial.submit(count)
            await trial.settle()
        await trial.later()
        await trial.submit(count)
        await trial.settle()
        assert trial.recorder.problem is None
    return trial.rows()
