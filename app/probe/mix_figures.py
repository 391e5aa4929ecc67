"""From what came back to figures: one row per percentage, one point per number of clients. Pure.

How tokens are counted: an answer's tokens are spread evenly over the time in which it was made (its latency without its
wait), and what falls into the window counts, whether or not the answer began or ended in it. Requests that are under
way when the window ends are waited for, with the traffic going on. So neither edge of the window gives or takes, and
the rate varies less than with whole answers, which come in volleys after each exclusive phase. Requests, waits and
failures count where they end in the window.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Final

from app.determinism.mode import Mode
from app.probe.answer import Answer
from app.probe.mix_traffic import Exchange

_MIDDLE: Final = 0.50
_HIGH: Final = 0.99


@dataclass(frozen=True, slots=True)
class Window:
    """What was measured when: seconds of the run's clock, clients at work, percentage of isolated requests."""

    began: float
    ended: float
    clients: int
    percent: float

    @property
    def seconds(self) -> float:
        """How long it was."""
        return self.ended - self.began

    def share(self, interval: tuple[float, float]) -> float:
        """The part of an interval that lies inside, 0 to 1; a moment lies inside or not."""
        began, ended = interval
        if ended <= began:
            return float(self.holds(ended))
        return max(0.0, min(ended, self.ended) - max(began, self.began)) / (ended - began)

    def holds(self, moment: float) -> bool:
        """Whether a moment lies inside."""
        return self.began < moment <= self.ended


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Median and 99th percentile (nearest rank), in seconds, of ``known`` values."""

    p50: float
    p99: float
    known: int


@dataclass(frozen=True, slots=True)
class ClassFigures:
    """One class in one window. ``waits`` is None where the server named none."""

    answers: int
    failed: int
    tokens: float
    waits: Quantiles | None
    latencies: Quantiles | None


@dataclass(frozen=True, slots=True)
class MixRow:
    """One percentage. ``not_alone`` counts isolated answers whose peak was not 1, ``unconfirmed`` those without one.

    ``exclusive_share`` is the isolated requests' running time over the window's, per replica seen; None where no
    replica or no wait was named.
    """

    window: Window
    shared: ClassFigures
    isolated: ClassFigures
    exclusive_share: float | None
    replicas: tuple[str, ...]
    not_alone: int
    unconfirmed: int
    reason: str | None

    @property
    def tokens_per_second(self) -> float:
        """Of both classes together."""
        return (self.shared.tokens + self.isolated.tokens) / self.window.seconds

    @property
    def failed(self) -> int:
        """Requests that ended in the window without an answer."""
        return self.shared.failed + self.isolated.failed


@dataclass(frozen=True, slots=True)
class Point:
    """Ordinary traffic of so many clients. ``latencies``: tokens of an answer, how many answers, mean latency (s)."""

    window: Window
    answers: int
    failed: int
    tokens_per_second: float
    latencies: tuple[tuple[int, int, float], ...]
    replicas: tuple[str, ...]


def row_of(window: Window, exchanges: Sequence[Exchange]) -> MixRow:
    """The figures of one percentage, from all that came back in the run."""
    isolated = [exchange for exchange in exchanges if exchange.isolated]
    inside = [exchange for exchange in exchanges if window.holds(exchange.ended)]
    answers = [exchange.outcome for exchange in inside if exchange.isolated and isinstance(exchange.outcome, Answer)]
    confirmed = [answer for answer in answers if answer.mode == Mode.ISOLATED and answer.coresident_peak is not None]
    replicas = _replicas(inside)
    reasons = [exchange.outcome.reason for exchange in inside if not isinstance(exchange.outcome, Answer)]
    return MixRow(
        window=window,
        shared=_class(window, [exchange for exchange in exchanges if not exchange.isolated]),
        isolated=_class(window, isolated),
        exclusive_share=_exclusive_share(window, isolated, len(replicas)),
        replicas=replicas,
        not_alone=sum(answer.coresident_peak not in {None, 1} for answer in answers),
        unconfirmed=len(answers) - len(confirmed),
        reason=reasons[-1] if reasons else None,
    )


def point_of(window: Window, exchanges: Sequence[Exchange]) -> Point:
    """The figures of a stretch of ordinary traffic."""
    figures = _class(window, exchanges)
    inside = [exchange for exchange in exchanges if window.holds(exchange.ended)]
    by_length: dict[int, list[float]] = defaultdict(list)
    for exchange in inside:
        if isinstance(exchange.outcome, Answer):
            by_length[exchange.outcome.completion_tokens].append(exchange.outcome.latency)
    return Point(
        window=window,
        answers=figures.answers,
        failed=figures.failed,
        tokens_per_second=figures.tokens / window.seconds,
        latencies=tuple((tokens, len(times), fmean(times)) for tokens, times in sorted(by_length.items())),
        replicas=_replicas(inside),
    )


def retention(row: MixRow, rows: Iterable[MixRow]) -> float | None:
    """Tokens per second over those at 0 % isolated; None where 0 % was not measured."""
    base = next((each.tokens_per_second for each in rows if each.window.percent == 0), 0.0)
    return row.tokens_per_second / base if base > 0 else None


def quantiles(values: Iterable[float]) -> Quantiles | None:
    """Median and 99th percentile by nearest rank; None of nothing."""
    ordered = sorted(values)
    if not ordered:
        return None
    middle, high = (ordered[max(math.ceil(level * len(ordered)) - 1, 0)] for level in (_MIDDLE, _HIGH))
    return Quantiles(middle, high, len(ordered))


def _class(window: Window, exchanges: Sequence[Exchange]) -> ClassFigures:
    inside = [exchange.outcome for exchange in exchanges if window.holds(exchange.ended)]
    answers = [outcome for outcome in inside if isinstance(outcome, Answer)]
    tokens = sum(
        exchange.outcome.completion_tokens * window.share(exchange.ran)
        for exchange in exchanges
        if isinstance(exchange.outcome, Answer)
    )
    return ClassFigures(
        answers=len(answers),
        failed=len(inside) - len(answers),
        tokens=tokens,
        waits=quantiles(answer.admission_wait for answer in answers if answer.admission_wait is not None),
        latencies=quantiles(answer.latency for answer in answers),
    )


def _exclusive_share(window: Window, isolated: Sequence[Exchange], replicas: int) -> float | None:
    answers = [exchange.outcome for exchange in isolated if isinstance(exchange.outcome, Answer)]
    if not replicas or any(answer.admission_wait is None for answer in answers):
        return None
    # A failure ran for no time.
    spans = [exchange.ran for exchange in isolated]
    return sum(window.share(span) * (span[1] - span[0]) for span in spans) / (window.seconds * replicas)


def _replicas(exchanges: Iterable[Exchange]) -> tuple[str, ...]:
    return tuple(sorted({exchange.replica for exchange in exchanges if exchange.replica is not None}))
