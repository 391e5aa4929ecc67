"""What every store of the ledger promises. A new store joins by one line in `STORES`."""

import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import pytest
from prometheus_client import CollectorRegistry

from app.determinism.divergence import Verdict
from app.determinism.mode import Mode
from app.determinism.output import Blocks, Choice, Output
from app.observation.ledger import Ledger
from app.observation.metrics import Metrics
from app.observation.redis import Address, RedisStore
from app.observation.sqlite import SqliteStore
from app.observation.store import (
    DISTINCT_OUTPUTS,
    OTHER_OUTPUTS,
    PRUNE_COHORTS,
    PRUNE_RUN_ANSWERS,
    RUN_CHARACTERS,
    RUN_SHARE,
    Cohort,
    CohortId,
    Observation,
    Reference,
    Retention,
    Sighting,
    Specimen,
    Store,
    StoreError,
)
from tests.support.redis_server import RedisServer, free_port, redis_server

FEW = Retention(cohorts=50, seconds=1000.0)
MANY = Retention()


class OpenStore(Protocol):
    """Opens the store under test; a second call opens what the first one left."""

    def __call__(self, retention: Retention = FEW) -> Store:
        """Open it."""


STORES: dict[str, Callable[[str, Retention], Store]] = {
    "sqlite": lambda place, retention: SqliteStore(Path(place), retention),
    "redis": lambda place, retention: RedisStore(Address.parse(place), retention),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """A Redis for all tests here."""
    with redis_server(tmp_path_factory.mktemp("redis"), port=free_port()) as running:
        yield running


@pytest.fixture(params=STORES)
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> OpenStore:
    """A place of its own, empty."""
    if request.param == "redis":
        server: RedisServer = request.getfixturevalue("server")
        server.empty()
        place = server.url
    else:
        place = str(tmp_path / "ledger.sqlite3")
    return lambda retention=FEW: STORES[request.param](place, retention)


@pytest.fixture
def store(open_store: OpenStore) -> Iterator[Store]:
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


def specimen(digest: str = "o-1", at: float = 100.0, text: str | None = None) -> Specimen:
    """An output as first seen, every member of it set."""
    return Specimen(
        digest, f"r-{at:g}", "127.0.0.1:8002", at, "canary", 3, 0, 60, 17, 64, 0.125, 0.75, "cache_state", text
    )


def sighting(
    output: str = "o-1",
    verdict: Verdict | None = None,
    *,
    at: float = 100.0,
    of: CohortId | None = None,
    first: Reference | None = None,
    kept: Specimen | None = None,
    run: str | None = None,
    request_id: str = "",
) -> Sighting:
    """One sighting, of the reference where nothing else is said."""
    return Sighting(of or cohort(), "smollm2", first or reference(), output, verdict, at, kept, run, request_id)


def labelled(
    numbers: Sequence[int], run: str = "hot", of: CohortId | None = None, *, at: float | None = None
) -> list[Sighting]:
    """Answers of a run; each was seen at its number, and so is its request named."""
    return [
        sighting("o-1", Verdict.MATCH, at=float(n) if at is None else at, of=of, run=run, request_id=f"r-{n:032}")
        for n in numbers
    ]


def write(store: Store, sightings: Sequence[Sighting]) -> None:
    """Record in batches of the size that a gateway writes."""
    for start in range(0, len(sightings), 500):
        store.record(sightings[start : start + 500])


def drain(store: Store, now: float) -> int:
    """Prune until nothing goes any more; how many calls took something away."""
    calls = 0
    while store.prune(now):
        calls += 1
        assert calls < 1000
    return calls


def answers(store: Store, run: str = "hot") -> list[int]:
    """The numbers of the answers of a run, as `labelled` made them."""
    found, after = [], 0
    while page := store.run(run, after=after, limit=700):
        assert all(each.number > after for each in page)
        found += [int(each.request_id[2:]) for each in page]
        after = page[-1].number
    return found


def loaded(store: Store, of: CohortId | None = None) -> Cohort:
    """A cohort that must be there."""
    found = store.load(of or cohort())
    assert found is not None
    return found


def keys(store: Store, **wanted: object) -> list[str]:
    """The keys of a list of cohorts."""
    options = {"limit": 100, **wanted}
    return [each.id.key for each in store.cohorts(**options)]  # type: ignore[arg-type]  # a mapping of options by name


def test_an_unknown_cohort_is_none(store: Store) -> None:
    """What was never recorded is not there, in no list either."""
    assert store.load(cohort()) is None
    assert store.specimens(cohort()) == []
    assert store.cohorts(limit=10) == []
    assert store.runs(limit=9) == []
    assert store.run("night", after=0, limit=10) == []
    assert store.size().cohorts == 0
    assert store.size().run_answers == 0


def test_a_cohort_is_loaded_as_it_was_recorded(store: Store) -> None:
    """Reference, counts per output, verdicts and times come back."""
    store.record([sighting(), sighting("o-1", Verdict.MATCH, at=101.0), sighting("o-2", Verdict.DIVERGED, at=102.0)])
    found = loaded(store)
    assert (found.id, found.model, found.reference) == (cohort(), "smollm2", reference())
    assert found.counts.outputs == {"o-1": 2, "o-2": 1}
    assert (found.counts.matched, found.counts.diverged, found.counts.observed) == (1, 1, 3)
    assert (found.first_seen, found.last_seen) == (100.0, 102.0)


@pytest.mark.parametrize(
    "first",
    [
        Reference("o-1", Blocks("characters", (b"12345678" * 3, b"", b"87654321")), "r", None, 7),
        Reference("o-1", Blocks("tokens", ()), "r", 16, None),
        Reference("o-1", Blocks("tokens", (b"",)), "r", 0, 0),
    ],
)
def test_a_reference_comes_back_as_it_was(store: Store, first: Reference) -> None:
    """Units, several choices, nothing at all, zero and unknown are told apart."""
    store.record([sighting(first=first)])
    found = loaded(store).reference
    assert found.blocks.to_text() == first.blocks.to_text()
    assert (found.coresident_peak, found.cached_tokens) == (first.coresident_peak, first.cached_tokens)


def test_batches_add_up(store: Store) -> None:
    """Counts of later batches are added to those of earlier ones, over many cohorts at once."""
    for _ in range(3):
        store.record([sighting("o-1", Verdict.MATCH, of=cohort(key)) for key in "abc"] * 2)
    for key in "abc":
        found = loaded(store, cohort(key))
        assert found.counts.outputs == {"o-1": 6}
        assert found.counts.matched == 6


def test_a_cohort_was_last_seen_at_its_latest_sighting(store: Store) -> None:
    """Whatever the order in which several writers' sightings arrive."""
    store.record([sighting(at=100.0), sighting("o-1", Verdict.MATCH, at=90.0)])
    store.record([sighting("o-1", Verdict.MATCH, at=80.0)])
    assert loaded(store).last_seen == 100.0
    assert store.cohorts(limit=1)[0].last_seen == 100.0


def test_the_first_reference_stays_and_is_told(store: Store) -> None:
    """A sighting that brings another reference is counted and changes none, and its sender learns the stored one."""
    assert store.record([sighting("o-1", first=reference("o-1"))]) == {}
    assert store.record([sighting("o-1", Verdict.MATCH, first=reference("o-1"))]) == {}
    others = store.record(
        [sighting(of=cohort("b")), sighting("o-9", Verdict.MATCH, first=reference("o-9")), sighting(of=cohort("c"))]
    )
    assert others == {cohort(): reference("o-1")}
    assert loaded(store).reference == reference("o-1")
    assert loaded(store).counts.outputs == {"o-1": 2, "o-9": 1}


@pytest.mark.parametrize(("output", "counts"), [("o-1", (1, 0)), ("o-9", (0, 1))])
def test_who_comes_second_is_a_repeat(store: Store, output: str, counts: tuple[int, int]) -> None:
    """Two that each took their own output for the reference: the later one is judged by the one that is stored."""
    store.record([sighting("o-1")])
    store.record([sighting(output, first=reference(output))])
    found = loaded(store).counts
    assert (found.matched, found.diverged) == counts
    assert found.observed == 1 + found.matched + found.diverged
    assert keys(store, diverged=True) == ["a"] * counts[1]


def test_who_comes_second_is_told(store: Store) -> None:
    """Also where his output is that of the reference; and who brings nothing but verdicts on it is told nothing."""
    alone = replace(reference(), replica="127.0.0.1:8009", coresident_peak=7)
    store.record([sighting("o-1"), sighting("o-1", Verdict.MATCH)])
    second = [sighting("o-1", first=alone), sighting("o-1", Verdict.MATCH, first=alone)]
    assert store.record([sighting(of=cohort("b")), *second]) == {cohort(): reference()}
    assert store.record([sighting("o-1", Verdict.MATCH, first=alone)]) == {}
    found = loaded(store).counts
    assert (found.observed, found.matched, found.diverged) == (5, 4, 0)


class Gateway:
    """A ledger with metrics of its own, on a store that others share."""

    def __init__(self, store: Store, cohorts: int, clock: Iterator[int]) -> None:
        self.metrics = Metrics(CollectorRegistry())
        self.metrics.declare("m")
        self.ledger = Ledger(
            self.metrics,
            lambda: store,
            max_cohorts=cohorts,
            max_bytes=2**20,
            wall=lambda: float(next(clock)),
            monotonic=lambda: 0.0,
        )

    def see(self, key: str, text: str, replica: str) -> None:
        """Observe an answer."""
        output = Output.of([Choice(0, text, finish_reason="stop")])
        self.ledger.observe(Observation("r", key, "m", "standard", replica, "p-1", 1, output), output)

    def counted(self) -> dict[str, int]:
        """The verdicts in its metrics."""
        return {
            each.labels["verdict"]: int(each.value)
            for each in self.metrics.samples("comparisons")
            if (each.labels["model"], each.labels["mode"], each.labels["origin"]) == ("m", "standard", "client")
        }


@pytest.mark.parametrize("seed", range(12))
def test_gateways_that_share_a_store_count_what_it_counts(
    open_store: OpenStore, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever was first, in whatever order batches arrive: the metrics of all together are the sums of the store.

    Each answer but the first of its cohort is a match or diverged, once; of answers that are all alike none diverges.
    """
    # A batch that is dropped, because the machine of this test is busy, is in the metrics and not in the store.
    monkeypatch.setattr("app.observation.redis.SECONDS", 30.0)
    chance = random.Random(seed)  # noqa: S311 - the same each time, and no secret
    store = open_store(MANY)
    clock = itertools.count(1)
    gateways = [Gateway(store, chance.choice([2, 100]), clock) for _ in range(chance.choice([2, 3]))]
    keys_, texts = [str(n) for n in range(chance.choice([1, 5, 40]))], "abc"[: chance.choice([1, 2, 3])]
    seen = 400
    for _ in range(seen):
        number = chance.randrange(len(gateways))
        gateways[number].see(chance.choice(keys_), chance.choice(texts), f"r{number}")
        if chance.random() < 0.1:
            chance.choice(gateways).ledger.commit()
    for each in gateways:
        each.ledger.commit()
    held = store.cohorts(limit=100)
    matched, diverged = (sum(each.counted()[name] for each in gateways) for name in ("match", "diverged"))
    assert (matched, diverged) == (sum(each.matched for each in held), sum(each.diverged for each in held))
    assert all(each.observed == 1 + each.matched + each.diverged for each in held)
    assert sum(each.observed for each in held) == seen
    assert (diverged == 0) == (len(texts) == 1)
    store.close()


@pytest.mark.parametrize("other", [cohort("b"), cohort(mode="standard"), cohort(posture="unknown")])
def test_key_mode_and_posture_are_the_identity(store: Store, other: CohortId) -> None:
    """Cohorts that differ in one of the three never mix."""
    store.record([sighting(), sighting("o-2", of=other, first=reference("o-2"))])
    assert loaded(store).counts.outputs == {"o-1": 1}
    assert loaded(store, other).counts.outputs == {"o-2": 1}


def test_the_three_parts_of_an_identity_do_not_run_together(store: Store) -> None:
    """Where one part ends and the next begins is kept, whatever they are made of."""
    tricky = [
        CohortId("a", "b:c", "d"),
        CohortId("a:b", "c", "d"),
        CohortId("a", "b", "c:d"),
        CohortId("a\0b", "c", "d"),
    ]
    store.record([sighting(of=each) for each in tricky])
    assert store.size().cohorts == 4
    assert [each.id for each in store.cohorts(limit=9, mode="b:c")] == [tricky[0]]


def test_a_mode_may_be_the_enumeration_itself(store: Store) -> None:
    """Callers hand over modes as text or as members; both are the same cohort."""
    store.record([sighting(of=cohort(mode=Mode.ISOLATED))])
    assert store.load(cohort(mode="isolated")) is not None
    assert keys(store, mode=Mode.ISOLATED) == ["a"]


def test_an_empty_batch_is_nothing(store: Store) -> None:
    """Recording nothing is allowed."""
    assert store.record([]) == {}
    assert store.size().cohorts == 0


def test_a_specimen_is_the_first_of_its_output(store: Store) -> None:
    """It comes back whole, with how often its output was seen; a later one of the same output changes nothing."""
    first, second = specimen("o-1", 100.0, '["a text"]'), specimen("o-2", 90.0)
    store.record([sighting(kept=first), sighting("o-2", Verdict.DIVERGED, kept=second)])
    store.record([sighting("o-1", Verdict.MATCH, kept=specimen("o-1", 50.0)), sighting("o-3", Verdict.DIVERGED)])
    assert store.specimens(cohort()) == [(second, 1), (first, 2)]


def test_specimens_come_in_the_order_in_which_they_were_seen(store: Store) -> None:
    """Not in that of their digests; and those of other cohorts stay where they are."""
    for at, digest in enumerate(("o-c", "o-a", "o-b")):
        store.record([sighting(digest, Verdict.DIVERGED, kept=specimen(digest, float(at)))])
        store.record([sighting(digest, Verdict.DIVERGED, of=cohort("b"), kept=specimen("o-x", float(at)))])
    assert [each.digest for each, _ in store.specimens(cohort())] == ["o-c", "o-a", "o-b"]


def test_members_of_a_specimen_may_be_unknown(store: Store) -> None:
    """None stays None, also where zero would be a value."""
    bare = Specimen("o-1", "r-1", "r", 1.5)
    store.record([sighting(kept=bare)])
    assert store.specimens(cohort()) == [(bare, 1)]


def test_a_run_has_its_answers_in_order(store: Store) -> None:
    """Each with its cohort, output and request, and with the text where one is kept; page by page."""
    kept = specimen("o-1", text='["a text"]')
    store.record([sighting(kept=kept, run="night", request_id="r-1"), sighting(of=cohort("b"), at=1.0)])
    store.record([sighting("o-2", Verdict.DIVERGED, of=cohort("b"), at=2.0, run="day", request_id="r-2")])
    store.record([sighting("o-1", Verdict.MATCH, at=103.5, run="night", request_id=f"r-{n}") for n in (3, 4)])
    entries = store.run("night", after=0, limit=10)
    assert [(each.cohort, each.output, each.request_id, each.at, each.text) for each in entries] == [
        (cohort(), "o-1", "r-1", 100.0, '["a text"]'),
        (cohort(), "o-1", "r-3", 103.5, '["a text"]'),
        (cohort(), "o-1", "r-4", 103.5, '["a text"]'),
    ]
    assert entries[0].number < entries[1].number < entries[2].number
    assert store.run("night", after=0, limit=1) == entries[:1]
    assert store.run("night", after=entries[0].number, limit=1) == entries[1:2]
    assert store.run("night", after=entries[2].number, limit=10) == []
    assert [each.text for each in store.run("day", after=0, limit=10)] == [None]


def test_an_answer_that_is_counted_with_others_keeps_its_digest_in_its_run(store: Store) -> None:
    """Beyond the outputs that a cohort tells apart: two different answers of two runs never look alike."""
    store.record([sighting(run="day", request_id="r-1")])
    others = [sighting(f"o-{n}", Verdict.DIVERGED, run="night", request_id=f"r-{n}") for n in (7, 8)]
    store.record([each._replace(apart=False) for each in others])
    assert loaded(store).counts.outputs == {"o-1": 1, OTHER_OUTPUTS: 2}
    found = store.run("night", after=0, limit=9)
    assert [(each.output, each.request_id, each.text) for each in found] == [("o-7", "r-7", None), ("o-8", "r-8", None)]


def test_a_page_of_a_run_holds_what_fits(store: Store) -> None:
    """Not more text than a page has room for, but one answer at least; whoever asks on gets all, each once."""
    large, giant = "x" * (RUN_CHARACTERS // 8), "y" * (2 * RUN_CHARACTERS)
    texts = [large] * 20 + [giant] * 2 + [large, giant, "", "z"]
    for number, text in enumerate(texts):
        output = f"o-{number}"
        store.record([sighting(output, of=cohort(output), kept=specimen(output, text=text), run="hot", request_id="r")])
    pages, after = [], 0
    while page := store.run("hot", after=after, limit=1000):
        pages.append([each.text or "" for each in page])
        after = page[-1].number
    assert list(itertools.chain(*pages)) == texts
    assert all(len(page) == 1 or sum(map(len, page)) <= RUN_CHARACTERS for page in pages)
    assert 3 <= len(pages) <= 9
    assert [len(each.text or "") for each in store.run("hot", after=0, limit=2)] == [len(large)] * 2


def test_runs_are_listed_with_the_latest_first(store: Store) -> None:
    """A label moves to the front with each of its answers."""
    for label in ("one", "two", "one", "three", "two", "one"):
        store.record([sighting(run=label, request_id="r")])
    assert store.runs(limit=9) == [("one", 3), ("two", 2), ("three", 1)]
    assert store.runs(limit=2) == [("one", 3), ("two", 2)]


def test_cohorts_are_listed_with_the_latest_first(store: Store) -> None:
    """At most so many; those seen before a time, exclusively; each with its figures."""
    for at, key in enumerate("abcd"):
        store.record([sighting(of=cohort(key), at=float(at))])
    store.record([sighting("o-2", Verdict.DIVERGED, of=cohort("b"), at=10.0)])
    assert keys(store) == ["b", "d", "c", "a"]
    assert keys(store, limit=2) == ["b", "d"]
    assert keys(store, before=10.0) == ["d", "c", "a"]
    assert keys(store, before=3.0, limit=1) == ["c"]
    found = store.cohorts(limit=1)[0]
    assert (found.id, found.model) == (cohort("b"), "smollm2")
    assert (found.observed, found.matched, found.diverged, found.distinct) == (2, 0, 1, 2)
    assert (found.first_seen, found.last_seen) == (1.0, 10.0)


def test_a_listed_cohort_tells_its_origins_and_the_peak_of_its_reference(store: Store) -> None:
    """Those of the specimens that were kept, each once, whatever batch brought them; none where there are none."""
    first = Reference("o-1", Blocks("tokens", ()), "r", 16, None)
    by = [Specimen(f"o-{n}", "r", "r", float(n), origin) for n, origin in enumerate(("shadow", "client", "client"), 1)]
    store.record([sighting("o-1", first=first, kept=by[0]), sighting("o-2", Verdict.DIVERGED, kept=by[1])])
    store.record([sighting("o-3", Verdict.DIVERGED, kept=by[2]), sighting(of=cohort("bare"), at=1.0)])
    told, bare = store.cohorts(limit=2)
    assert (told.reference_peak, told.origins) == (16, ("client", "shadow"))
    assert (bare.reference_peak, bare.origins) == (reference().coresident_peak, ())


def test_cohorts_are_listed_by_mode_and_by_divergence(store: Store) -> None:
    """The two conditions hold together, and a cohort diverges once for all."""
    diverged = [cohort("a"), cohort("b", mode="standard")]
    store.record([sighting(of=each, at=1.0) for each in (*diverged, cohort("c"), cohort("d", mode="standard"))])
    store.record([sighting("o-2", Verdict.DIVERGED, of=each, at=2.0) for each in diverged])
    store.record([sighting("o-1", Verdict.MATCH, of=each, at=3.0) for each in diverged])
    assert sorted(keys(store, mode="isolated")) == ["a", "c"]
    assert sorted(keys(store, diverged=True)) == ["a", "b"]
    assert keys(store, mode="standard", diverged=True) == ["b"]
    assert keys(store, mode="standard", diverged=True, before=3.0) == []
    assert keys(store, mode="seeded") == []


def test_everything_is_there_after_a_restart(open_store: OpenStore) -> None:
    """Closing and opening again loses nothing, and what comes later adds to it; closing twice is no error."""
    first = open_store()
    first.record([sighting(kept=specimen(), run="night", request_id="r-1")])
    before = (
        loaded(first),
        first.specimens(cohort()),
        first.runs(limit=9),
        first.run("night", after=0, limit=9),
        first.size(),
    )
    first.close()
    first.close()
    second = open_store()
    assert before == (
        loaded(second),
        second.specimens(cohort()),
        second.runs(limit=9),
        second.run("night", after=0, limit=9),
        second.size(),
    )
    second.record([sighting("o-2", Verdict.DIVERGED, run="night", request_id="r-2")])
    assert loaded(second).counts.outputs == {"o-1": 1, "o-2": 1}
    assert [each.request_id for each in second.run("night", after=0, limit=9)] == ["r-1", "r-2"]
    second.close()


@pytest.mark.parametrize(
    "bad",
    [
        sighting(of=cohort("b"), first=reference("\ud800")),
        sighting(of=cohort("b"), kept=specimen("\ud800")),
        sighting(of=cohort("b"), run="\ud800"),
    ],
)
def test_a_batch_is_recorded_whole_or_not_at_all(store: Store, bad: Sighting) -> None:
    """One sighting that no store can write takes its batch with it, and nothing of that batch is seen."""
    store.record([sighting(kept=specimen(), run="night", request_id="r-1")])
    before = (loaded(store), store.specimens(cohort()), store.runs(limit=9), store.size().cohorts)
    with pytest.raises(StoreError):
        store.record(
            [sighting("o-2", Verdict.DIVERGED, kept=specimen("o-2"), run="night"), bad, sighting(of=cohort("c"))]
        )
    assert before == (loaded(store), store.specimens(cohort()), store.runs(limit=9), store.size().cohorts)
    store.record([sighting("o-1", Verdict.MATCH)])
    assert loaded(store).counts.outputs == {"o-1": 2}


@pytest.mark.parametrize(
    "odd",
    ["", "ü漢字🙂", "a\0b", "line\nline", "x" * 100_000, "'; DROP TABLE cohorts; --", "*", ":", "[]", "\u202eabc"],
)
def test_texts_may_be_anything(store: Store, odd: str) -> None:
    """Every text comes back as it went in, in every place where one can stand."""
    of = CohortId(f"k{odd}", odd, odd)
    first = Reference(f"o{odd}", Blocks("tokens", (b"12345678",)), odd, 1, 2)
    kept = Specimen(f"o{odd}", odd, odd, 1.0, odd, cause=odd, text=odd)
    store.record([Sighting(of, odd, first, f"o{odd}", None, 1.0, kept, f"run{odd}", odd)])
    found = loaded(store, of)
    assert (found.id, found.model, found.reference) == (of, odd, first)
    assert found.counts.outputs == {f"o{odd}": 1}
    assert store.specimens(of) == [(kept, 1)]
    assert [each.id for each in store.cohorts(limit=2, mode=odd)] == [of]
    assert store.runs(limit=9) == [(f"run{odd}", 1)]
    assert [(each.cohort, each.text) for each in store.run(f"run{odd}", after=0, limit=2)] == [(of, odd)]
    assert store.prune(5000.0) == 2
    assert store.runs(limit=9) == []


def test_a_cohort_with_very_many_outputs_is_held(store: Store) -> None:
    """As many as are told apart, and the rest under one name."""
    outputs = [f"o-{number}" for number in range(DISTINCT_OUTPUTS)]
    store.record([sighting(each, Verdict.DIVERGED, kept=specimen(each, float(at))) for at, each in enumerate(outputs)])
    store.record([sighting(OTHER_OUTPUTS, Verdict.DIVERGED)] * 500)
    assert store.cohorts(limit=1)[0].distinct == DISTINCT_OUTPUTS + 1
    assert loaded(store).counts.outputs[OTHER_OUTPUTS] == 500
    assert [each.digest for each, _ in store.specimens(cohort())] == outputs


def test_many_cohorts_are_held(open_store: OpenStore) -> None:
    """Thousands of them, in one batch and in several, each found again."""
    store = open_store(MANY)
    for start in range(0, 4000, 1000):
        store.record(
            [sighting(of=cohort(str(n)), at=float(n), kept=specimen(at=float(n))) for n in range(start, start + 1000)]
        )
    assert store.size().cohorts == 4000
    assert keys(store, limit=3) == ["3999", "3998", "3997"]
    assert all(store.load(cohort(str(number))) is not None for number in range(0, 4000, 97))
    assert store.prune(4000.0) == 0
    store.close()


def test_size_grows_with_what_is_held(open_store: OpenStore) -> None:
    """Cohorts exactly; bytes at least those of the texts; both go down again when cohorts go."""
    store = open_store(Retention(seconds=10.0))
    empty = store.size()
    store.record([sighting(of=cohort(str(n)), kept=specimen(text="x" * 1000)) for n in range(200)])
    full = store.size()
    assert full.cohorts == 200
    assert full.bytes - empty.bytes > 200_000
    assert store.prune(1000.0) == 200
    assert store.size().cohorts == 0
    assert store.size().bytes == pytest.approx(empty.bytes, abs=32_768)
    store.close()


def test_old_cohorts_are_forgotten(store: Store) -> None:
    """Retention by age takes what was not seen for the maximal age, and nothing else."""
    store.record([sighting(of=cohort("old"), at=0.0), sighting(of=cohort("new"), at=900.0)])
    assert store.prune(1000.0) == 0
    assert store.prune(1001.0) == 1
    assert store.load(cohort("old")) is None
    assert store.load(cohort("new")) is not None
    assert keys(store) == ["new"]


def test_too_many_cohorts_are_forgotten(store: Store) -> None:
    """Retention by count takes those longest unseen, with their outputs."""
    store.record([sighting(of=cohort(str(number)), at=float(number)) for number in range(60)])
    store.record([sighting("o-1", Verdict.MATCH, of=cohort("0"), at=70.0)])
    assert store.prune(100.0) == 10
    assert store.load(cohort("0")) is not None
    assert store.load(cohort("1")) is None
    store.record([sighting(of=cohort("1"), at=80.0)])
    assert loaded(store, cohort("1")).counts.outputs == {"o-1": 1}


def test_too_many_bytes_are_forgotten(open_store: OpenStore) -> None:
    """Retention by bytes takes those longest unseen until the rest fits; not many more."""
    store = open_store(Retention(bytes=2**20))
    for start in range(0, 400, 50):
        store.record(
            [
                sighting(of=cohort(str(n)), at=float(n), kept=specimen(text="x" * 10_000))
                for n in range(start, start + 50)
            ]
        )
    assert store.size().bytes > 4_000_000
    gone = 0
    while went := store.prune(400.0):
        gone += went
    left = store.size()
    assert left.bytes <= 2**20
    assert left.cohorts == 400 - gone
    assert left.cohorts >= 50
    assert keys(store) == [str(number) for number in range(399, 399 - min(left.cohorts, 100), -1)]
    store.close()


def test_a_forgotten_cohort_takes_everything_of_it_along(store: Store) -> None:
    """Its specimens and its answers in runs; a run of others stays, and one that is empty is not listed."""
    store.record([sighting(of=cohort("old"), at=0.0, kept=specimen(), run="night", request_id="r-1")])
    store.record([sighting("o-2", Verdict.DIVERGED, of=cohort("old"), at=0.0, run="gone", request_id="r-2")])
    store.record([sighting(of=cohort("new"), at=900.0, run="night", request_id="r-3")])
    store.record([sighting("o-1", Verdict.MATCH, of=cohort("old"), at=1.0, run="night", request_id="r-4")])
    assert store.prune(1500.0) == 1 + 3
    assert store.specimens(cohort("old")) == []
    assert store.runs(limit=9) == [("night", 1)]
    assert [each.request_id for each in store.run("night", after=0, limit=9)] == ["r-3"]
    assert keys(store, diverged=True) == []
    store.record([sighting(of=cohort("new"), at=901.0, run="night", request_id="r-5")])
    assert [each.request_id for each in store.run("night", after=0, limit=9)] == ["r-3", "r-5"]


def test_a_run_stands_where_its_latest_answer_that_is_left_puts_it(store: Store) -> None:
    """Also when a later one has gone with its cohort."""
    store.record([*labelled([900], "night"), *labelled([901], "day")])
    store.record(labelled([1], "night", cohort("old")))
    assert store.runs(limit=9) == [("night", 2), ("day", 1)]
    assert store.prune(1500.0) == 2
    assert store.runs(limit=9) == [("day", 1), ("night", 1)]


def test_a_label_for_each_answer_evicts_no_cohort(open_store: OpenStore) -> None:
    """What labels take is taken from the part of the answers."""
    store = open_store(Retention(bytes=2**20))
    store.record([sighting(of=cohort(str(n)), at=0.0, kept=specimen(text="x" * 200)) for n in range(200)])
    each = labelled(range(8000), of=cohort("0"), at=1.0)
    write(store, [one._replace(run=f"{number:064}") for number, one in enumerate(each)])
    drain(store, 1.0)
    assert store.size().bytes <= 2**20
    assert store.size().cohorts == 200
    assert store.runs(limit=1) == [(f"{7999:064}", 1)]
    store.close()


def test_a_number_of_a_run_is_never_given_twice(store: Store) -> None:
    """Not even when the latest answer was forgotten: whoever reads on from a number misses nothing."""
    store.record([sighting(of=cohort("old"), at=0.0, run="night")])
    latest = store.run("night", after=0, limit=9)[-1].number
    assert store.prune(5000.0) == 2
    store.record([sighting(of=cohort("new"), at=5000.0, run="night")])
    assert store.run("night", after=latest, limit=9)[0].number > latest


def test_old_answers_of_a_run_are_forgotten(store: Store) -> None:
    """By their own age, while their cohort goes on; what is left is read in order, and an empty run is not listed."""
    store.record([*labelled([0, 1], "gone"), *labelled([2, 3]), *labelled([900, 901])])
    assert store.prune(1003.0) == 3
    assert answers(store) == [3, 900, 901]
    assert store.runs(limit=9) == [("hot", 3)]
    assert store.size().run_answers == 3
    assert loaded(store).counts.observed == 6
    assert store.prune(1003.0) == 0
    store.record(labelled([1000], "gone"))
    assert store.runs(limit=9) == [("gone", 1), ("hot", 3)]


def test_too_many_answers_of_runs_are_forgotten(open_store: OpenStore) -> None:
    """The first recorded of all runs together; no cohort goes for it."""
    store = open_store(Retention(run_answers=5))
    for number in range(12):
        store.record(labelled([number], "even" if number % 2 == 0 else "odd", cohort(str(number % 3))))
    assert store.prune(12.0) == 7
    assert answers(store, "even") == [8, 10]
    assert answers(store, "odd") == [7, 9, 11]
    assert store.runs(limit=9) == [("odd", 3), ("even", 2)]
    assert (store.size().cohorts, store.size().run_answers) == (3, 5)
    store.record(labelled([12], "late"))
    assert store.prune(12.0) == 1
    assert answers(store, "odd") == [9, 11]
    store.record(labelled(range(13, 18), "late"))
    assert store.prune(18.0) == 5
    assert store.runs(limit=9) == [("late", 5)]
    store.close()


def test_a_hot_labelled_prompt_evicts_no_cohort(open_store: OpenStore) -> None:
    """In a store that it makes too large its own oldest answers go, as often as it comes back."""
    store = open_store(Retention(bytes=2**20))
    others = [sighting(of=cohort(str(n)), at=0.0, kept=specimen(text="x" * 200)) for n in range(200)]
    store.record([*others, *labelled([0], "calm", cohort("0"))])
    before = store.size()
    assert before.bytes < 2**20 * (1 - RUN_SHARE)
    for start in range(1, 30_000, 6_000):
        write(store, labelled(range(start, start + 6_000)))
        drain(store, float(start))
        assert store.size().bytes <= 2**20
        assert store.size().cohorts == before.cohorts + 1
        left = answers(store)
        assert left == list(range(start + 6_000 - len(left), start + 6_000))
        assert len(left) >= 400
    assert [label for label, _ in store.runs(limit=9)] == ["hot"]
    assert len(keys(store, limit=1000)) == before.cohorts + 1
    store.close()


def test_many_cohorts_evict_no_run(open_store: OpenStore) -> None:
    """In a store that they make too large the longest unseen go, and answers stay while they hold their part."""
    store = open_store(Retention(bytes=2**20))
    store.record(labelled(range(300), at=1000.0))
    write(store, [sighting(of=cohort(str(n)), at=float(n), kept=specimen(text="x" * 2000)) for n in range(999)])
    drain(store, 1000.0)
    assert store.size().bytes <= 2**20
    assert 50 < store.size().cohorts < 900
    assert answers(store) == list(range(300))
    assert store.load(cohort("998")) is not None
    assert store.load(cohort("1")) is None
    store.close()


def test_pruning_takes_a_bounded_amount_at_a_time(open_store: OpenStore) -> None:
    """Of answers, of cohorts, and of the answers of one cohort that is to go as a whole."""
    store = open_store(Retention(run_answers=1))
    write(store, [*labelled(range(PRUNE_RUN_ANSWERS), "gone", at=0.0), *labelled(range(101), at=0.0)])
    assert store.prune(0.0) == PRUNE_RUN_ANSWERS
    assert store.runs(limit=9) == [("hot", 101)]
    assert answers(store) == list(range(101))
    assert store.prune(0.0) == 100
    assert store.prune(0.0) == 0
    store.close()
    store = open_store(Retention(cohorts=1))
    write(store, labelled(range(PRUNE_RUN_ANSWERS + 100), at=1.0))
    write(store, [sighting(of=cohort(str(n)), at=2.0) for n in range(PRUNE_COHORTS + 10)])
    assert store.prune(3.0) <= PRUNE_RUN_ANSWERS + PRUNE_COHORTS
    assert 0 < store.size().run_answers <= 102
    assert store.load(cohort()) is not None
    drain(store, 3.0)
    assert (store.size().cohorts, store.size().run_answers, store.runs(limit=9)) == (1, 0, [])
    store.close()


@pytest.mark.parametrize("seed", range(4))
def test_repeated_pruning_ends_within_every_limit(open_store: OpenStore, seed: int) -> None:
    """Whatever was recorded, and whichever limit it is past; the figures of the store stay those of its contents."""
    chance = random.Random(seed)  # noqa: S311 - the same each time, and no secret
    keep = Retention(
        cohorts=chance.choice([30, 10_000]),
        bytes=chance.choice([300_000, 2**30]),
        seconds=chance.choice([700.0, 1e9]),
        run_answers=chance.choice([100, 1_000_000]),
    )
    store = open_store(keep)
    now, floor = 0.0, store.size().bytes
    for _ in range(4):
        batch = []
        for _ in range(500):
            now += 1.0
            key, label = str(int(chance.paretovariate(0.4)) % 2000), chance.choice([None, "a", "b", f"l{now}"])
            text = "x" * chance.randrange(2000)
            batch.append(
                sighting("o-1", Verdict.MATCH, at=now, of=cohort(key), kept=specimen(text=text), run=label)._replace(
                    request_id=f"r-{now}"
                )
            )
        write(store, batch)
        drain(store, now)
        held, runs = store.size(), store.runs(limit=10_000)
        kept = [entry for label, _ in runs for entry in store.run(label, after=0, limit=10_000)]
        assert held.run_answers == len(kept) == sum(count for _, count in runs) <= keep.run_answers
        assert held.cohorts == len(store.cohorts(limit=10_000)) <= keep.cohorts
        assert held.bytes <= max(keep.bytes, floor)
        assert all(entry.at >= now - keep.seconds for entry in kept)
        assert all(each.last_seen >= now - keep.seconds for each in store.cohorts(limit=10_000))
        assert all(store.load(entry.cohort) is not None for entry in kept)
    store.close()
