"""The report as one JSON document. Rates are per second, durations in seconds, unknown figures null. Pure."""

from typing import Any, Final

from app.determinism.mode import DETERMINISTIC_MODES
from app.determinism.statistics import CONFIDENCE, clopper_pearson_upper, rate_text
from app.probe.report import Report, notes
from app.probe.tally import Row, Spread

FORMAT: Final = "reprise-probe/1"


def to_document(report: Report) -> dict[str, Any]:
    """What ``--json`` prints. The API key is not in it."""
    experiment = report.experiment
    return {
        "format": FORMAT,
        "url": experiment.url,
        "model": report.model,
        "settings": {
            "prompts": list(experiment.prompts),
            "repeats": experiment.repeats,
            "tokens": experiment.tokens,
            "temperature": experiment.temperature,
            "seed": experiment.seed,
            "together": experiment.together,
            "concurrency": experiment.concurrency,
            "load": experiment.load,
        },
        "modes": [_mode(row) for row in report.rows],
        "load": {"requests": report.load_requests, "failed": report.load_failures, "reason": report.load_failure},
        "notes": list(notes(report)),
        "interrupted": report.interrupted,
        "exit_code": report.exit_code,
    }


def _mode(row: Row) -> dict[str, Any]:
    return {
        "mode": row.mode.value,
        "deterministic": row.mode in DETERMINISTIC_MODES,
        "status": row.status.value,
        "reason": row.reason,
        "confirmed": row.confirmed,
        "repeats": {"asked": row.asked, "compared": row.compared, "failed": row.failed},
        "diverged": {
            "k": row.diverged,
            "n": row.compared,
            "below": clopper_pearson_upper(row.diverged, row.compared) if row.compared else None,
            "confidence": CONFIDENCE,
            "text": rate_text(row.diverged, row.compared),
        },
        "distinct_outputs": list(row.distinct),
        "fork_tokens": {"first": row.fork, "median": row.fork_median},
        "coresident_peak": {"max": row.peak, "known": row.peaks_known, "answers": row.answers},
        "tokens_per_second": {"probed": row.tokens_per_second, "background": row.background_per_second},
        "latency_seconds": _spread(row.latency),
        "added_wait_seconds": None
        if row.wait is None or row.wait_source is None
        else {"source": row.wait_source.value, "median": row.wait.median, "p95": row.wait.high},
    }


def _spread(spread: Spread | None) -> dict[str, float] | None:
    return None if spread is None else {"median": spread.median, "p95": spread.high}
