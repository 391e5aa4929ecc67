"""The instruments of verified decoding."""

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram

from app.verification.report import Report

TOKEN_KINDS: Final = ("drafted", "accepted", "decided")
_SECONDS: Final = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)


class VerificationMetrics:
    """What verified answers took, in all; an answer that was broken off counts with what it had."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._passes = Counter(
            "reprise_verification_passes_total", "Passes of verifiers over tokens of answers.", registry=registry
        )
        self._rollbacks = Counter(
            "reprise_verification_rollbacks_total",
            "Passes that refuted a draft, so that the rest of it was thrown away.",
            registry=registry,
        )
        tokens = Counter(
            "reprise_verification_tokens_total",
            "Tokens of verified answers: drafted, accepted of those by the verifier, and decided in all.",
            ("kind",),
            registry=registry,
        )
        self._tokens = {kind: tokens.labels(kind) for kind in TOKEN_KINDS}
        self._seconds = Counter(
            "reprise_verification_seconds_total",
            "Time that passes took on the verifiers, waits not included.",
            registry=registry,
        )
        self._first_window = Histogram(
            "reprise_verification_first_window_seconds",
            "From the plan of a verified request to its first decided tokens.",
            registry=registry,
            buckets=_SECONDS,
        )

    def count(self, report: Report) -> None:
        """Count one answer."""
        self._passes.inc(report.passes)
        self._rollbacks.inc(report.rollbacks)
        for kind, tokens in zip(TOKEN_KINDS, (report.drafted, report.accepted, report.decided), strict=True):
            self._tokens[kind].inc(tokens)
        self._seconds.inc(report.verifier_seconds)
        if report.first_window is not None:
            self._first_window.observe(report.first_window)
