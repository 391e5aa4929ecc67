"""Semantic similarity of diverged answers, on a thread of its own: it takes milliseconds, and nobody waits for it."""

import logging
import queue
import threading
from typing import Final, Self

from prometheus_client import Histogram

from app.determinism.output import Output
from app.determinism.semantic import Embedder, semantic_similarity

_WAITING: Final = 64

_log = logging.getLogger(__name__)


class Likeness:
    """Observes how near pairs of outputs are in meaning, while it is entered.

    Pairs that find too many waiting are left out: it is a sample, and never part of a verdict.
    """

    def __init__(self, embedder: Embedder, observed: Histogram) -> None:
        self._embedder = embedder
        self._observed = observed
        self._queue: queue.Queue[tuple[Output, Output] | None] = queue.Queue(_WAITING)
        self._thread = threading.Thread(target=self._run, name="reprise-semantic", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        # What waits is advice that nobody will read any more.
        while True:
            try:
                self._queue.put_nowait(None)
            except queue.Full:
                self._discard()
            else:
                break
        self._thread.join(5.0)

    def offer(self, reference: Output, output: Output) -> None:
        """Look at a pair some time. Never waits."""
        try:
            self._queue.put_nowait((reference, output))
        except queue.Full:
            return

    def _discard(self) -> None:
        try:
            self._queue.get_nowait()
        except queue.Empty:
            return

    def _run(self) -> None:
        while (pair := self._queue.get()) is not None:
            try:
                similarity = semantic_similarity(*pair, self._embedder)
            except Exception:  # noqa: BLE001 - a model may fail in any way; it is logged, and the next pair has its turn
                _log.exception("two answers could not be compared by their meaning")
                continue
            if similarity is not None:
                self._observed.observe(max(similarity, 0.0))
