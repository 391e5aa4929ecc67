"""Every Prometheus instrument of the gateway, in one class, on a registry that is handed in.

Rates are left to PromQL: everything that is counted is a counter, and every label set exists at 0 from the start, so
that ``increase()`` sees the first divergence too. Labels are bounded: a model that the configuration does not name is
"other", and so is any reason or outcome that is not listed here. The children that a request needs are bound once per
model and mode.
"""

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, disable_created_metrics
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from app.determinism.divergence import Verdict
from app.determinism.mode import Mode
from app.observation.store import Skip
from app.upstream.replica import GateView

OTHER_MODEL: Final = "other"
UNKNOWN: Final = "unknown"
ADMISSIONS: Final = ("shared", "exclusive")
_GATE_PHASES: Final = ("exclusive", "drain")
SIMILARITIES: Final = ("prefix",)
"""``prefix``: the share of the longer answer that both have in common before the fork."""

_LONGEST_LABEL: Final = 128


class Outcome(StrEnum):
    """How a request ended, as counted in ``reprise_requests_total``."""

    OK = "ok"
    INVALID = "invalid"
    UNAVAILABLE = "unavailable"
    UPSTREAM_ERROR = "upstream_error"
    INCOMPLETE = "incomplete"
    CLIENT_CLOSED = "client_closed"
    OTHER = "other"


class Cause(StrEnum):
    """What is known to have differed between a diverged answer and its reference; a suspect, not a proof.

    One cause is counted, the first that holds in this order. Co-batching comes first because it alone makes most
    answers differ where it is present; a different cache state is next, known to change an answer on its own; another
    replica of the same posture should not matter, so it is suspected only when neither of these holds.
    """

    CO_BATCHED = "co_batched"
    CACHE_STATE = "cache_state"
    OTHER_REPLICA = "other_replica"
    UNEXPLAINED = "unexplained"


class Drop(StrEnum):
    """Why an observation did not reach the ledger."""

    QUEUE_FULL = "queue_full"
    STORE_ERROR = "store_error"
    STORE_UNAVAILABLE = "store_unavailable"
    INTERNAL_ERROR = "internal_error"
    SHUTDOWN = "shutdown"


class Cross(StrEnum):
    """What differs between two cohorts of one canonical request that are compared across."""

    MODE = "mode"
    POSTURE = "posture"


_SECONDS: Final = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
_FORKS: Final = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 4096.0, 16384.0)
# bfloat16 logits between 16 and 32 lie 0.125 apart, so steps of that size tell a tie from a fault.
_NATS: Final = (0.0, 1e-4, 1e-3, 0.01, 0.0625, 0.125, 0.25, 0.5, 1.0, 2.0, 5.0)
_RATIOS: Final = (0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 1.0)
_OUTPUTS: Final = (1.0, 2.0, 3.0, 4.0, 6.0, 9.0, 16.0, 32.0, 64.0)
_REQUESTS: Final = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0)


@dataclass(frozen=True, slots=True)
class BoundMetrics:
    """The instruments of one model and mode, ready to use."""

    requests: Mapping[str, Counter]
    time_to_first_token: Histogram
    request_seconds: Histogram
    coresident_peak: Histogram
    comparisons: Mapping[str, Counter]
    divergences: Mapping[str, Counter]
    pairs: Counter
    pairs_equal: Counter
    fork_tokens: Histogram
    distinct_outputs: Histogram


@dataclass(frozen=True, slots=True)
class LeaseGauges:
    """The leases of one replica, by admission."""

    shared: Gauge
    exclusive: Gauge


class _GateInstruments:
    """The figures of one replica's gate. Its totals begin anew when its engine does; ours go on."""

    def __init__(self, waiting: Mapping[str, Gauge], seconds: Mapping[str, Counter], admissions: Counter) -> None:
        self._waiting = waiting
        self._totals = (*(seconds[phase] for phase in _GATE_PHASES), admissions)
        self._seen = [0.0] * len(self._totals)

    def show(self, gate: GateView) -> None:
        """Take over what a probe saw."""
        for admission, count in zip(ADMISSIONS, (gate.waiting_shared, gate.waiting_exclusive), strict=True):
            self._waiting[admission].set(count)
        now = [gate.exclusive_seconds, gate.drain_seconds, float(gate.exclusive_admissions)]
        for counter, before, total in zip(self._totals, self._seen, now, strict=True):
            counter.inc(total - before if total >= before else total)
        self._seen = now


class Metrics:
    """The instruments. Thread-safe; memory grows with declared models and replicas, never with requests."""

    def __init__(self, registry: CollectorRegistry) -> None:
        # Creation times would double the page, and nothing that reads ours uses them. The switch is the library's own.
        disable_created_metrics()  # type: ignore[no-untyped-call]  # prometheus_client leaves it without annotations
        self._registry = registry
        by_mode = ("model", "mode")
        self._requests = self._counter("requests_total", "Requests, by how they ended.", *by_mode, "outcome")
        self._comparisons = self._counter(
            "comparisons_total",
            "Answers compared with the reference of their cohort; incomparable ones are explained by the skip reasons.",
            *by_mode,
            "verdict",
        )
        self._divergences = self._counter(
            "divergences_total", "Diverged answers, by the first suspect that holds.", *by_mode, "cause"
        )
        self._pairs = self._counter(
            "pairs_total", "Pairs of repeats: each of a cohort's first 64 answers with all before it.", *by_mode
        )
        self._pairs_equal = self._counter("pairs_equal_total", "Pairs of repeats whose outputs were equal.", *by_mode)
        self._fork_tokens = self._histogram(
            "fork_tokens",
            "Tokens that a diverged answer shares with its reference before they fork, where tokens are known; "
            "rounded down to blocks of 64 where only the reference's block digests were left.",
            _FORKS,
            *by_mode,
        )
        self._distinct = self._histogram(
            "distinct_outputs", "Distinct outputs of a cohort so far, observed at each repeat.", _OUTPUTS, *by_mode
        )
        self._peak = self._histogram(
            "coresident_peak", "Most requests on the engine while this one ran, itself included.", _REQUESTS, *by_mode
        )
        self._first_token = self._histogram(
            "time_to_first_token_seconds", "From a request's arrival to its first streamed piece.", _SECONDS, *by_mode
        )
        self._seconds = self._histogram(
            "request_seconds", "From a request's arrival to the end of its answer.", _SECONDS, *by_mode
        )
        self._leases = Gauge("reprise_leases", "Leases held now.", ("replica", "admission"), registry=registry)
        self._waiting = Gauge(
            "reprise_gate_waiting",
            "Requests that waited for a replica at its last probe, of all its clients.",
            ("replica", "admission"),
            registry=registry,
        )
        self._gate_seconds = self._counter(
            "gate_seconds_total",
            "Time of a replica's gate in exclusive phases, and in drains before them.",
            "replica",
            "phase",
        )
        self._gate_admissions = self._counter(
            "gate_exclusive_admissions_total", "Exclusive requests that a replica's gate admitted.", "replica"
        )
        self._gates: dict[str, _GateInstruments] = {}
        self._replica = Info("reprise_replica", "A replica and its observed posture.", ("replica",), registry=registry)

        self.fork_margin_nats = self._histogram(
            "fork_margin_nats", "Distance of the reference's two likeliest tokens at the fork, from logprobs.", _NATS
        )
        similarity = self._histogram(
            "similarity_ratio", "How much of a diverged answer equals its reference, by kind.", _RATIOS, "kind"
        )
        self.similarity = _children(similarity, SIMILARITIES)
        wait = self._histogram(
            "admission_wait_seconds", "From asking for a lease to getting it.", _SECONDS, "admission"
        )
        self.admission_wait = _children(wait, ADMISSIONS)
        skipped = self._counter("comparisons_skipped_total", "Answers compared to nothing, by reason.", "reason")
        self._skipped = _children(skipped, Skip)
        dropped = self._counter("ledger_dropped_total", "Observations that did not reach the ledger.", "reason")
        self._dropped = _children(dropped, Drop)
        cross = self._counter(
            "cross_comparisons_total",
            "Answers compared with the reference of the same request in another mode or on another posture.",
            "kind",
            "verdict",
        )
        self._crossed = {kind: _children(cross, (Verdict.MATCH, Verdict.DIVERGED), kind.value) for kind in Cross}
        self._bound: dict[tuple[str, str], BoundMetrics] = {}
        self.declare(OTHER_MODEL)
        self._bound[OTHER_MODEL, UNKNOWN] = self._bind(OTHER_MODEL, UNKNOWN)

    def declare(self, model: str) -> None:
        """Name a model that is served: its label sets begin at 0 in every mode. Known models are left as they are."""
        for mode in Mode:
            if (model, mode.value) not in self._bound:
                self._bound[model, mode.value] = self._bind(model, mode.value)

    def of(self, model: str, mode: str) -> BoundMetrics:
        """The instruments of a model and mode; those of "other" for a model that was never declared.

        The mode is "unknown" for requests that were refused before it was known. Raises KeyError for any other.
        """
        return self._bound.get((model, mode)) or self._bound[OTHER_MODEL, mode]

    def skipped(self, reason: str) -> None:
        """Count an answer that is compared to nothing."""
        self._skipped.get(reason, self._skipped[Skip.OTHER]).inc()

    def dropped(self, reason: Drop, count: int = 1) -> None:
        """Count observations that did not reach the ledger."""
        self._dropped[reason].inc(count)

    def crossed(self, kind: Cross, verdict: Verdict) -> None:
        """Count a comparison across modes or postures."""
        self._crossed[kind][verdict].inc()

    def leases(self, replica: str) -> LeaseGauges:
        """The lease gauges of a replica, from now on on the page."""
        return LeaseGauges(*(self._leases.labels(replica, admission) for admission in ADMISSIONS))

    def observe_replica(self, replica: str, facts: Mapping[str, object]) -> None:
        """Show a replica's posture as labels, in place of what was shown before; None stays "unknown"."""
        self._replica.labels(replica).info({name: _label(value) for name, value in facts.items() if name != "replica"})

    def observe_gate(self, replica: str, gate: GateView) -> None:
        """Show the gate of a guarded replica as the last probe saw it."""
        known = self._gates.get(replica)
        if known is None:
            known = self._gates[replica] = _GateInstruments(
                _children(self._waiting, ADMISSIONS, replica),
                _children(self._gate_seconds, _GATE_PHASES, replica),
                self._gate_admissions.labels(replica),
            )
        known.show(gate)

    def render(self, accept: str) -> tuple[bytes, str]:
        """The page and its content type: OpenMetrics where ``accept`` asks for it, else, whatever it says, text.

        Takes milliseconds, so it is not for the loop.
        """
        try:
            encode, content_type = choose_encoder(accept)
        except TypeError:
            # The library compares a version's parts with numbers, and a client may send any word as its version.
            encode, content_type = choose_encoder("")
        return encode(_Courteous(self._registry)), content_type

    def _bind(self, model: str, mode: str) -> BoundMetrics:
        return BoundMetrics(
            requests=_children(self._requests, Outcome, model, mode),
            time_to_first_token=self._first_token.labels(model, mode),
            request_seconds=self._seconds.labels(model, mode),
            coresident_peak=self._peak.labels(model, mode),
            comparisons=_children(self._comparisons, Verdict, model, mode),
            divergences=_children(self._divergences, Cause, model, mode),
            pairs=self._pairs.labels(model, mode),
            pairs_equal=self._pairs_equal.labels(model, mode),
            fork_tokens=self._fork_tokens.labels(model, mode),
            distinct_outputs=self._distinct.labels(model, mode),
        )

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"reprise_{name}", text, labels, registry=self._registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
        return Histogram(f"reprise_{name}", text, labels, registry=self._registry, buckets=buckets)


class _Courteous(Collector):
    """A registry that offers the interpreter to other threads between two families of the page."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def collect(self) -> Iterator[Metric]:
        for family in self._registry.collect():
            yield family
            time.sleep(0)  # noqa: TID251 - no wait: without it a scrape could hold up the event loop for 5 ms


_Instrument = TypeVar("_Instrument", Counter, Gauge, Histogram)


def _children(parent: _Instrument, values: Iterable[str], *labels: str) -> Mapping[str, _Instrument]:
    """The children of an instrument for each value of its last label, made now and so exported at 0."""
    return MappingProxyType({value: parent.labels(*labels, str(value)) for value in values})


def _label(value: object) -> str:
    if value is None:
        return UNKNOWN
    return (str(value).lower() if isinstance(value, bool) else str(value))[:_LONGEST_LABEL]
