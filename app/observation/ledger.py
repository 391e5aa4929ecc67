"""The ledger: cohorts in memory, verdicts, and the store behind them; all of it on the recorder's one thread.

Memory holds the cohorts seen most recently, with the texts of their references; a store holds digests and counts of
many more. A cohort that memory does not know is looked up in the store, and its reference text is known again as soon
as one answer repeats it. Whatever the store does, a verdict is reached: without it, from memory alone.
"""

import logging
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from app.determinism.divergence import Verdict
from app.determinism.output import Output
from app.observation.judge import Judge, Liken, nobody_likens, specimen
from app.observation.labels import Cross, Drop
from app.observation.metrics import Metrics
from app.observation.store import (
    OTHER_OUTPUTS,
    Cohort,
    CohortCounts,
    CohortId,
    Observation,
    Reference,
    Sighting,
    Specimen,
    Store,
    StoreError,
)

PRUNE_EVERY: Final = 4096
"""Sightings written between two calls of the store's retention."""

PRUNE_SECONDS: Final = 600.0
"""The longest time between two of them, as long as anything is written."""

FIRST_RETRY_SECONDS: Final = 1.0
LAST_RETRY_SECONDS: Final = 60.0
_COHORT_WEIGHT: Final = 2048
_OUTPUT_SHARE: Final = 16
_MOST_OWED: Final = 1000

_log = logging.getLogger(__name__)

Answer = TypeVar("Answer")


@dataclass(slots=True)
class _Entry:
    """A cohort in memory. ``output`` is the reference with its text, None where unknown or too large to keep."""

    cohort: Cohort
    output: Output | None = None
    weight: int = _COHORT_WEIGHT


class Ledger:
    """Takes observations in order. Keeps at most ``max_cohorts`` cohorts and about ``max_bytes`` in memory.

    ``references`` maps the cohorts in memory to their reference digests; another thread may look one up at any time.
    ``problem`` says why the store is away, None while it is not. ``keep_text`` gives what is to be kept of an output's
    text, None for nothing.
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
        keep_text: Callable[[Output], str | None] = lambda _: None,
        liken: Liken = nobody_likens,
    ) -> None:
        self.references: dict[CohortId, str] = {}
        self.problem: str | None = None
        self._metrics = metrics
        self._judge = Judge(metrics, liken)
        self._keep = keep_text
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
        self._firsts: dict[CohortId, tuple[Observation, Output]] = {}
        self._owed: dict[tuple[CohortId, str], Specimen] = {}
        self._store: Store | None = None
        self._retry_at = 0.0
        self._retry_after = FIRST_RETRY_SECONDS
        self._unpruned = 0
        self._prune_at = 0.0

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
        finding = None
        kept: Specimen | None
        if verdict is not None:
            finding = self._judge.judge(cohort, entry.output, observation, output, verdict)
        if slot not in cohort.counts.outputs and slot != OTHER_OUTPUTS:
            kept = specimen(observation, output, finding, now, self._keep(output))
        else:
            kept = self._owed.pop((cohort_id, slot), None)
        cohort.counts.add(slot, verdict)
        cohort.last_seen = now
        if entry.output is None and output.digest == cohort.reference.digest:
            self._keep_text(entry, output)
        self._compare_across(cohort_id, output.digest)
        self._batched.add(cohort_id)
        sighting = Sighting(
            cohort_id,
            observation.model,
            cohort.reference,
            output.digest,
            verdict,
            now,
            kept,
            observation.run,
            observation.request_id if observation.run else "",
            slot == output.digest,
        )
        self._batch.append(sighting)
        if verdict is None:
            self._firsts[cohort_id] = (observation, output)
        self._evict()

    def attend(self) -> None:
        """Open the store, if it is not and if it is time to try."""
        self._reach()

    def commit(self) -> None:
        """Write the batch; what cannot be written is dropped and counted."""
        batch, self._batch = self._batch, []
        firsts, self._firsts = self._firsts, {}
        self._batched.clear()
        if not batch or self._open_store is None:
            return
        try:
            store = self._reach()
            if store is None:
                self._metrics.dropped(Drop.STORE_UNAVAILABLE, len(batch))
                self._owe(batch)
                return
            others = store.record(batch)
        except StoreError as error:
            self._metrics.dropped(Drop.STORE_ERROR, len(batch))
            self._owe(batch)
            self._lose(error)
            return
        except Exception:
            self._metrics.dropped(Drop.INTERNAL_ERROR, len(batch))
            raise
        self._metrics.written(len(batch))
        for cohort_id, reference in others.items():
            self._adopt(cohort_id, reference, firsts.get(cohort_id))
        self._retry_after = FIRST_RETRY_SECONDS
        self._unpruned += len(batch)
        if self._unpruned >= PRUNE_EVERY or self._monotonic() >= self._prune_at:
            self._prune(store)

    def close(self) -> None:
        """Let go of the store."""
        if self._store is not None:
            self._store.close()
            self._store = None

    def ask(self, question: Callable[[Store], Answer]) -> Answer:
        """Let somebody read the store, what waits to be written included. Raises StoreError where it is away."""
        self.commit()
        store = self._reach()
        if store is None:
            raise StoreError(self.problem or "no store is kept")
        try:
            return question(store)
        except StoreError as error:
            self._lose(error)
            raise

    def _owe(self, batch: list[Sighting]) -> None:
        """Remember the specimens of a batch that was lost: each comes with the next sighting of its output."""
        for sighting in batch:
            if sighting.specimen is not None and len(self._owed) < _MOST_OWED:
                self._owed[sighting.cohort, sighting.output] = sighting.specimen

    def _adopt(self, cohort_id: CohortId, reference: Reference, first: tuple[Observation, Output] | None) -> None:
        """Take over the reference of another gateway, which was first; repeats are compared with that from now on.

        ``first`` is the answer that was taken for the reference here: now it is a repeat, and counted as the store
        counts it. What was compared with it meanwhile stays counted as it was, here and there.
        """
        if first is not None:
            self._count_second(reference, *first)
        entry = self._entries.get(cohort_id)
        if entry is None:
            return
        is_same = entry.cohort.reference.digest == reference.digest
        entry.cohort.reference = reference
        if is_same:
            return
        self.references[cohort_id] = reference.digest
        if entry.output is not None:
            self._bytes += _COHORT_WEIGHT - entry.weight
            entry.output, entry.weight = None, _COHORT_WEIGHT

    def _count_second(self, reference: Reference, observation: Observation, output: Output) -> None:
        if output.digest != reference.digest:
            self._judge.second(reference, observation, output)
            return
        bound = self._metrics.of(observation.model, observation.mode)
        bound.compared[observation.origin].comparisons[Verdict.MATCH].inc()

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
            except Exception as error:  # noqa: BLE001 - whatever keeps it from opening, verdicts are reached without it
                self._lose(error)
            else:
                self.problem = None
                # Now, not after the next batch: in a store that is full, that one would fail before anything had gone.
                self._prune(self._store)
        return self._store

    def _lose(self, error: Exception) -> None:
        """Let go of a store that failed; it is opened anew later, ever later while that fails."""
        self.close()
        is_known = isinstance(error, StoreError)
        # Only a store's own error is known to name no content.
        self.problem = str(error) if is_known else f"the ledger cannot be opened: {type(error).__name__}"
        self._metrics.ledger_up.set(0)
        _log.log(
            logging.WARNING if self._retry_after == FIRST_RETRY_SECONDS else logging.DEBUG,
            "%s; verdicts go on from memory, and the ledger is tried again in %g s",
            self.problem,
            self._retry_after,
            exc_info=None if is_known else error,
        )
        self._retry_at = self._monotonic() + self._retry_after
        self._retry_after = min(2 * self._retry_after, LAST_RETRY_SECONDS)

    def _prune(self, store: Store) -> None:
        """Apply the store's retention, and show how much it holds."""
        self._unpruned = 0
        self._prune_at = self._monotonic() + PRUNE_SECONDS
        try:
            store.prune(self._wall())
            self._metrics.ledger_holds(store.size())
        except StoreError as error:
            self._lose(error)
