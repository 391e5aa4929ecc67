"""The ledger: cohorts in memory, verdicts, and the store behind them; all of it on the recorder's one thread.

Memory holds the cohorts seen most recently, with the texts of their references; a store holds digests and counts of
many more. A cohort that memory does not know is looked up in the store, and its reference text is known again as soon
as one answer repeats it. Whatever the store does, a verdict is reached: without it, from memory alone.
"""

import logging
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from app.determinism.divergence import Comparison, Verdict, bracket, compare
from app.determinism.mode import DETERMINISTIC_MODES
from app.determinism.output import Output
from app.observation.metrics import BoundMetrics, Cause, Cross, Drop, Metrics
from app.observation.store import (
    PAIRED_OBSERVATIONS,
    Cohort,
    CohortCounts,
    CohortId,
    Observation,
    Reference,
    Sighting,
    Store,
    StoreError,
)

PRUNE_EVERY: Final = 4096
"""Sightings written between two calls of the store's retention."""

FIRST_RETRY_SECONDS: Final = 1.0
LAST_RETRY_SECONDS: Final = 60.0
_COHORT_WEIGHT: Final = 2048
_OUTPUT_SHARE: Final = 16

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Entry:
    """A cohort in memory. ``output`` is the reference with its text, None where unknown or too large to keep."""

    cohort: Cohort
    output: Output | None = None
    weight: int = _COHORT_WEIGHT


class Ledger:
    """Takes observations in order. Keeps at most ``max_cohorts`` cohorts and about ``max_bytes`` in memory.

    ``references`` maps the cohorts in memory to their reference digests; another thread may look one up at any time.
    """

    def __init__(
        self,
        metrics: Metrics,
        open_store: Callable[[], Store] | None,
        *,
        max_cohorts: int,
        max_bytes: int,
        wall: Callable[[], float],
        monotonic: Callable[[], float],
    ) -> None:
        self.references: dict[CohortId, str] = {}
        self._metrics = metrics
        self._open_store = open_store
        self._max_cohorts = max_cohorts
        self._max_bytes = max_bytes
        self._wall = wall
        self._monotonic = monotonic
        self._entries: OrderedDict[CohortId, _Entry] = OrderedDict()
        self._siblings: dict[str, list[CohortId]] = {}
        self._bytes = 0
        self._batch: list[Sighting] = []
        self._batched: set[CohortId] = set()
        self._store: Store | None = None
        self._retry_at = 0.0
        self._retry_after = FIRST_RETRY_SECONDS
        self._unpruned = PRUNE_EVERY

    def observe(self, observation: Observation, output: Output) -> None:
        """Compare one complete output with its cohort, count it, and put it into the batch."""
        cohort_id = observation.cohort
        now = self._wall()
        verdict: Verdict | None = None
        entry = self._entries.get(cohort_id) or self._load(cohort_id)
        if entry is None:
            reference = Reference.of(observation, output)
            entry = _Entry(Cohort(cohort_id, observation.model, reference, CohortCounts(), now, now))
            self._remember(entry)
        else:
            self._entries.move_to_end(cohort_id)
            verdict = Verdict.MATCH if output.digest == entry.cohort.reference.digest else Verdict.DIVERGED
        cohort = entry.cohort
        slot = cohort.counts.slot(output.digest)
        if verdict is not None:
            self._count(entry, observation, output, verdict)
        cohort.counts.add(slot, verdict)
        cohort.last_seen = now
        if entry.output is None and output.digest == cohort.reference.digest:
            self._keep_text(entry, output)
        self._compare_across(cohort_id, output.digest)
        self._batched.add(cohort_id)
        self._batch.append(Sighting(cohort_id, observation.model, cohort.reference, slot, verdict, now))
        self._evict()

    def commit(self) -> None:
        """Write the batch; what cannot be written is dropped and counted."""
        batch, self._batch = self._batch, []
        self._batched.clear()
        if not batch or self._open_store is None:
            return
        store = self._reach()
        if store is None:
            self._metrics.dropped(Drop.STORE_UNAVAILABLE, len(batch))
            return
        try:
            store.record(batch)
        except StoreError as error:
            self._metrics.dropped(Drop.STORE_ERROR, len(batch))
            self._lose(error)
            return
        self._retry_after = FIRST_RETRY_SECONDS
        self._unpruned += len(batch)
        if self._unpruned >= PRUNE_EVERY:
            self._unpruned = 0
            self._prune(store)

    def close(self) -> None:
        """Let go of the store."""
        if self._store is not None:
            self._store.close()
            self._store = None

    def _count(self, entry: _Entry, observation: Observation, output: Output, verdict: Verdict) -> None:
        """The metrics of a repeat, before it is added to the cohort's counts."""
        bound = self._metrics.of(observation.model, observation.mode)
        bound.comparisons[verdict].inc()
        counts = entry.cohort.counts
        earlier = counts.observed
        if earlier < PAIRED_OBSERVATIONS:
            bound.pairs.inc(earlier)
            bound.pairs_equal.inc(counts.outputs.get(output.digest, 0))
        is_new = counts.slot(output.digest) not in counts.outputs
        bound.distinct_outputs.observe(counts.distinct + is_new)
        if verdict is Verdict.DIVERGED:
            reference = entry.cohort.reference
            cause = _cause(reference, observation, output)
            bound.divergences[cause].inc()
            fork = self._place(entry, output, bound)
            # One line per distinct output: an alarm must be seen, and a hot prompt must not fill the log.
            if is_new and observation.mode in DETERMINISTIC_MODES:
                _log.warning(
                    "request %s diverged in mode %s: cohort %s, replica %s, output %s, reference %s, "
                    "fork at token %s, %s",
                    observation.request_id,
                    observation.mode,
                    observation.cohort_key[:16],
                    observation.replica,
                    output.digest,
                    reference.digest,
                    "unknown" if fork is None else fork,
                    cause.value,
                )

    def _place(self, entry: _Entry, output: Output, bound: BoundMetrics) -> int | None:
        """Observe where an output forks from the reference: by text where memory has it, else by block digests."""
        if entry.output is not None:
            comparison = compare(entry.output, output)
            self._observe_fork(comparison, bound)
            return comparison.fork_tokens
        between = bracket(entry.cohort.reference.blocks, output.blocks)
        if between is None or between.unit != "tokens":
            return None
        bound.fork_tokens.observe(between.start)
        return between.start

    def _observe_fork(self, comparison: Comparison, bound: BoundMetrics) -> None:
        if comparison.fork_tokens is not None:
            bound.fork_tokens.observe(comparison.fork_tokens)
        if comparison.margin is not None:
            self._metrics.fork_margin_nats.observe(comparison.margin)
        if comparison.shared is not None:
            self._metrics.similarity["prefix"].observe(comparison.shared)

    def _compare_across(self, cohort: CohortId, digest: str) -> None:
        """Compare with the references of the same request that differ in mode alone, or in posture alone."""
        siblings = self._siblings[cohort.key]
        if len(siblings) == 1:
            return
        for other in siblings:
            same_mode, same_posture = other.mode == cohort.mode, other.posture == cohort.posture
            if same_mode == same_posture:
                continue
            verdict = Verdict.MATCH if self.references[other] == digest else Verdict.DIVERGED
            self._metrics.crossed(Cross.POSTURE if same_mode else Cross.MODE, verdict)

    def _remember(self, entry: _Entry) -> None:
        cohort_id = entry.cohort.id
        self._entries[cohort_id] = entry
        self._siblings.setdefault(cohort_id.key, []).append(cohort_id)
        self._bytes += entry.weight
        self.references[cohort_id] = entry.cohort.reference.digest

    def _keep_text(self, entry: _Entry, output: Output) -> None:
        weight = output.weight
        # One giant must not push hundreds of others out.
        if weight * _OUTPUT_SHARE <= self._max_bytes:
            entry.output = output
            entry.weight += weight
            self._bytes += weight

    def _evict(self) -> None:
        while len(self._entries) > self._max_cohorts or (self._bytes > self._max_bytes and len(self._entries) > 1):
            cohort_id, entry = self._entries.popitem(last=False)
            self._bytes -= entry.weight
            del self.references[cohort_id]
            siblings = self._siblings[cohort_id.key]
            siblings.remove(cohort_id)
            if not siblings:
                del self._siblings[cohort_id.key]

    def _load(self, cohort_id: CohortId) -> _Entry | None:
        # What the batch holds of a cohort that memory has let go of is not in the store yet.
        if cohort_id in self._batched:
            self.commit()
        store = self._reach()
        if store is None:
            return None
        try:
            cohort = store.load(cohort_id)
        except StoreError as error:
            self._lose(error)
            return None
        if cohort is None:
            return None
        entry = _Entry(cohort)
        self._remember(entry)
        return entry

    def _reach(self) -> Store | None:
        """The store, opened if it is not and if it is time to try; None while it is away."""
        if self._store is None and self._open_store is not None and self._monotonic() >= self._retry_at:
            try:
                self._store = self._open_store()
            except StoreError as error:
                self._lose(error)
        return self._store

    def _lose(self, error: StoreError) -> None:
        """Let go of a store that failed; it is opened anew later, ever later while that fails."""
        self.close()
        level = logging.WARNING if self._retry_after == FIRST_RETRY_SECONDS else logging.DEBUG
        _log.log(
            level, "%s; verdicts go on from memory, and the ledger is tried again in %g s", error, self._retry_after
        )
        self._retry_at = self._monotonic() + self._retry_after
        self._retry_after = min(2 * self._retry_after, LAST_RETRY_SECONDS)

    def _prune(self, store: Store) -> None:
        try:
            store.prune(self._wall())
        except StoreError as error:
            self._lose(error)


def _cause(reference: Reference, observation: Observation, output: Output) -> Cause:
    """The first suspect that holds; the order and its reasons are those of `Cause`."""
    if max(reference.coresident_peak or 1, observation.coresident_peak or 1) > 1:
        return Cause.CO_BATCHED
    if None not in (reference.cached_tokens, output.cached_tokens) and reference.cached_tokens != output.cached_tokens:
        return Cause.CACHE_STATE
    if reference.replica != observation.replica:
        return Cause.OTHER_REPLICA
    return Cause.UNEXPLAINED
