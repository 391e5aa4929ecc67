"""The comparisons so far, put together for people: counts by model, mode and origin, each rate with its bound."""

from collections import defaultdict
from dataclasses import dataclass

from app.determinism.divergence import Verdict
from app.determinism.statistics import clopper_pearson_upper, rate_text
from app.observation.history import Counts
from app.observation.metrics import Metrics


@dataclass(frozen=True, slots=True)
class ModeSummary:
    """What was compared of one model, mode and origin since the gateway started.

    ``upper_bound`` is the exact one-sided 95 % bound of the divergence rate (Clopper and Pearson), ``sentence`` says it
    in words. ``causes`` and ``margins`` count divergences.
    """

    model: str
    mode: str
    origin: str
    matched: int
    diverged: int
    incomparable: int
    upper_bound: float
    sentence: str
    causes: dict[str, int]
    margins: dict[str, int]
    pairs: int
    pairs_equal: int


@dataclass(frozen=True, slots=True)
class Histogram:
    """Counts by upper bound of the bucket, each bucket for itself; None is the last one, without a bound."""

    buckets: list[tuple[float | None, int]]
    total: int


def modes(metrics: Metrics) -> list[ModeSummary]:
    """Everything of which anything was compared."""
    verdicts = _grouped(metrics, "comparisons", "verdict")
    causes = _grouped(metrics, "divergences", "cause")
    margins = _grouped(metrics, "divergence_margins", "margin")
    pairs = _grouped(metrics, "pairs", None)
    equal = _grouped(metrics, "pairs_equal", None)
    found = []
    for key in sorted(verdicts):
        counted = verdicts[key]
        if not any(counted.values()):
            continue
        diverged, compared = counted[Verdict.DIVERGED], counted[Verdict.DIVERGED] + counted[Verdict.MATCH]
        found.append(
            ModeSummary(
                *key,
                matched=counted[Verdict.MATCH],
                diverged=diverged,
                incomparable=counted[Verdict.INCOMPARABLE],
                upper_bound=clopper_pearson_upper(diverged, compared),
                sentence=rate_text(diverged, compared),
                causes=dict(causes[key]),
                margins=dict(margins[key]),
                pairs=pairs[key][""],
                pairs_equal=equal[key][""],
            )
        )
    return found


def compared(metrics: Metrics) -> Counts:
    """How much was compared since the gateway started, and what of it diverged; only what is not 0."""
    found: Counts = {}
    for key, counted in _grouped(metrics, "comparisons", "verdict").items():
        diverged = counted[Verdict.DIVERGED]
        if diverged or counted[Verdict.MATCH]:
            found[key] = (diverged + counted[Verdict.MATCH], diverged)
    return found


def histogram(metrics: Metrics, name: str) -> dict[str, Histogram]:
    """A histogram of the page, by its first label ("" where it has none)."""
    bounds: dict[str, list[tuple[float, int]]] = defaultdict(list)
    for sample in metrics.samples(name):
        if sample.name.endswith("_bucket"):
            label = next((value for key, value in sample.labels.items() if key != "le"), "")
            bounds[label].append((float(sample.labels["le"]), int(sample.value)))
    found = {}
    for label, cumulative in bounds.items():
        ordered = sorted(cumulative)
        counts = [count - before for (_, count), (_, before) in zip(ordered, [(0.0, 0), *ordered], strict=False)]
        edges = [None if bound == float("inf") else bound for bound, _ in ordered]
        found[label] = Histogram(list(zip(edges, counts, strict=True)), ordered[-1][1])
    return found


def _grouped(metrics: Metrics, name: str, label: str | None) -> dict[tuple[str, str, str], dict[str, int]]:
    found: dict[tuple[str, str, str], dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for sample in metrics.samples(name):
        labels = sample.labels
        key = (labels["model"], labels["mode"], labels["origin"])
        found[key][labels[label] if label is not None else ""] += int(sample.value)
    return found
