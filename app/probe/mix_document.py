"""The run with mixed traffic as one JSON document, from which `app.simulation` reads. Pure.

Rates are per second, durations in seconds, shares from 0 to 1, unknown figures null.
"""

from typing import Any, Final

from app.probe.mix_figures import ClassFigures, MixRow, Point, Quantiles, retention
from app.probe.mix_report import MixReport, mix_notes

FORMAT: Final = "reprise-mix/1"


def to_mix_document(report: MixReport) -> dict[str, Any]:
    """What ``--mix --json`` prints. The API key is not in it."""
    plan = report.plan
    return {
        "format": FORMAT,
        "url": plan.url,
        "model": report.model,
        "settings": {
            "percentages": list(plan.percentages),
            "clients": plan.clients,
            "seconds": plan.seconds,
            "warmup": plan.warmup,
            "seed": plan.seed,
        },
        "calibration": [_point(point) for point in report.points],
        "sweep": [_row(row, report) for row in report.rows],
        "notes": list(mix_notes(report)),
        "lost": report.lost,
        "interrupted": report.interrupted,
        "exit_code": report.exit_code,
    }


def _point(point: Point) -> dict[str, Any]:
    return {
        "clients": point.window.clients,
        "seconds": point.window.seconds,
        "answers": point.answers,
        "failed": point.failed,
        "tokens_per_second": point.tokens_per_second,
        "latency_by_tokens": [
            {"tokens": tokens, "answers": answers, "mean_seconds": mean} for tokens, answers, mean in point.latencies
        ],
        "replicas": list(point.replicas),
    }


def _row(row: MixRow, report: MixReport) -> dict[str, Any]:
    return {
        "percent": row.window.percent,
        "seconds": row.window.seconds,
        "tokens_per_second": row.tokens_per_second,
        "retention": retention(row, report.rows),
        "exclusive_time_share": row.exclusive_share,
        "shared": _class(row.shared),
        "isolated": {**_class(row.isolated), "not_alone": row.not_alone, "unconfirmed": row.unconfirmed},
        "reason": row.reason,
        "replicas": list(row.replicas),
    }


def _class(figures: ClassFigures) -> dict[str, Any]:
    return {
        "answers": figures.answers,
        "failed": figures.failed,
        "tokens": figures.tokens,
        "wait_seconds": _quantiles(figures.waits),
        "latency_seconds": _quantiles(figures.latencies),
    }


def _quantiles(quantiles: Quantiles | None) -> dict[str, float] | None:
    return None if quantiles is None else {"p50": quantiles.p50, "p99": quantiles.p99, "known": quantiles.known}
