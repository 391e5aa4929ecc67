"""The ledger under faults: nothing acknowledged is lost, nothing missing is uncounted, and no answer waits for it."""

import asyncio
import logging
import socket
import sqlite3
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from app.observation.labels import Drop
from app.observation.ledger import PRUNE_SECONDS
from app.observation.sqlite import SqliteStore
from app.observation.sqlite_schema import SCHEMA_VERSION
from app.observation.store import CohortId, Reference, Sighting
from tests.support.ledger_faults import (
    Rows,
    Trial,
    kill_writers,
    under_contention,
    under_full_disk,
    under_lost_descriptors,
    under_write_errors,
)
from tests.support.running import RunningGateway, running_gateway
from tests.support.scripted import ScriptedVllm

pytestmark = pytest.mark.anyio

COUNT = 700
ASK = {"model": "m", "temperature": 0}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the ledger goes."""
    return tmp_path / "ledger.sqlite3"


@pytest.fixture(params=["rubbish", "one byte"])
def corrupt(request: pytest.FixtureRequest, path: Path) -> Path:
    """A ledger that is none, or one whose tables have a byte that is no text."""
    SqliteStore(path).close()
    one = path.read_bytes().replace(b"CREATE TABLE runs", b"CREATE TABL\xff runs")
    path.write_bytes(b"rubbish" * 10_000 if request.param == "rubbish" else one)
    return path


@pytest.fixture
def newer(path: Path) -> Path:
    """A ledger of a version to come."""
    SqliteStore(path).close()
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    connection.close()
    return path


def nothing_is_missing_uncounted(rows: Rows) -> None:
    """Some were written, some dropped, and together they are all."""
    assert rows.written > 0
    assert rows.missing > 0
    assert rows.missing == rows.dropped
    assert rows.stored == rows.written


async def test_nothing_acknowledged_is_lost_by_kills(tmp_path: Path) -> None:
    """Writers killed at random moments: what they said was recorded is there, whole batches only, and no damage."""
    figures = await asyncio.to_thread(kill_writers, tmp_path, 8, seed=1)
    assert figures.kills == 8
    assert figures.acknowledged > 0
    assert (figures.lost, figures.torn, figures.damaged) == (0, 0, 0)


@pytest.mark.parametrize("pages", [0, 3, 20])
async def test_rows_missing_under_a_full_disk_are_counted(path: Path, pages: int) -> None:
    """Whenever within a batch the disk is full."""
    nothing_is_missing_uncounted(await under_full_disk(path, COUNT, pages))


@pytest.mark.parametrize("room", [0, 5_000, 60_000])
async def test_rows_missing_under_write_errors_are_counted(path: Path, room: int) -> None:
    """Whenever within a batch the write fails, and while opening the file fails too."""
    nothing_is_missing_uncounted(await under_write_errors(path, COUNT, room))


async def test_rows_missing_under_lost_descriptors_are_counted(path: Path) -> None:
    """A file that can no longer be written under its open descriptor."""
    nothing_is_missing_uncounted(await under_lost_descriptors(path, COUNT))


async def test_rows_missing_under_contention_are_counted(path: Path) -> None:
    """A file that another process has locked, at the start and later."""
    nothing_is_missing_uncounted(await under_contention(path, COUNT))


async def test_a_ledger_that_was_moved_away_is_begun_anew(path: Path) -> None:
    """Nobody would ever see what went on into a file without a name; the batch that finds it gone is counted."""
    trial = Trial(path)
    async with trial.running():
        await trial.submit(COUNT)
        await trial.settle()
        for name in (path, path.with_name(f"{path.name}-wal")):
            name.rename(name.with_name(f"moved-{name.name}"))
        await trial.submit(COUNT)
        await trial.settle()
        assert "moved" in str(trial.recorder.problem)
        await trial.later()
        await trial.submit(COUNT)
        await trial.settle()
    rows = trial.rows()
    assert rows.stored == COUNT
    assert (rows.written, rows.dropped) == (2 * COUNT, COUNT)


async def test_a_corrupt_ledger_is_set_aside_and_begun_anew(corrupt: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing is dropped, the log names the file that has the old rows, and the ledger is up."""
    trial = Trial(corrupt)
    with caplog.at_level(logging.ERROR):
        async with trial.running():
            await trial.submit(COUNT)
            await trial.settle()
            assert trial.value("ledger_up") == 1
            assert trial.recorder.problem is None
    assert "set aside as ledger.sqlite3.damaged-1" in caplog.text
    rows = trial.rows()
    assert (rows.stored, rows.dropped) == (COUNT, 0)


async def test_a_newer_ledger_is_refused_with_one_clear_line(newer: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Everything is counted as dropped, verdicts go on, and when the file is gone the ledger begins."""
    trial = Trial(newer)
    with caplog.at_level(logging.WARNING):
        async with trial.running():
            await trial.submit(COUNT)
            await trial.settle()
            assert trial.value("ledger_up") == 0
            assert "upgrade Reprise" in str(trial.recorder.problem)
            assert trial.value("ledger_dropped_total", reason=Drop.STORE_UNAVAILABLE) == COUNT
            await asyncio.to_thread(newer.unlink)
            await trial.later()
            await trial.submit(COUNT)
            await trial.settle()
            assert trial.value("ledger_up") == 1
    assert caplog.text.count("upgrade Reprise") == 1
    rows = trial.rows()
    assert (rows.stored, rows.dropped) == (COUNT, COUNT)


@pytest.mark.parametrize("member", ["record", "load", "prune"])
async def test_a_store_that_breaks_its_protocol_is_counted_exactly(path: Path, member: str) -> None:
    """One that raises what it must not: every row is either there or counted, and none is counted twice."""

    def sabotage(store: SqliteStore) -> None:
        proper, turns = getattr(store, member), iter(range(1_000_000))

        def odd(*arguments: object) -> object:
            if next(turns) % 3 == 1:
                raise KeyError("a fault in the store")
            return proper(*arguments)

        setattr(store, member, odd)

    trial = Trial(path, sabotage)
    async with trial.running():
        for _ in range(4):
            await trial.submit(300)
            await trial.later(PRUNE_SECONDS)
    rows = trial.rows()
    assert rows.missing == rows.dropped
    assert rows.stored == rows.written
    assert rows.written > 0


async def test_retention_is_applied_in_time(path: Path) -> None:
    """When the store is opened, and every ten minutes, however little is written."""
    pruned: list[float] = []

    def watch(store: SqliteStore) -> None:
        proper = store.prune

        def prune(now: float) -> int:
            pruned.append(trial.now)
            return proper(now)

        setattr(store, "prune", prune)  # noqa: B010 - a method of the instance, for this test

    trial = Trial(path, watch)
    async with trial.running():
        for _ in range(3):
            await trial.submit(1)
            await trial.later(PRUNE_SECONDS / 2)
    assert pruned == [0.0, PRUNE_SECONDS]


class Hanging(SqliteStore):
    """A store whose writes do not return before they are let go."""

    entered = threading.Event()
    release = threading.Event()

    def record(self, sightings: Sequence[Sighting]) -> Mapping[CohortId, Reference]:
        """Wait, and record."""
        self.entered.set()
        self.release.wait(60)
        return super().record(sightings)


@pytest.fixture
def hanging(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Hanging]]:
    """The gateway's store hangs until the test ends."""
    Hanging.entered.clear()
    Hanging.release.clear()
    monkeypatch.setattr("app.main.SqliteStore", Hanging)
    yield Hanging
    Hanging.release.set()


async def slowest(gateway: RunningGateway, count: int) -> float:
    """The longest time of so many answers, one after another, in seconds."""
    loop = asyncio.get_running_loop()
    longest = 0.0
    for number in range(count):
        start = loop.time()
        answer = await gateway.post({**ASK, "metadata": {"n": number % 10}})
        longest = max(longest, loop.time() - start)
        assert answer.status == 200
    return longest


async def test_a_store_that_hangs_delays_no_answer(
    hanging: type[Hanging], upstream: ScriptedVllm, tmp_path: Path
) -> None:
    """While a write does not return: answers, verdicts of what is known, readiness and metrics all go on."""
    async with running_gateway(tmp_path, upstream.url, ledger=True) as gateway:
        await gateway.post(ASK)
        assert await asyncio.to_thread(hanging.entered.wait, 10)
        assert await slowest(gateway, 100) < 1.0
        assert (await gateway.post(ASK)).headers["x-determinism-verdict"] == "match"
        state = (await gateway.get("/readyz")).json()["ledger"]
        assert state["kind"] == "sqlite"
        assert state["queued"] >= 100
        assert await gateway.metric("reprise_ledger_queue_observations") >= 100
        hanging.release.set()
        while (await gateway.get("/readyz")).json()["ledger"]["queued"]:
            pass
        assert await gateway.metric('reprise_ledger_dropped_total{reason="queue_full"}') == 0


async def test_a_full_queue_drops_and_counts(hanging: type[Hanging], upstream: ScriptedVllm, tmp_path: Path) -> None:
    """What finds no place is counted at once, and its answer is as fast."""
    async with running_gateway(tmp_path, upstream.url, ledger=True, ledger_queue=5) as gateway:
        await gateway.post(ASK)
        assert await asyncio.to_thread(hanging.entered.wait, 10)
        assert await slowest(gateway, 25) < 1.0
        assert await gateway.metric('reprise_ledger_dropped_total{reason="queue_full"}') == 20
        hanging.release.set()


async def test_a_redis_that_hangs_delays_no_answer_and_tells_no_password(
    upstream: ScriptedVllm, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It takes the connection and never answers: the ledger is named as away, answers go on, the password stays in."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"redis://:hunter2@127.0.0.1:{listener.getsockname()[1]}/0"
        with caplog.at_level(logging.DEBUG):
            async with running_gateway(tmp_path, upstream.url, ledger=True, ledger_url=url) as gateway:
                assert await slowest(gateway, 50) < 0.9
                while (await gateway.get("/readyz")).json()["ledger"]["problem"] is None:
                    await slowest(gateway, 5)
                readiness = await gateway.get("/readyz")
                assert readiness.status == 200
                assert readiness.json()["ledger"]["kind"] == "redis"
                assert "Timeout" in readiness.json()["ledger"]["problem"]
                assert await gateway.metric("reprise_ledger_up") == 0
                page = (await gateway.get("/metrics")).body
    assert b"hunter2" not in readiness.body + page
    assert "Timeout" in caplog.text
    assert "hunter2" not in caplog.text
