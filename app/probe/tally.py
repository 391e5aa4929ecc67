"""What one mode has answered so far, and the row of figures that follows from it."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from statistics import median
from typing import Final

from app.determinism.divergence import first_difference
from app.determinism.mode import DETERMINISTIC_MODES, Mode
from app.probe.answer import Answer, Failure, Outcome, Refusal

FAILURES_ALLOWED: Final = 3
"""After so many failed requests a mode is given up."""

_HIGH_QUANTILE: Final = 0.95


class Status(StrEnum):
    """How the measurement of a mode ended."""

    MEASURED = "measured"
    UNAVAILABLE = "unavailable"
    FAILED = "failed"
    INTERRUPTED = "interrupted"


class WaitSource(StrEnum):
    """Where the added wait comes from."""

    ADMISSION = "admission"
    LATENCY_OVER_STANDARD = "latency_over_standard"


@dataclass(frozen=True, slots=True)
class Spread:
    """Median and 95th percentile (nearest rank), in seconds."""

    median: float
    high: float


@dataclass(frozen=True, slots=True)
class Row:
    """The figures of one mode. Rates are tokens per second; what is not known is None.

    ``diverged`` of ``compared`` answers differ from their reference. ``distinct`` counts the different outputs of each
    question, the first answer included, and so does not depend on which answer came first. Forks are counted from 0,
    over the diverged answers whose token ids are known. ``answers`` includes the references, as does ``peak``.
    """

    mode: Mode
    status: Status
    reason: str | None
    asked: int
    compared: int
    diverged: int
    failed: int
    distinct: tuple[int, ...]
    fork: int | None
    fork_median: float | None
    answers: int
    peak: int | None
    peaks_known: int
    confirmed: bool
    tokens_per_second: float | None
    background_per_second: float | None
    latency: Spread | None
    wait: Spread | None
    wait_source: WaitSource | None

    @property
    def alarm(self) -> bool:
        """Whether a mode that must not diverge did."""
        return self.mode in DETERMINISTIC_MODES and self.diverged > 0


@dataclass(slots=True)
class Tally:
    """Collects the outcomes of one mode; ``seconds`` and ``background_tokens`` leave the references out."""

    mode: Mode
    asked: int
    references: dict[int, Answer] = field(default_factory=dict)
    repeats: list[tuple[int, Answer]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    refusal: str | None = None
    ended: bool = False
    seconds: float = 0.0
    background_tokens: int = 0

    @property
    def hopeless(self) -> bool:
        """Whether more requests in this mode are pointless."""
        return self.refusal is not None or len(self.failures) >= FAILURES_ALLOWED

    def add_reference(self, question: int, outcome: Outcome) -> bool:
        """Take the first answer to a question; False when there is none, and so nothing to compare with."""
        if isinstance(outcome, Answer):
            self.references[question] = outcome
            return True
        self._note(outcome)
        return False

    def add(self, question: int, outcome: Outcome) -> None:
        """Take a repeat."""
        if isinstance(outcome, Answer):
            self.repeats.append((question, outcome))
        else:
            self._note(outcome)

    def row(self, standard: "Tally | None") -> Row:
        """The figures so far; ``standard`` is the mode against which waiting is judged where no queue reports it."""
        answers = [*self.references.values(), *(answer for _, answer in self.repeats)]
        diverged = [
            (self.references[question], answer) for question, answer in self.repeats if self._diverged(question, answer)
        ]
        forks = [place for pair in diverged if (place := fork(*pair)) is not None]
        peaks = [answer.coresident_peak for answer in answers if answer.coresident_peak is not None]
        wait, source = self._wait(standard)
        tokens = sum(answer.completion_tokens for _, answer in self.repeats)
        return Row(
            mode=self.mode,
            status=self._status(),
            reason=self.refusal or (self.failures[-1] if self.failures else None),
            asked=self.asked,
            compared=len(self.repeats),
            diverged=len(diverged),
            failed=len(self.failures),
            distinct=tuple(self._distinct(question) for question in self.references),
            fork=min(forks, default=None),
            fork_median=median(forks) if forks else None,
            answers=len(answers),
            peak=max(peaks, default=None),
            peaks_known=len(peaks),
            confirmed=bool(answers) and all(answer.mode == self.mode for answer in answers),
            tokens_per_second=_rate(tokens, self.seconds),
            background_per_second=_rate(self.background_tokens, self.seconds),
            latency=_spread(answer.latency for _, answer in self.repeats),
            wait=wait,
            wait_source=source,
        )

    def _note(self, outcome: Refusal | Failure) -> None:
        if isinstance(outcome, Refusal):
            self.refusal = outcome.reason
        else:
            self.failures.append(outcome.reason)

    def _status(self) -> Status:
        if self.refusal is not None:
            return Status.UNAVAILABLE
        if self.failures:
            return Status.FAILED
        return Status.MEASURED if self.ended else Status.INTERRUPTED

    def _diverged(self, question: int, answer: Answer) -> bool:
        return answer.identity != self.references[question].identity

    def _distinct(self, question: int) -> int:
        repeats = {answer.identity for asked, answer in self.repeats if asked == question}
        return len(repeats | {self.references[question].identity})

    def _wait(self, standard: "Tally | None") -> tuple[Spread | None, WaitSource | None]:
        waits = [answer.admission_wait for _, answer in self.repeats if answer.admission_wait is not None]
        if waits and len(waits) == len(self.repeats):
            return _spread(waits), WaitSource.ADMISSION
        ours = _spread(answer.latency for _, answer in self.repeats)
        theirs = None if standard is None else _spread(answer.latency for _, answer in standard.repeats)
        if ours is None or theirs is None or standard is self:
            return None, None
        return Spread(ours.median - theirs.median, ours.high - theirs.high), WaitSource.LATENCY_OVER_STANDARD


def fork(reference: Answer, answer: Answer) -> int | None:
    """How many tokens two answers share before they differ, the least over their choices; None without ids."""
    places: list[int] = []
    pairs = zip(reference.token_ids, answer.token_ids, strict=True)
    for one, other, (left, right) in zip(reference.identity, answer.identity, pairs, strict=True):
        if one != other:
            if left is None or right is None:
                return None
            places.append(first_difference(left, right))
    return min(places, default=None)


def _spread(values: Iterable[float]) -> Spread | None:
    ordered = sorted(values)
    return Spread(median(ordered), _nearest_rank(ordered)) if ordered else None


def _nearest_rank(ordered: Sequence[float]) -> float:
    return ordered[math.ceil(_HIGH_QUANTILE * len(ordered)) - 1]


def _rate(tokens: int, seconds: float) -> float | None:
    return tokens / seconds if seconds > 0 else None
