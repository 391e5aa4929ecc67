"""The recorder: what submit answers, what the writer does, and that nothing of it can hurt a request."""

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path

import pytest
from anyio import wait_all_tasks_blocked
from prometheus_client import CollectorRegistry

from app.determinism.output import Choice, Output
from app.observation.metrics import Metrics
from app.observation.recorder import PENDING, Limits, Recorder
from app.observation.sqlite import SqliteStore
from app.observation.store import Cohort, CohortId, Observation, Reference, Sighting, Store, StoreError
from tests.support.running import start
from tests.unit.observation.stores import NothingToRead

pytestmark = pytest.mark.anyio

QUICK = Limits(linger=0.0)


@pytest.fixture
def anyio_backend() -> str:
    """The gateway runs on asyncio."""
    return "asyncio"


@pytest.fixture
def registry() -> CollectorRegistry:
    """A registry of its own."""
    return CollectorRegistry()


@pytest.fixture
def metrics(registry: CollectorRegistry) -> Metrics:
    """Instruments with one declared model."""
    metrics = Metrics(registry)
    metrics.declare("m")
    return metrics


@pytest.fixture
async def recorder(metrics: Metrics) -> AsyncIterator[Recorder]:
    """A running recorder that keeps its ledger in memory."""
    async with Recorder(metrics, None, QUICK) as running:
        yield running


def output(text: str, *, complete: bool = True) -> Output:
    """An output with this text."""
    return Output.of([Choice(0, text, finish_reason="stop")], complete=complete)


def observation(text: str = "a", key: str = "k", **rest: object) -> Observation:
    """An observation of an answer."""
    members = {"mode": "isolated", "output": output(text), **rest}
    return Observation("id", key, "m", replica="r", posture="p-1", coresident_peak=1, **members)  # type: ignore[arg-type]  # members of any type; one test gives a wrong one


def dropped(registry: CollectorRegistry, reason: str) -> float | None:
    """How many observations were dropped for a reason."""
    return registry.get_sample_value("reprise_ledger_dropped_total", {"reason": reason})


def compared(registry: CollectorRegistry, verdict: str) -> float | None:
    """How many comparisons had a verdict."""
    labels = {"model": "m", "mode": "isolated", "origin": "client", "verdict": verdict}
    return registry.get_sample_value("reprise_comparisons_total", labels)


class Stuck(NothingToRead):
    """A store whose writes wait until they are released."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.release = threading.Event()
        self.recorded = 0
        self.known: dict[CohortId, Cohort] = {}

    def load(self, cohort: CohortId) -> Cohort | None:
        """Knows nothing."""
        return self.known.get(cohort)

    def record(self, sightings: Sequence[Sighting]) -> Mapping[CohortId, Reference]:
        """Waits, for at most as long as a test may take."""
        self.entered.set()
        self.release.wait(30)
        self.recorded += len(sightings)
        return {}

    def prune(self, now: float) -> int:
        """Forgets nothing."""
        return int(now < 0)

    def close(self) -> None:
        """Nothing to let go of."""


async def test_a_question_is_answered_by_the_thread_that_owns_the_store(metrics: Metrics, tmp_path: Path) -> None:
    """What waits to be written is written first."""
    async with Recorder(metrics, lambda: SqliteStore(tmp_path / "l"), Limits(linger=3600.0)) as recorder:
        recorder.submit(observation("a"))
        assert await recorder.ask(lambda store: store.size().cohorts) == 1


async def test_who_asks_while_a_batch_is_written_sees_what_he_submitted(metrics: Metrics) -> None:
    """What came after that batch, and before the question, is written before the answer."""
    store = Stuck()
    async with Recorder(metrics, lambda: store, QUICK) as recorder:
        recorder.submit(observation("a"))
        assert await asyncio.to_thread(store.entered.wait, 10)
        recorder.submit(observation("b", key="other"))
        asking = start(recorder.ask(lambda _: store.recorded))
        await wait_all_tasks_blocked()
        store.release.set()
        assert await asking == 2


@pytest.mark.parametrize("patience", [0.01, None])
async def test_who_asks_may_leave(metrics: Metrics, registry: CollectorRegistry, patience: float | None) -> None:
    """Too slow, or cancelled: the question is dropped, and the writer goes on."""
    store = Stuck()
    async with Recorder(metrics, lambda: store, Limits(linger=0.0)) as recorder:
        recorder.submit(observation("a"))
        assert await asyncio.to_thread(store.entered.wait, 30)
        asking = start(recorder.ask(lambda held: held.size(), timeout=patience or 60.0))
        if patience is None:
            await wait_all_tasks_blocked()
            asking.cancel()
        await asyncio.wait({asking})
        assert asking.cancelled() if patience is None else isinstance(asking.exception(), StoreError)
        store.release.set()
        recorder.submit(observation("a"))
        assert await recorder.flush()
        assert (await recorder.ask(lambda held: held.size())).cohorts == 0
    assert compared(registry, "match") == 1


async def test_a_question_that_fails_is_told_to_who_asked(metrics: Metrics) -> None:
    """And ends nothing else."""
    async with Recorder(metrics, Stuck, Limits(linger=0.0)) as recorder:

        def broken(_: Store) -> None:
            raise RuntimeError("a surprise")

        with pytest.raises(RuntimeError, match="a surprise"):
            await recorder.ask(broken)
        assert (await recorder.ask(lambda store: store.size())).cohorts == 0


async def test_submit_answers_from_memory(recorder: Recorder) -> None:
    """Pending while no reference is in memory, then the verdict at once."""
    assert recorder.submit(observation("a")) == PENDING
    assert await recorder.flush()
    assert recorder.submit(observation("a")) == "match"
    assert recorder.submit(observation("b")) == "diverged"
    assert recorder.submit(observation("b", "another")) == PENDING


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"output": None}, "incomplete"),
        ({"output": output("a", complete=False)}, "incomplete"),
        ({"skip_reason": "unseeded_sampling"}, "unseeded_sampling"),
        ({"output": None, "skip_reason": "too_large"}, "too_large"),
        ({"skip_reason": "upstream_error"}, "upstream_error"),
        ({"skip_reason": "whatever"}, "other"),
    ],
)
async def test_what_is_not_comparable_is_counted_by_its_reason(
    recorder: Recorder, registry: CollectorRegistry, change: dict[str, object], reason: str
) -> None:
    """It never becomes a reference and never meets one."""
    assert recorder.submit(observation("a", "k", **change)) == "incomparable"
    await recorder.flush()
    assert recorder.submit(observation()) == PENDING
    assert registry.get_sample_value("reprise_comparisons_skipped_total", {"reason": reason}) == 1
    assert compared(registry, "incomparable") == 1


async def test_observations_are_processed_in_order(recorder: Recorder, registry: CollectorRegistry) -> None:
    """The first that was submitted is the reference, whatever else waits in the queue."""
    recorder.submit(observation("a"))
    for _ in range(600):
        recorder.submit(observation("b"))
    recorder.submit(observation("a"))
    assert await recorder.flush()
    assert (compared(registry, "match"), compared(registry, "diverged")) == (1, 600)


async def test_a_verdict_survives_a_restart(metrics: Metrics, registry: CollectorRegistry, tmp_path: Path) -> None:
    """A second recorder on the same file compares with the reference of the first."""

    def open_store() -> Store:
        return SqliteStore(tmp_path / "ledger.sqlite3")

    async with Recorder(metrics, open_store, QUICK) as first:
        first.submit(observation("a"))
    async with Recorder(metrics, open_store, QUICK) as second:
        assert second.submit(observation("b")) == PENDING
        assert await second.flush()
        assert second.submit(observation("a")) == "match"
    assert (compared(registry, "match"), compared(registry, "diverged")) == (1, 1)


async def test_close_writes_what_waits(metrics: Metrics, tmp_path: Path) -> None:
    """Leaving the recorder processes the queue, without waiting for the linger, and closes the store."""
    path = tmp_path / "ledger.sqlite3"
    async with Recorder(metrics, lambda: SqliteStore(path), Limits(linger=3600.0)) as recorder:
        for number in range(700):
            recorder.submit(observation("a", str(number)))
    store = SqliteStore(path)
    assert all(store.load(observation("a", str(number)).cohort) is not None for number in range(700))
    store.close()


async def test_a_full_queue_drops_and_counts(metrics: Metrics, registry: CollectorRegistry) -> None:
    """While the store is stuck the queue fills up to its limit; submit goes on answering and never waits."""
    store = Stuck()
    async with Recorder(metrics, lambda: store, Limits(queue_observations=5, linger=0.0)) as recorder:
        recorder.submit(observation())
        await asyncio.to_thread(store.entered.wait, 30)
        assert [recorder.submit(observation()) for _ in range(9)] == ["match"] * 9
        assert dropped(registry, "queue_full") == 4
        assert not await recorder.flush(timeout=0.01)
        store.release.set()
        assert await recorder.flush()
    assert store.recorded == 6


async def test_the_queue_is_bounded_in_bytes_too(metrics: Metrics, registry: CollectorRegistry) -> None:
    """A few giants are enough to fill it, and it empties again."""
    store = Stuck()
    async with Recorder(metrics, lambda: store, Limits(queue_bytes=50_000, linger=0.0)) as recorder:
        recorder.submit(observation("small"))
        await asyncio.to_thread(store.entered.wait, 30)
        for _ in range(4):
            recorder.submit(observation("x" * 20_000))
        assert dropped(registry, "queue_full") == 2
        store.release.set()
        assert await recorder.flush()
        recorder.submit(observation("x" * 20_000))
        assert dropped(registry, "queue_full") == 2


async def test_a_stuck_store_does_not_hold_up_the_end(
    metrics: Metrics, registry: CollectorRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    """Closing gives up at its deadline, and counts what is lost; what the store has in hand is not lost yet."""
    store = Stuck()
    recorder = Recorder(metrics, lambda: store, Limits(linger=0.0, close_deadline=0.05))
    recorder.start()
    recorder.submit(observation())
    await asyncio.to_thread(store.entered.wait, 30)
    for _ in range(3):
        recorder.submit(observation())
    with caplog.at_level(logging.WARNING):
        await recorder.close()
    assert dropped(registry, "shutdown") == 3
    assert "3 observations are lost" in caplog.text
    store.release.set()
    await asyncio.to_thread(recorder._thread.join, 30)
    assert not recorder._thread.is_alive()
    assert store.recorded == 1
    assert dropped(registry, "shutdown") == 3


async def test_after_the_end_observations_are_dropped(metrics: Metrics, registry: CollectorRegistry) -> None:
    """A request that outlives the recorder still gets its answer; closing twice is nothing."""
    async with Recorder(metrics, None, QUICK) as recorder:
        recorder.submit(observation("a"))
    assert recorder.submit(observation("a")) == "match"
    assert dropped(registry, "shutdown") == 1
    await recorder.close()


async def test_a_fault_in_the_writer_costs_one_observation(
    recorder: Recorder, registry: CollectorRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    """An observation that breaks the ledger is logged and counted, and the next one is compared as ever."""
    broken = Observation("id", "x", "m", "isolated", "r", "p-1", "many", output("a"))  # type: ignore[arg-type]  # members of any type; one test gives a wrong one
    with caplog.at_level(logging.ERROR):
        recorder.submit(observation("a"))
        recorder.submit(broken)
        recorder.submit(Observation("id", "x", "m", "isolated", "r", "p-1", 1, output("b")))
        recorder.submit(observation("a"))
        assert await recorder.flush()
    assert dropped(registry, "internal_error") == 1
    assert "could not be recorded" in caplog.text
    assert compared(registry, "match") == 1


async def test_a_store_that_breaks_its_protocol_costs_its_batch(
    metrics: Metrics, registry: CollectorRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    """Even an error that no store should raise leaves the recorder at work."""

    class Wrong(Stuck):
        def record(self, sightings: Sequence[Sighting]) -> Mapping[CohortId, Reference]:
            raise RuntimeError(f"{len(sightings)} sightings, and a surprise")

    async with Recorder(metrics, Wrong, QUICK) as recorder:
        with caplog.at_level(logging.ERROR):
            recorder.submit(observation("a"))
            assert await recorder.flush()
        recorder.submit(observation("a"))
        assert await recorder.flush()
    assert dropped(registry, "internal_error") == 2
    assert compared(registry, "match") == 1


async def test_the_loop_is_free_while_the_writer_works(recorder: Recorder, registry: CollectorRegistry) -> None:
    """Submitting goes on while a long queue is processed, and every observation is counted once."""
    for round_ in range(20):
        for number in range(200):
            recorder.submit(observation("a", str(number % 7)))
        await asyncio.to_thread(int, round_)
    assert await recorder.flush()
    assert compared(registry, "match") == 20 * 200 - 7
