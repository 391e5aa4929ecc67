"""What every store of the ledger promises. A new store joins by one line in `STORES`."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from app.determinism.divergence import Verdict
from app.determinism.mode import Mode
from app.determinism.output import Blocks
from app.observation.sqlite import SqliteStore
from app.observation.store import CohortId, Reference, Retention, Sighting, Store

STORES: dict[str, Callable[[Path], Store]] = {
    "sqlite": lambda folder: SqliteStore(folder / "ledger.sqlite3", Retention(cohorts=50, seconds=1000.0)),
}


@pytest.fixture(params=STORES)
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Store]:
    """Opens the store under test; a second call opens what the first one left."""
    return lambda: STORES[request.param](tmp_path)


@pytest.fixture
def store(open_store: Callable[[], Store]) -> Iterator[Store]:
    """An open, empty store."""
    opened = open_store()
    yield opened
    opened.close()


def cohort(key: str = "a", mode: str = "isolated", posture: str = "p-1") -> CohortId:
    """A cohort's identity."""
    return CohortId(key, mode, posture)


def reference(digest: str = "o-1") -> Reference:
    """A reference with this digest."""
    return Reference(digest, Blocks("tokens", (b"12345678", b"")), "127.0.0.1:8001", 1, None)


def sighting(
    output: str = "o-1",
    verdict: Verdict | None = None,
    *,
    at: float = 100.0,
    of: CohortId | None = None,
    first: Reference | None = None,
) -> Sighting:
    """One sighting, of the reference where nothing else is said."""
    return Sighting(of or cohort(), "smollm2", first or reference(), output, verdict, at)


def test_an_unknown_cohort_is_none(store: Store) -> None:
    """What was never recorded is not there."""
    assert store.load(cohort()) is None


def test_a_cohort_is_loaded_as_it_was_recorded(store: Store) -> None:
    """Reference, counts per output, verdicts and times come back."""
    store.record([sighting(), sighting("o-1", Verdict.MATCH, at=101.0), sighting("o-2", Verdict.DIVERGED, at=102.0)])
    loaded = store.load(cohort())
    assert loaded is not None
    assert (loaded.id, loaded.model, loaded.reference) == (cohort(), "smollm2", reference())
    assert loaded.counts.outputs == {"o-1": 2, "o-2": 1}
    assert (loaded.counts.matched, loaded.counts.diverged, loaded.counts.observed) == (1, 1, 3)
    assert (loaded.first_seen, loaded.last_seen) == (100.0, 102.0)


def test_batches_add_up(store: Store) -> None:
    """Counts of later batches are added to those of earlier ones, over many cohorts at once."""
    for _ in range(3):
        store.record([sighting("o-1", Verdict.MATCH, of=cohort(key)) for key in "abc"] * 2)
    for key in "abc":
        loaded = store.load(cohort(key))
        assert loaded is not None
        assert loaded.counts.outputs == {"o-1": 6}
        assert loaded.counts.matched == 6


def test_the_first_reference_stays(store: Store) -> None:
    """A sighting that brings another reference is counted, and changes no reference."""
    store.record([sighting("o-1", first=reference("o-1"))])
    store.record([sighting("o-9", Verdict.DIVERGED, first=reference("o-9"))])
    loaded = store.load(cohort())
    assert loaded is not None
    assert loaded.reference.digest == "o-1"
    assert loaded.counts.outputs == {"o-1": 1, "o-9": 1}


@pytest.mark.parametrize("other", [cohort("b"), cohort(mode="standard"), cohort(posture="unknown")])
def test_key_mode_and_posture_are_the_identity(store: Store, other: CohortId) -> None:
    """Cohorts that differ in one of the three never mix."""
    store.record([sighting(), sighting("o-2", of=other, first=reference("o-2"))])
    mine, theirs = store.load(cohort()), store.load(other)
    assert mine is not None
    assert theirs is not None
    assert (mine.counts.outputs, theirs.counts.outputs) == ({"o-1": 1}, {"o-2": 1})


def test_a_mode_may_be_the_enumeration_itself(store: Store) -> None:
    """Callers hand over modes as text or as members; both are the same cohort."""
    store.record([sighting(of=cohort(mode=Mode.ISOLATED))])
    assert store.load(cohort(mode="isolated")) is not None


def test_an_empty_batch_is_nothing(store: Store) -> None:
    """Recording nothing is allowed."""
    store.record([])


def test_what_was_recorded_is_there_after_a_restart(open_store: Callable[[], Store]) -> None:
    """Closing and opening again loses nothing; closing twice is no error."""
    first = open_store()
    first.record([sighting()])
    first.close()
    first.close()
    second = open_store()
    assert second.load(cohort()) is not None
    second.close()


def test_old_cohorts_are_forgotten(store: Store) -> None:
    """Retention by age takes what was not seen for the maximal age, and nothing else."""
    store.record([sighting(of=cohort("old"), at=0.0), sighting(of=cohort("new"), at=900.0)])
    assert store.prune(1000.0) == 0
    assert store.prune(1001.0) == 1
    assert store.load(cohort("old")) is None
    assert store.load(cohort("new")) is not None


def test_too_many_cohorts_are_forgotten(store: Store) -> None:
    """Retention by count takes those longest unseen, with their outputs."""
    store.record([sighting(of=cohort(str(number)), at=float(number)) for number in range(60)])
    store.record([sighting("o-1", Verdict.MATCH, of=cohort("0"), at=70.0)])
    assert store.prune(100.0) == 10
    assert store.load(cohort("0")) is not None
    assert store.load(cohort("1")) is None
    store.record([sighting(of=cohort("1"), at=80.0)])
    again = store.load(cohort("1"))
    assert again is not None
    assert again.counts.outputs == {"o-1": 1}
