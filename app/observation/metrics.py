"""Every Prometheus instrument of the gateway, in one class, on a registry that is handed in.

Rates are left to PromQL: everything that is counted is a counter, and every label set exists at 0 from the start, so
that ``increase()`` sees the first divergence too. Labels are bounded: a model that the configuration does not name is
"other", and so is any reason or outcome that is not listed here. The children that a request needs are bound once per
model and mode. What the gateway sends on its own account (canaries, shadows) is kept apart: it is in no figure of
clients' requests, and the comparisons of its answers are labelled.

One process serves, so one registry knows everything; a gateway with several workers would be several gateways behind
one port, of which a scrape sees one at random.
"""

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, disable_created_metrics
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from app.determinism.divergence import Closeness, Verdict
from app.determinism.mode import Mode
from app.observation.labels import Cause, Cross, Drop, Outcome
from app.observation.store import Origin, Skip, StoreSize
from app.observation.verification import VerificationMetrics
from app.upstream.replica import GateView

OTHER_MODEL: Final = "other"
UNKNOWN: Final = "unknown"
ADMISSIONS: Final = ("shared", "exclusive")
_GATE_PHASES: Final = ("exclusive", "drain")
SIMILARITIES: Final = ("prefix", "edit", "semantic")
"""``prefix``: the share of the longer answer that both have in common before the fork. ``edit``: the edit similarity.
``semantic``: the cosine of two embeddings, where the operator asked for it; advice, and never a verdict."""

_OURS: Final = (Origin.CANARY, Origin.SHADOW)

_LONGEST_LABEL: Final = 128


_GAPS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)
_SECONDS: Final = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
_FORKS: Final = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 4096.0, 16384.0)
# bfloat16 logits between 16 and 32 lie 0.125 apart, so steps of that size tell a tie from a fault.
_NATS: Final = (0.0, 1e-4, 1e-3, 0.01, 0.0625, 0.125, 0.25, 0.5, 1.0, 2.0, 5.0)
_RATIOS: Final = (0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 1.0)
_DELTAS: Final = (0.0, 1e-6, 1e-5, 1e-4, 1e-3, 0.01, 0.0625, 0.125, 0.25, 0.5, 1.0)
_OUTPUTS: Final = (1.0, 2.0, 3.0, 4.0, 6.0, 9.0, 16.0, 32.0, 64.0)
_REQUESTS: Final = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0)


@dataclass(frozen=True, slots=True)
class BoundMetrics:
    """The instruments of one model and mode, ready to use."""

    requests: Mapping[str, Counter]
    time_to_first_token: Histogram
    inter_token: Histogram
    request_seconds: Histogram
    output_tokens: Counter
    coresident_peak: Histogram
    fork_tokens: Histogram
    distinct_outputs: Histogram
    compared: Mapping[Origin, "BoundComparisons"]


@dataclass(frozen=True, slots=True)
class BoundComparisons:
    """What was compared of one model, mode and origin."""

    comparisons: Mapping[str, Counter]
    divergences: Mapping[str, Counter]
    closeness: Mapping[str, Counter]
    pairs: Counter
    pairs_equal: Counter


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
        self._seen: list[float] | None = None

    def show(self, gate: GateView) -> None:
        """Take over what a probe saw. What the gate had counted before the first one is nothing that went on here."""
        for admission, count in zip(ADMISSIONS, (gate.waiting_shared, gate.waiting_exclusive), strict=True):
            self._waiting[admission].set(count)
        now = [gate.exclusive_seconds, gate.drain_seconds, float(gate.exclusive_admissions)]
        for counter, before, total in zip(self._totals, self._seen or now, now, strict=True):
            counter.inc(total - before if total >= before else total)
        self._seen = now


class Metrics:
    """The instruments. Thread-safe; memory grows with declared models and replicas, never with requests."""

    def __init__(self, registry: CollectorRegistry) -> None:
        # Creation times would double the page, and nothing that reads ours uses them. The switch is the library's own.
        disable_created_metrics()  # type: ignore[no-untyped-call]  # prometheus_client leaves it without annotations
        self._registry = registry
        self._families: dict[str, Counter | Histogram] = {}
        by_mode, by_origin = ("model", "mode"), ("model", "mode", "origin")
        self._requests = self._counter("requests_total", "Requests, by how they ended.", *by_mode, "outcome")
        self._comparisons = self._counter(
            "comparisons_total",
            "Answers compared with the reference of their cohort; incomparable ones are explained by the skip reasons.",
            *by_origin,
            "verdict",
        )
        self._divergences = self._counter(
            "divergences_total", "Diverged answers, by the first suspect that holds.", *by_origin, "cause"
        )
        self._closeness = self._counter(
            "divergence_margins_total",
            "Diverged answers, by how close the two likeliest tokens were at the fork: a tie is what rounding does; "
            "unknown without logprobs, and where not the likeliest is taken (sampling, penalties, grammars).",
            *by_origin,
            "margin",
        )
        self._pairs = self._counter(
            "pairs_total", "Pairs of repeats: each of a cohort's first 64 answers with all before it.", *by_origin
        )
        self._pairs_equal = self._counter("pairs_equal_total", "Pairs of repeats whose outputs were equal.", *by_origin)
        self._fork_tokens = self._histogram(
            "fork_tokens",
            "Tokens that a diverged answer shares with its reference before they fork, where the fork is known to the "
            "token; it is not where only the reference's block digests were left.",
            _FORKS,
            "mode",
        )
        self._distinct = self._histogram(
            "distinct_outputs", "Distinct outputs of a cohort so far, observed at each repeat.", _OUTPUTS, "mode"
        )
        self._peak = self._histogram(
            "coresident_peak", "Most requests on the engine while this one ran, itself included.", _REQUESTS, "mode"
        )
        self._first_token = self._histogram(
            "time_to_first_token_seconds", "From a request's arrival to its first streamed piece.", _SECONDS, *by_mode
        )
        self._inter_token = self._histogram(
            "inter_token_seconds", "Mean time between the pieces of a stream, one observation for each.", _GAPS, "mode"
        )
        self._seconds = self._histogram(
            "request_seconds", "From a request's arrival to the end of its answer.", _SECONDS, *by_mode
        )
        self._output_tokens = self._counter(
            "output_tokens_total",
            "Tokens that were generated, where the answer tells; else the events of it that brought content.",
            *by_mode,
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
        self._healthy = Gauge(
            "reprise_replica_healthy", "Whether a replica is in, by its probes.", ("replica",), registry=registry
        )
        self._gates: dict[str, _GateInstruments] = {}
        self._replica = Info("reprise_replica", "A replica and its observed posture.", ("replica",), registry=registry)

        self.fork_margin_nats = self._histogram(
            "fork_margin_nats",
            "Distance of the two likeliest tokens at the fork, the larger of both sides'; of answers that take the "
            "likeliest.",
            _NATS,
        )
        self.logprob_delta_nats = self._histogram(
            "logprob_delta_nats",
            "Largest difference of two repeats in the logprob of a token that they share; 0 is equal to the last bit.",
            _DELTAS,
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
        self._written = self._counter("ledger_written_total", "Observations that the ledger has.")
        self.ledger_up = Gauge("reprise_ledger_up", "Whether the ledger's store answers.", registry=registry)
        self._ledger_cohorts = Gauge("reprise_ledger_cohorts", "Cohorts that the ledger holds.", registry=registry)
        self._ledger_bytes = Gauge("reprise_ledger_bytes", "Bytes that the ledger holds.", registry=registry)
        self._ledger_answers = Gauge(
            "reprise_ledger_run_answers", "Answers of labelled runs that the ledger holds.", registry=registry
        )
        self.ledger_queue = Gauge(
            "reprise_ledger_queue_observations", "Observations that wait for the ledger.", registry=registry
        )
        own = self._counter(
            "canary_requests_total", "Requests that the gateway sent to measure, by how they ended.", "origin", "mode",
            "outcome",
        )  # fmt: skip
        self._own = {
            (origin, str(mode)): _children(own, Outcome, origin.value, str(mode))
            for origin in _OURS
            for mode in (*Mode, UNKNOWN)
        }
        self._shadows_dropped = self._counter("shadows_dropped_total", "Shadows that found too many of them waiting.")
        self._by_mode = {
            mode: (self._peak.labels(mode), self._fork_tokens.labels(mode), self._distinct.labels(mode),
                   self._inter_token.labels(mode))
            for mode in (*Mode, UNKNOWN)
        }  # fmt: skip
        self.verification = VerificationMetrics(registry)
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

    def requests(self, model: str, mode: str, origin: Origin) -> Mapping[str, Counter]:
        """The counters of requests by outcome. What the gateway sent itself is counted apart."""
        return self.of(model, mode).requests if origin is Origin.CLIENT else self._own[origin, mode]

    def shadow_dropped(self) -> None:
        """Count a shadow that was not sent."""
        self._shadows_dropped.inc()

    def written(self, count: int) -> None:
        """Count observations that are in the ledger."""
        self._written.inc(count)
        self.ledger_up.set(1)

    def ledger_holds(self, size: StoreSize) -> None:
        """Show how much the ledger holds; so it is there."""
        self.ledger_up.set(1)
        self._ledger_cohorts.set(size.cohorts)
        self._ledger_bytes.set(size.bytes)
        self._ledger_answers.set(size.run_answers)

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

    def observe_health(self, replica: str, *, healthy: bool) -> None:
        """Show whether a replica is in."""
        self._healthy.labels(replica).set(healthy)

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

    def samples(self, name: str) -> list[Sample]:
        """The samples of one family of the page, by its name without our prefix and without ``_total``.

        Takes up to a millisecond. Raises KeyError for what is no family.
        """
        return [sample for family in self._families[name].collect() for sample in family.samples]

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
        peak, fork_tokens, distinct, inter_token = self._by_mode[mode]
        # A canary or a shadow names a model that is served, so "other" needs no label sets for them.
        compared = {Origin.CLIENT: self._bind_compared(model, mode, Origin.CLIENT)}
        compared |= {
            origin: compared[Origin.CLIENT] if model == OTHER_MODEL else self._bind_compared(model, mode, origin)
            for origin in _OURS
        }
        return BoundMetrics(
            requests=_children(self._requests, Outcome, model, mode),
            time_to_first_token=self._first_token.labels(model, mode),
            inter_token=inter_token,
            request_seconds=self._seconds.labels(model, mode),
            output_tokens=self._output_tokens.labels(model, mode),
            coresident_peak=peak,
            fork_tokens=fork_tokens,
            distinct_outputs=distinct,
            compared=MappingProxyType(compared),
        )

    def _bind_compared(self, model: str, mode: str, origin: Origin) -> BoundComparisons:
        labels = (model, mode, origin.value)
        return BoundComparisons(
            comparisons=_children(self._comparisons, Verdict, *labels),
            divergences=_children(self._divergences, Cause, *labels),
            closeness=_children(self._closeness, Closeness, *labels),
            pairs=self._pairs.labels(*labels),
            pairs_equal=self._pairs_equal.labels(*labels),
        )

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        counter = Counter(f"reprise_{name}", text, labels, registry=self._registry)
        self._families[name.removesuffix("_total")] = counter
        return counter

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
        histogram = Histogram(f"reprise_{name}", text, labels, registry=self._registry, buckets=buckets)
        self._families[name] = histogram
        return histogram


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
