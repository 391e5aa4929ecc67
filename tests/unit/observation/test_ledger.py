"""The ledger: verdicts, agreement, causes and forks, and a store that comes and goes."""

import logging
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry

from app.determinism.output import Blocks, Choice, Output
from app.observation.ledger import FIRST_RETRY_SECONDS, LAST_RETRY_SECONDS, PRUNE_EVERY, Ledger
from app.observation.metrics import Metrics
from app.observation.store import Cohort, CohortCounts, CohortId, Observation, Reference, Sighting, Store, StoreError
from tests.unit.observation.stores import NothingToRead


class FakeStore(NothingToRead):
    """A store in memory that fails on demand and keeps the protocol."""

    def __init__(self) -> None:
        self.held: dict[CohortId, Cohort] = {}
        self.batches: list[int] = []
        self.recorded: list[Sighting] = []
        self.other: Reference | None = None
        self.broken = self.absent = False
        self.fault: Exception | None = None
        self.opened = self.pruned = self.loads = 0
        self.closed = True

    def open(self) -> Store:
        """The store, unless it is absent."""
        self.opened += 1
        if self.absent:
            raise StoreError("the store is absent")
        if self.fault is not None:
            raise self.fault
        self.closed = False
        return self

    def load(self, cohort: CohortId) -> Cohort | None:
        """As the protocol."""
        self.loads += 1
        if self.broken:
            raise StoreError("the store is broken")
        found = self.held.get(cohort)
        if found is None:
            return None
        counts = CohortCounts(dict(found.counts.outputs), found.counts.matched, found.counts.diverged)
        return Cohort(found.id, found.model, found.reference, counts, found.first_seen, found.last_seen)

    def record(self, sightings: Sequence[Sighting]) -> Mapping[CohortId, Reference]:
        """As the protocol."""
        if self.broken:
            raise StoreError("the store is broken")
        self.batches.append(len(sightings))
        for each in sightings:
            new = Cohort(each.cohort, each.model, each.reference, CohortCounts(), each.at, each.at)
            self.held.setdefault(each.cohort, new).counts.add(each.slot, each.verdict)
        self.recorded += sightings
        return {} if self.other is None else {each.cohort: self.other for each in sightings}

    def prune(self, now: float) -> int:
        """As the protocol; counts its calls."""
        assert now >= 0
        self.pruned += 1
        if self.broken:
            raise StoreError("the store is broken")
        return 0

    def close(self) -> None:
        """As the protocol."""
        self.closed = True


class Bench:
    """A ledger with its metrics, its clock and its store."""

    def __init__(self, *, store: bool = True, max_cohorts: int = 100, max_bytes: int = 1 << 20) -> None:
        self.registry = CollectorRegistry()
        self.metrics = Metrics(self.registry)
        self.metrics.declare("m")
        self.store = FakeStore()
        self.now = 0.0
        self.ledger = Ledger(
            self.metrics,
            self.store.open if store else None,
            max_cohorts=max_cohorts,
            max_bytes=max_bytes,
            wall=lambda: self.now,
            monotonic=lambda: self.now,
        )

    def see(self, text: str, key: str = "k", **rest: object) -> None:
        """Observe an answer; ``rest`` are members of the observation or of the output."""
        cached = rest.pop("cached_tokens", None)
        tokens = rest.pop("tokens", None)
        choice = Choice(0, text, finish_reason="stop", **(tokens or {}))  # type: ignore[arg-type]  # members of any type, given by name
        output = Output.of([choice], cached_tokens=cached)  # type: ignore[arg-type]  # members of any type, given by name
        members = {"mode": "isolated", "replica": "r1", "posture": "p-1", "coresident_peak": 1, **rest}
        self.ledger.observe(Observation("id", key, "m", output=output, **members), output)  # type: ignore[arg-type]  # members of any type, given by name

    def value(self, name: str, **labels: str) -> float:
        """A sample of the page; model, mode and origin are filled in where the instrument has them."""
        scopes: tuple[dict[str, str], ...] = ({}, {"mode": "isolated"}, {"model": "m", "mode": "isolated"})
        scopes = (*scopes, {"model": "m", "mode": "isolated", "origin": "client"})
        found = (self.registry.get_sample_value(name, {**scope, **labels}) for scope in scopes)
        value = next((one for one in found if one is not None), None)
        assert value is not None
        return value


@pytest.fixture
def bench() -> Bench:
    """A ledger on a store that works."""
    return Bench()


def test_the_first_observation_is_the_reference_and_no_comparison(bench: Bench) -> None:
    """Only repeats are compared."""
    bench.see("a")
    assert bench.value("reprise_comparisons_total", verdict="match") == 0
    bench.see("a")
    bench.see("b")
    assert bench.value("reprise_comparisons_total", verdict="match") == 1
    assert bench.value("reprise_comparisons_total", verdict="diverged") == 1


def test_the_specimens_of_a_lost_batch_come_with_the_next_sighting(bench: Bench) -> None:
    """So that a store that was away for a moment does not lose the circumstances of a reference for ever."""
    bench.ledger.attend()
    bench.store.broken = True
    bench.see("a")
    bench.ledger.commit()
    bench.store.broken = False
    bench.now = 100.0
    for text in "ab":
        bench.see(text)
    bench.ledger.commit()
    bench.see("a")
    bench.ledger.commit()
    kept = [sighting.specimen.digest for sighting in bench.store.recorded if sighting.specimen is not None]
    assert len(kept) == len(set(kept)) == 2


def test_a_first_answer_that_came_second_is_a_divergence(bench: Bench) -> None:
    """Another gateway had a reference already: this answer differs from it, and so do its repeats."""
    other = Reference("o-of-the-other", Blocks("characters", (b"",)), "r2", 1, None)
    bench.store.other = other
    bench.see("a")
    bench.ledger.commit()
    assert bench.value("reprise_comparisons_total", verdict="diverged") == 1
    assert bench.value("reprise_divergences_total", cause="other_replica") == 1
    bench.store.other = None
    bench.see("a")
    assert bench.value("reprise_comparisons_total", verdict="diverged") == 2


def test_a_first_answer_that_came_second_and_agrees_is_a_match(bench: Bench) -> None:
    """Another gateway was first with the same answer: this one is a repeat of it, counted once, as the store does."""
    bench.see("a", replica="r2")
    reference = bench.ledger._entries[CohortId("k", "isolated", "p-1")].cohort.reference
    bench.store.other = other = replace(reference, replica="r-of-the-other", coresident_peak=7)
    bench.ledger.commit()
    assert bench.value("reprise_comparisons_total", verdict="match") == 1
    bench.see("a")
    bench.ledger.commit()
    assert bench.value("reprise_comparisons_total", verdict="match") == 2
    assert bench.value("reprise_comparisons_total", verdict="diverged") == 0
    assert bench.ledger._entries[CohortId("k", "isolated", "p-1")].cohort.reference == other
    bench.see("b")
    assert bench.value("reprise_fork_tokens_count") + bench.value("reprise_similarity_ratio_count", kind="edit") == 1


def test_agreement_needs_no_reference(bench: Bench) -> None:
    """Pairs are those of all orders: of a b b a, 2 of 6 pairs agree, although the reference was the first."""
    for text in "abba":
        bench.see(text)
    assert bench.value("reprise_pairs_total") == 6
    assert bench.value("reprise_pairs_equal_total") == 2


def test_agreement_stops_after_sixty_four(bench: Bench) -> None:
    """A hot prompt adds no more than 64 * 63 / 2 pairs, however often it is asked."""
    for _ in range(100):
        bench.see("a")
    assert bench.value("reprise_pairs_total") == 64 * 63 / 2
    assert bench.value("reprise_pairs_equal_total") == 64 * 63 / 2
    assert bench.value("reprise_comparisons_total", verdict="match") == 99


def test_distinct_outputs_are_observed_at_each_repeat(bench: Bench) -> None:
    """The histogram grows with every repeat by the number of outputs seen so far, this one included."""
    for text in "aabac":
        bench.see(text)
    assert bench.value("reprise_distinct_outputs_count") == 4
    assert bench.value("reprise_distinct_outputs_sum") == 1 + 2 + 2 + 3


def test_outputs_of_one_cohort_are_bounded(bench: Bench) -> None:
    """Beyond 64 distinct outputs the rest is counted together, in memory and in the store."""
    for number in range(200):
        bench.see(f"answer {number}")
    bench.ledger.commit()
    (cohort,) = bench.store.held.values()
    assert len(cohort.counts.outputs) == 65
    assert cohort.counts.outputs["other"] == 200 - 64
    assert cohort.counts.observed == 200
    assert len({sighting.output for sighting in bench.store.recorded}) == 200
    assert sum(sighting.specimen is not None for sighting in bench.store.recorded) == 64


@pytest.mark.parametrize(
    ("first", "second", "cause"),
    [
        ({}, {}, "unexplained"),
        ({"coresident_peak": 2}, {}, "co_batched"),
        ({}, {"coresident_peak": 7, "replica": "r2"}, "co_batched"),
        ({"coresident_peak": None}, {"coresident_peak": None}, "unexplained"),
        ({"cached_tokens": 0}, {"cached_tokens": 16, "replica": "r2"}, "cache_state"),
        ({"cached_tokens": None}, {"cached_tokens": 16}, "unexplained"),
        ({"cached_tokens": 16}, {"cached_tokens": 16, "replica": "r2"}, "other_replica"),
    ],
)
def test_a_divergence_has_its_first_suspect(
    bench: Bench, first: dict[str, object], second: dict[str, object], cause: str
) -> None:
    """Co-batching before cache state before another replica; what is unknown is no suspect."""
    bench.see("a", "k", **first)
    bench.see("b", "k", **second)
    assert bench.value("reprise_divergences_total", cause=cause) == 1
    total = sum(bench.value("reprise_divergences_total", cause=each) for each in
                ("co_batched", "cache_state", "other_replica", "unexplained"))  # fmt: skip
    assert total == 1


def test_the_fork_is_placed_by_the_text_in_memory(bench: Bench) -> None:
    """Exact tokens, the margin from the reference's logprobs, and the shared share of the text are observed."""
    margins = array("d", [3.0, 0.125])
    bench.see("ab", tokens={"tokens": ("a", "b"), "margins": margins})
    bench.see("ac", tokens={"tokens": ("a", "c")})
    assert bench.value("reprise_fork_tokens_sum") == 1
    assert bench.value("reprise_fork_margin_nats_sum") == 0.125
    assert bench.value("reprise_similarity_ratio_sum", kind="prefix") == 0.5


def test_a_margin_counts_where_the_likeliest_token_is_taken(bench: Bench) -> None:
    """Of a draw it says nothing, however clear it is: no margin is observed, kept or named, and the fork still is."""
    margins = array("d", [3.0, 5.0])
    for greedy, key in ((False, "drawn"), (True, "taken")):
        bench.see("ab", key, tokens={"tokens": ("a", "b"), "margins": margins}, greedy=greedy)
        bench.see("ac", key, tokens={"tokens": ("a", "c"), "margins": margins}, greedy=greedy)
        counted = [bench.value("reprise_divergence_margins_total", margin=each) for each in ("clear", "unknown")]
        assert counted == ([1, 1] if greedy else [0, 1])
        assert bench.value("reprise_fork_margin_nats_count") == greedy
    assert bench.value("reprise_fork_tokens_count") == 2
    bench.ledger.commit()
    kept = {sighting.cohort.key: sighting.specimen for sighting in bench.store.recorded if sighting.verdict}
    assert {key: each.margin for key, each in kept.items() if each is not None} == {"drawn": None, "taken": 5.0}


def test_after_a_restart_the_fork_is_placed_by_blocks(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """Digests place its block, which is no fork to count; the next repeat of the reference brings its text back."""
    ids = array("I", range(200))
    other = array("I", range(200))
    other[150] = 7
    bench.see("a", tokens={"token_ids": ids})
    bench.ledger.commit()
    again = Bench()
    again.store.held = bench.store.held
    with caplog.at_level(logging.WARNING):
        again.see("b", tokens={"token_ids": other})
        assert again.value("reprise_fork_tokens_count") == 0
        assert "fork from token 128 on" in caplog.text
        again.ledger.commit()
        kept = again.store.recorded[-1].specimen
        assert kept is not None
        assert (kept.fork_tokens, kept.fork_characters) == (128, None)
        again.see("a", tokens={"token_ids": ids})
        again.see("c", tokens={"token_ids": other})
    assert (again.value("reprise_fork_tokens_count"), again.value("reprise_fork_tokens_sum")) == (1, 150)
    assert "fork at token 150" in caplog.text
    assert again.value("reprise_comparisons_total", verdict="diverged") == 2


def test_modes_and_postures_are_compared_across_apart(bench: Bench) -> None:
    """Another mode or another posture is a cohort of its own, and the comparison across is counted by its kind."""
    bench.see("a", mode="isolated")
    bench.see("a", mode="hardened")
    bench.see("b", mode="isolated", posture="p-2")
    bench.see("c", mode="standard", posture="p-3")
    assert bench.value("reprise_cross_comparisons_total", kind="mode", verdict="match") == 1
    assert bench.value("reprise_cross_comparisons_total", kind="mode", verdict="diverged") == 0
    assert bench.value("reprise_cross_comparisons_total", kind="posture", verdict="diverged") == 1
    assert bench.value("reprise_comparisons_total", verdict="diverged") == 0
    assert bench.value("reprise_comparisons_total", verdict="match") == 0


def test_memory_is_bounded_by_cohorts() -> None:
    """The least recently seen cohort goes first, and everything about it goes."""
    bench = Bench(store=False, max_cohorts=3)
    for key in "abcd":
        bench.see("x", key)
        bench.see("x", "a")
    assert {cohort.key for cohort in bench.ledger.references} == {"a", "c", "d"}
    assert set(bench.ledger._siblings) == {"a", "c", "d"}
    assert bench.ledger._bytes == sum(entry.weight for entry in bench.ledger._entries.values())


def test_memory_is_bounded_by_bytes() -> None:
    """Many large references do not add up, and a giant is not kept at all."""
    bench = Bench(store=False, max_bytes=200_000)
    for number in range(100):
        bench.see("x" * 10_000, str(number))
    assert bench.ledger._bytes <= 200_000
    assert 10 < len(bench.ledger.references) < 20
    bench.see("y" * 100_000, "giant")
    assert len(bench.ledger.references) > 10
    bench.see("z", "giant")
    assert bench.value("reprise_comparisons_total", verdict="diverged") == 1


def test_an_evicted_cohort_comes_back_from_the_store() -> None:
    """What memory let go of is looked up, unwritten sightings included."""
    bench = Bench(max_cohorts=1)
    bench.see("a", "k")
    bench.see("x", "l")
    bench.see("b", "k")
    assert bench.value("reprise_comparisons_total", verdict="diverged") == 1
    bench.ledger.commit()
    counts = {cohort.key: known.counts.outputs for cohort, known in bench.store.held.items()}
    assert sorted(counts["k"].values()) == [1, 1]
    assert sorted(counts["l"].values()) == [1]


def test_new_cohorts_share_a_batch(bench: Bench) -> None:
    """Looking up cohorts that are new does not cut the batch short."""
    for number in range(20):
        bench.see("a", str(number))
    bench.ledger.commit()
    bench.ledger.commit()
    assert bench.store.batches == [20]


def test_without_a_store_memory_is_the_ledger() -> None:
    """No store is no failure: verdicts as ever, nothing dropped."""
    bench = Bench(store=False)
    bench.see("a")
    bench.see("b")
    bench.ledger.commit()
    bench.ledger.close()
    assert bench.value("reprise_comparisons_total", verdict="diverged") == 1
    assert bench.value("reprise_ledger_dropped_total", reason="store_unavailable") == 0


def test_a_store_that_is_absent_costs_no_verdict(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """Verdicts go on, sightings are counted as dropped, and the store is tried again ever later, then used again."""
    bench.store.absent = True
    with caplog.at_level(logging.WARNING):
        for number in range(8):
            bench.see("a" if number % 2 else "b")
            bench.ledger.commit()
    assert bench.value("reprise_comparisons_total", verdict="diverged") == 4
    assert bench.value("reprise_ledger_dropped_total", reason="store_unavailable") == 8
    assert bench.store.opened == 1
    assert caplog.text.count("the store is absent") == 1
    for _ in range(12):
        bench.now += FIRST_RETRY_SECONDS
        bench.see("a")
        bench.ledger.commit()
    assert bench.store.opened == 1 + 3
    bench.now += LAST_RETRY_SECONDS
    bench.store.absent = False
    bench.see("a")
    bench.ledger.commit()
    assert bench.store.batches == [1]
    assert bench.store.held[CohortId("k", "isolated", "p-1")].reference.digest in bench.ledger.references.values()


def test_whatever_keeps_a_store_from_opening_costs_no_verdict(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """A fault that is not the store's own error: the store is away, which is told, and it is tried again."""
    bench.store.fault = ZeroDivisionError("a secret of the fault")
    for text in "aab":
        bench.see(text)
    bench.ledger.commit()
    assert bench.value("reprise_comparisons_total", verdict="match") == 1
    assert bench.value("reprise_comparisons_total", verdict="diverged") == 1
    assert bench.value("reprise_ledger_dropped_total", reason="store_unavailable") == 3
    assert bench.value("reprise_ledger_up") == 0
    assert bench.ledger.problem == "the ledger cannot be opened: ZeroDivisionError"
    assert "the ledger cannot be opened: ZeroDivisionError; verdicts go on" in caplog.text
    assert bench.store.opened == 1
    bench.store.fault = None
    bench.now += FIRST_RETRY_SECONDS
    bench.see("a")
    bench.ledger.commit()
    assert bench.store.batches == [1]
    assert bench.ledger.problem is None


def test_a_store_that_breaks_is_closed_and_reopened(bench: Bench) -> None:
    """A failed batch is counted, the store let go of, and the next batch after the delay is written."""
    bench.see("a")
    bench.ledger.commit()
    bench.store.broken = True
    bench.see("a")
    bench.ledger.commit()
    assert bench.store.closed
    assert bench.value("reprise_ledger_dropped_total", reason="store_error") == 1
    bench.store.broken = False
    bench.see("a")
    bench.ledger.commit()
    assert bench.value("reprise_ledger_dropped_total", reason="store_unavailable") == 1
    bench.now += FIRST_RETRY_SECONDS
    bench.see("a")
    bench.ledger.commit()
    assert bench.store.batches == [1, 1]
    assert bench.value("reprise_comparisons_total", verdict="match") == 3


def test_a_store_that_cannot_be_read_is_no_cohort(bench: Bench) -> None:
    """A failing lookup makes a new cohort in memory instead of an error."""
    bench.store.broken = True
    bench.see("a")
    bench.see("a")
    assert bench.value("reprise_comparisons_total", verdict="match") == 1
    assert bench.store.closed


def test_retention_is_called_now_and_then(bench: Bench) -> None:
    """At the first batch, then once per so many sightings; a failure of it drops nothing that was written."""
    for _ in range(PRUNE_EVERY // 8):
        bench.see("a")
        bench.ledger.commit()
    assert bench.store.pruned == 1
    for _ in range(PRUNE_EVERY):
        bench.see("a")
    bench.ledger.commit()
    assert bench.store.pruned == 2
    assert bench.value("reprise_ledger_dropped_total", reason="store_error") == 0


def test_a_divergence_in_a_deterministic_mode_is_logged_once_per_output(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """It is an alarm: one line with what an operator needs and no content; ordinary modes stay silent."""
    with caplog.at_level(logging.WARNING):
        for text in ("a", "secret", "secret"):
            bench.see(text, mode="isolated")
            bench.see(text, mode="standard")
    (record,) = caplog.records
    assert "request id diverged in mode isolated" in record.getMessage()
    assert "secret" not in caplog.text
