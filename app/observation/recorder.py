"""The recorder: finished requests in, verdicts and metrics out, never on a request's critical path.

Two threads meet at one queue. On the event loop `Recorder.submit` looks the reference up in memory and queues the
observation: no lock, no I/O, no wait. One writer thread takes observations in order, compares, counts, and writes
batches to the store. It begins a batch a moment after the first observation arrives, so that a busy gateway wakes it
some twenty times a second and not once per request, and it offers the interpreter to the loop every few observations.

Observation fails open. A full queue, a dead store or a fault in here costs figures, which are counted as dropped, and
nothing else; while the store is away the verdicts go on from memory.
"""

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self, TypeAlias, TypeVar

from app.determinism.divergence import Verdict
from app.determinism.output import Output
from app.observation.judge import Liken, nobody_likens
from app.observation.labels import Drop
from app.observation.ledger import Ledger
from app.observation.metrics import Metrics
from app.observation.store import Observation, Skip, Store, StoreError

PENDING: Final = "pending"
"""What `Recorder.submit` answers when memory holds no reference to compare with."""

_BATCH: Final = 256

ATTEND_SECONDS: Final = 5.0
"""How long an idle writer leaves its store alone: then it looks whether one that was away is back."""

_OFFER_EVERY: Final = 32
"""Observations (some 6 us each) between two offers; without any, the loop could wait for 5 ms, the switch interval."""

_log = logging.getLogger(__name__)

Answer = TypeVar("Answer")
_Question: TypeAlias = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Limits:
    """How much memory and time the recorder may take. Sizes are in bytes, times in seconds."""

    queue_observations: int = 10_000
    queue_bytes: int = 64 * 2**20
    cache_cohorts: int = 20_000
    cache_bytes: int = 64 * 2**20
    linger: float = 0.05
    close_deadline: float = 5.0


class Recorder:
    """Records observations while it is entered; see the module for what runs where.

    ``open_store`` is called on the writer thread, again after a store failed (1 s later, then twice as long, at most
    60 s); None keeps the ledger in memory only. ``wall`` gives seconds since 1970, ``monotonic`` those of delays.
    """

    def __init__(
        self,
        metrics: Metrics,
        open_store: Callable[[], Store] | None = None,
        limits: Limits = Limits(),
        *,
        wall: Callable[[], float] = time.time,  # noqa: TID251 - the ledger shows when a cohort was first and last seen
        monotonic: Callable[[], float] = time.monotonic,
        keep_text: Callable[[Output], str | None] = lambda _: None,
        liken: Liken = nobody_likens,
    ) -> None:
        self._metrics = metrics
        self._limits = limits
        self._ledger = Ledger(
            metrics,
            open_store,
            max_cohorts=limits.cache_cohorts,
            max_bytes=limits.cache_bytes,
            wall=wall,
            monotonic=monotonic,
            keep_text=keep_text,
            liken=liken,
        )
        metrics.ledger_queue.set_function(lambda: float(len(self._queue)))
        self._questions: deque[_Question] = deque()
        self._references = self._ledger.references
        self._queue: deque[tuple[Observation, Output, int]] = deque()
        # Each of these is written by one thread alone; their differences are what waits.
        self._bytes_in = self._bytes_out = 0
        self._submitted = 0
        self._processed = 0
        self._progress = threading.Condition()
        self._wake = threading.Event()
        self._urgent = threading.Event()
        self._closed = True
        self._stopping = False
        self._abandoned = False
        self._thread = threading.Thread(target=self._run, name="reprise-recorder", daemon=True)

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def start(self) -> None:
        """Start the writer thread; once in the life of a recorder."""
        self._closed = False
        self._thread.start()

    def submit(self, observation: Observation) -> str:
        """Take a finished request: "match", "diverged" or "pending" by the memory's word, or "incomparable".

        For the event loop's thread: constant time, never blocks. What finds the queue full, or the recorder closed, is
        dropped and counted.
        """
        output = observation.output
        reason = observation.skip_reason
        if output is None or not output.complete or reason is not None:
            self._metrics.skipped(reason or Skip.INCOMPLETE)
            compared = self._metrics.of(observation.model, observation.mode).compared[observation.origin]
            compared.comparisons[Verdict.INCOMPARABLE].inc()
            return Verdict.INCOMPARABLE
        weight = output.weight
        if self._closed:
            self._metrics.dropped(Drop.SHUTDOWN)
        elif (
            len(self._queue) >= self._limits.queue_observations
            or self._bytes_in - self._bytes_out + weight > self._limits.queue_bytes
        ):
            self._metrics.dropped(Drop.QUEUE_FULL)
            self._metrics.skipped(Skip.LEDGER_FULL)
            compared = self._metrics.of(observation.model, observation.mode).compared[observation.origin]
            compared.comparisons[Verdict.INCOMPARABLE].inc()
        else:
            self._bytes_in += weight
            self._submitted += 1
            self._queue.append((observation, output, weight))
            if not self._wake.is_set():
                self._wake.set()
        reference = self._references.get(observation.cohort)
        if reference is None:
            return PENDING
        return Verdict.MATCH if reference == output.digest else Verdict.DIVERGED

    async def flush(self, timeout: float = 10.0) -> bool:  # noqa: ASYNC109 - the wait is a thread's, no task to cancel
        """Wait until everything submitted before is processed and written; False when that takes over ``timeout`` s."""
        target = self._submitted
        self._hurry()
        return await asyncio.to_thread(self._wait_for, target, timeout)

    async def ask(self, question: Callable[[Store], Answer], timeout: float = 10.0) -> Answer:  # noqa: ASYNC109 - as above
        """Read the store on the thread that owns it, after all that was submitted before.

        Raises StoreError where it is away, closed or slow.
        """
        asked: Future[Answer] = Future()

        def answer() -> None:
            if not asked.set_running_or_notify_cancel():
                return  # whoever asked has gone
            try:
                asked.set_result(self._ledger.ask(question))
            except Exception as error:  # noqa: BLE001 - whoever asked is told
                asked.set_exception(error)

        if self._closed:
            raise StoreError("the ledger is closed")
        self._questions.append(answer)
        self._hurry()
        try:
            return await asyncio.wait_for(asyncio.wrap_future(asked), timeout)
        except TimeoutError as exc:
            raise StoreError(f"the ledger did not answer within {timeout:g} s") from exc

    @property
    def queued(self) -> int:
        """Observations that wait."""
        return len(self._queue)

    @property
    def problem(self) -> str | None:
        """Why the store is away; None while it is not."""
        return self._ledger.problem

    async def close(self) -> None:
        """Process and write what waits, within the deadline; what is then left is dropped and counted."""
        if self._closed:
            return
        self._closed = True
        self._stopping = True
        self._hurry()
        await asyncio.to_thread(self._thread.join, self._limits.close_deadline)
        if self._thread.is_alive():
            self._abandoned = True
            left = 0
            while self._take() is not None:
                left += 1
            self._metrics.dropped(Drop.SHUTDOWN, left)
            # What is being written now will be written, or is lost with the process; nobody is left to count it.
            _log.warning("the recorder did not finish within its deadline; %d observations are lost", left)

    def _hurry(self) -> None:
        self._urgent.set()
        self._wake.set()

    def _wait_for(self, target: int, seconds: float) -> bool:
        with self._progress:
            return self._progress.wait_for(lambda: self._processed >= target, seconds)

    def _take(self) -> tuple[Observation, Output] | None:
        """The next observation that waits; None where none does. Two threads may ask, and each gets its own."""
        try:
            observation, output, weight = self._queue.popleft()
        except IndexError:
            return None
        self._bytes_out += weight
        return observation, output

    def _run(self) -> None:
        # Opened before there is anything to write, so that a store that cannot be is known from the start.
        self._safely(self._ledger.attend)
        while True:
            if not self._wake.wait(ATTEND_SECONDS):
                self._safely(self._ledger.attend)
                continue
            self._urgent.wait(self._limits.linger)
            # Cleared before the queue is read: what is appended later sets it again.
            self._wake.clear()
            self._urgent.clear()
            stopping = self._stopping
            # Only those that were asked before: what was submitted before them is in the store then.
            asked = len(self._questions)
            self._drain()
            for _ in range(asked):
                self._safely(self._questions.popleft())
            if stopping or self._abandoned:
                break
        self._ledger.close()

    @staticmethod
    def _safely(work: Callable[[], None]) -> None:
        """Do something that must not end the writer, whatever it raises."""
        try:
            work()
        except Exception:  # noqa: BLE001 - see above; it is logged
            _log.exception("the recorder's thread met a fault")

    def _drain(self) -> None:
        # What arrives meanwhile waits for the next turn: chasing a queue that is being filled would mean a transaction,
        # and a fight for the interpreter, for every few observations.
        left = len(self._queue)
        while left and not self._abandoned:
            taken = 0
            while taken < min(left, _BATCH) and (waiting := self._take()) is not None:
                taken += 1
                try:
                    self._ledger.observe(*waiting)
                except Exception:  # noqa: BLE001 - a fault must not end the writer; it is logged and counted
                    _log.exception("an observation could not be recorded")
                    self._metrics.dropped(Drop.INTERNAL_ERROR)
                if not taken % _OFFER_EVERY:
                    time.sleep(0)  # noqa: TID251 - no wait: it lets the event loop have the interpreter
            try:
                self._ledger.commit()
            except Exception:  # noqa: BLE001 - as above, for a store that breaks its protocol; the ledger has counted it
                _log.exception("a batch of observations could not be written")
            left = left - taken if taken else 0
            with self._progress:
                self._processed += taken
                self._progress.notify_all()
