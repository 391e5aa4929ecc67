"""The report as one JSON document. Durations are in seconds, differences in nats, unknown figures null. Pure."""

from typing import Any, Final

from app.determinism.statistics import CONFIDENCE, clopper_pearson_upper
from app.diagnose.cure import Cure, untried
from app.diagnose.findings import Count, Finding
from app.diagnose.report import TITLES, Report, doubts, summary
from app.diagnose.rungs import Rung

FORMAT: Final = "reprise-diagnose/1"


def to_document(report: Report, exit_code: int) -> dict[str, Any]:
    """What ``--json`` prints. The API key is not in it."""
    deployment, course, forks = report.deployment, report.course, report.verdict.forks
    return {
        "format": FORMAT,
        "url": deployment.url,
        "model": deployment.model,
        "deployment": {
            "gateway": deployment.gateway,
            "alone_proven": deployment.alone_proven,
            "posture": deployment.posture,
            "context_tokens": deployment.context,
            "seconds_per_token": deployment.token_seconds,
            "logprobs": deployment.logprobs,
            "token_ids": deployment.exact,
        },
        "settings": {
            "prompts": list(deployment.prompts),
            "tokens": course.tokens,
            "batch_sizes": list(course.extent.sizes),
            "temperature": report.investigation.temperature,
            "seed": report.investigation.seed,
            "replicas": list(report.investigation.replicas),
            "budget_seconds": report.investigation.budget,
        },
        "seconds": report.seconds,
        "diverged": report.verdict.diverged,
        "layers": list(summary(report.verdict)),
        "findings": [_finding(finding) for finding in report.verdict.findings],
        "rungs": {rung.value: _rung(report, rung) for rung in Rung},
        "forks": {
            "noise_nats": forks.noise,
            "tie_limit_nats": forks.limit,
            "tokens": forks.tokens,
            "tokens_within_limit": forks.exposed,
            "list": [
                {"prompt": fork.prompt, "token": fork.token, "margin_nats": fork.margin, "kind": forks.closeness(fork)}
                for fork in forks.forks
            ],
        },
        "modes": [_mode(cure) for cure in report.cures],
        "advice": {
            "sentences": list(report.advice.sentences),
            "mode": report.advice.mode,
            "header": dict(report.advice.header),
            "body": dict(report.advice.body),
        },
        "notes": list(doubts(report)),
        "interrupted": report.interrupted,
        "exit_code": exit_code,
    }


def _finding(finding: Finding) -> dict[str, Any]:
    found = finding.attribution
    return {
        "layer": finding.layer.value,
        "suspect": finding.suspect.value,
        "title": TITLES[finding.suspect],
        "state": finding.state.value,
        "reason": finding.reason,
        "tokens": _count(finding.tokens),
        "logprobs": _count(finding.bits),
        "largest_difference_nats": finding.delta,
        "p": None if found is None else found.p,
        "p_attainable": None if found is None else found.attainable,
    }


def _count(count: Count) -> dict[str, Any]:
    below = clopper_pearson_upper(count.k, count.n) if count.n else None
    return {"k": count.k, "n": count.n, "below": below, "confidence": CONFIDENCE}


def _rung(report: Report, rung: Rung) -> dict[str, Any]:
    record = report.evidence.records.get(rung)
    if record is None:
        return {"rounds": 0, "tokens": None, "requests": 0, "seconds": 0.0, "reason": report.evidence.missing.get(rung)}
    return {
        "rounds": record.rounds,
        "tokens": record.tokens,
        "requests": record.requests,
        "seconds": record.seconds,
        "reason": record.reason,
        "without_answer": list(record.troubles),
    }


def _mode(cure: Cure) -> dict[str, Any]:
    wait = cure.row.wait
    return {
        "mode": cure.mode.value,
        "diverged": _count(Count(cure.row.diverged, cure.row.compared)),
        "tokens_per_second": cure.tokens_per_second if cure.measured else None,
        "added_wait_seconds": None if wait is None else {"median": wait.median, "p95": wait.high},
        "reason": untried(cure),
    }
