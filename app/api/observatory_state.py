"""``/observatory/api/state``: the figures that the page begins with, put together from the metrics.

Everything is counted since the process started, and what was compared lately besides, from the gateway's own history:
what the page says does not depend on when it was opened.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any, Final

from app.determinism.mode import DETERMINISTIC_MODES
from app.determinism.statistics import clopper_pearson_upper, rate_text
from app.measuring.schedule import Schedule
from app.observation.history import Recent
from app.observation.metrics import Metrics
from app.observation.store import Origin
from app.observation.summary import ModeSummary, histogram, modes

EVERY_ORIGIN: Final = "all"
"""The origin of the page's sums over clients, canaries and shadows."""


def told_counts(metrics: Metrics) -> dict[str, Any]:
    """What was compared, by mode and origin, and the deterministic modes together, each with its bound.

    Looks at thousands of samples, so it is not for the loop.
    """
    found = modes(metrics)
    crossed: dict[str, dict[str, int]] = {}
    for sample in metrics.samples("cross_comparisons"):
        crossed.setdefault(sample.labels["kind"], {})[sample.labels["verdict"]] = int(sample.value)
    (written,) = metrics.samples("ledger_written")
    return {
        "modes": [asdict(each) for each in (*found, *sums(found))],
        "deterministic": deterministic(found),
        "skipped": _by_reason(metrics, "comparisons_skipped"),
        "crossed": crossed,
        "fork_tokens": {label: asdict(found) for label, found in histogram(metrics, "fork_tokens").items()},
        "fork_margin_nats": asdict(histogram(metrics, "fork_margin_nats")[""]),
        "ledger": {"written": int(written.value), "dropped": _by_reason(metrics, "ledger_dropped")},
    }


def told_recent(recent: Recent) -> dict[str, Any]:
    """What was compared lately: for each origin, and for all, the sums and the steps ``[at, compared, diverged]``."""
    steps: dict[tuple[str, str, str], dict[float, tuple[int, int]]] = {}
    for (model, mode, origin), taken in recent.steps.items():
        for at, compared, diverged in taken:
            for counted in (origin, EVERY_ORIGIN):
                sofar = steps.setdefault((model, mode, counted), {})
                before = sofar.get(at, (0, 0))
                sofar[at] = (before[0] + compared, before[1] + diverged)
    return {
        "since": recent.since,
        "until": recent.until,
        "modes": [
            {
                "model": model,
                "mode": mode,
                "origin": origin,
                "compared": sum(compared for compared, _ in sofar.values()),
                "diverged": sum(diverged for _, diverged in sofar.values()),
                "steps": [(at, *counts) for at, counts in sorted(sofar.items())],
            }
            for (model, mode, origin), sofar in steps.items()
        ],
    }


def told_canaries(schedule: Schedule | None, now: float) -> dict[str, Any] | None:
    """Where the canaries are in their round, None where none are sent; ``now`` is in seconds since 1970.

    ``first_comparison`` is about when the first prompt comes a second time, None once it has: in that process nothing
    of a canary can be compared before, but with what the ledger kept of an earlier one.
    """
    if schedule is None:
        return None
    missing = schedule.round + 1 - schedule.turns
    return {
        "interval": schedule.interval,
        "round": schedule.round,
        "sent": schedule.turns,
        "first_comparison": now + missing * schedule.interval if missing > 0 else None,
    }


def deterministic(found: list[ModeSummary]) -> dict[str, dict[str, Any]]:
    """For each origin, and for all, what was compared in deterministic modes, with one bound for all of them."""
    told = {}
    for origin in (EVERY_ORIGIN, *Origin):
        rows = [each for each in found if each.mode in DETERMINISTIC_MODES and origin in (EVERY_ORIGIN, each.origin)]
        diverged = sum(each.diverged for each in rows)
        compared = diverged + sum(each.matched for each in rows)
        told[str(origin)] = {
            "compared": compared,
            "diverged": diverged,
            "upper_bound": clopper_pearson_upper(diverged, compared),
            "sentence": rate_text(diverged, compared),
        }
    return told


def sums(found: list[ModeSummary]) -> list[ModeSummary]:
    """For each model and mode the sum over its origins, with a bound of its own."""
    groups: dict[tuple[str, str], list[ModeSummary]] = {}
    for each in found:
        groups.setdefault((each.model, each.mode), []).append(each)
    summed = []
    for (model, mode), group in groups.items():
        matched, diverged = sum(each.matched for each in group), sum(each.diverged for each in group)
        summed.append(
            ModeSummary(
                model,
                mode,
                EVERY_ORIGIN,
                matched=matched,
                diverged=diverged,
                incomparable=sum(each.incomparable for each in group),
                upper_bound=clopper_pearson_upper(diverged, matched + diverged),
                sentence=rate_text(diverged, matched + diverged),
                causes=_added(each.causes for each in group),
                margins=_added(each.margins for each in group),
                pairs=sum(each.pairs for each in group),
                pairs_equal=sum(each.pairs_equal for each in group),
            )
        )
    return summed


def _by_reason(metrics: Metrics, name: str) -> dict[str, int]:
    return {sample.labels["reason"]: int(sample.value) for sample in metrics.samples(name) if sample.value}


def _added(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for each in counts:
        total.update(each)
    return dict(total)
