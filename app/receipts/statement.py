"""From a finished request to its receipt: what is known is stated, and what is not is said to be unknown."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from app import __version__
from app.determinism.mode import Mitigation
from app.receipts.document import (
    FORMAT,
    LARGEST_INTEGER,
    Admission,
    Count,
    Interval,
    Microseconds,
    MitigationStatus,
    Receipt,
    Time,
    VerificationCounts,
)
from app.receipts.store import Finished, Kept
from app.verification.report import Report

_UNANSWERED = "the request ended before a replica had answered it"


class _Admission(BaseModel):
    """One line of the guard's interval log. A newer guard may say more."""

    model_config = ConfigDict(strict=True)

    epoch: str
    sequence: Count
    request: str | None
    admission: Admission
    asked_us: Microseconds
    granted_us: Microseconds
    started_us: Microseconds | None
    ended_us: Microseconds | None
    peak: Count


class _IntervalLog(BaseModel):
    """What the guard answers at ``/reprise/admissions``. ``started`` is when its clock read 0."""

    model_config = ConfigDict(strict=True)

    epoch: str
    started: Time
    kept: Count
    admissions: list[_Admission]


def asks_guard(finished: Finished) -> bool:
    """Whether the intervals of a request are in its replica's guard."""
    return bool(finished.replica) and finished.gate is None and finished.verification is None


def receipt(kept: Kept, log: Mapping[str, Any] | None) -> Receipt:
    """The receipt of a finished request.

    ``log`` is what the replica's guard answered about the request, None where it was not asked or did not answer. It
    comes from another process: one that makes no sense is said to make none, and changes nothing else.
    """
    finished = kept.finished
    plan, sampling = finished.plan, finished.sampling
    intervals, source, reason, clock_started = _intervals(finished, log)
    return Receipt.model_validate(
        {
            "format": FORMAT,
            "gateway_version": __version__,
            "request_id": finished.request_id,
            "finished": _utc(kept.at),
            "path": finished.path,
            "model": _text(plan.model),
            "mode": str(plan.mode),
            "mitigations": _mitigations(finished),
            "admission": str(finished.admission) or None,
            "temperature_requested": _temperature(sampling.requested_temperature),
            "temperature_effective": _temperature(sampling.effective_temperature),
            "seed": None if sampling.seed is None else str(sampling.seed),
            "replica": _text(finished.replica or None),
            "posture": _text(finished.posture or None),
            "outcome": str(finished.outcome),
            "status": finished.status or None,
            "coresident_peak": _count(finished.peak),
            "waited_us": _microseconds(finished.waited),
            "output": finished.output,
            "cohort_key": finished.cohort_key,
            "verification": _verification(finished.verification),
            "intervals": intervals,
            "intervals_source": source,
            "intervals_reason": reason,
            "intervals_clock_started": clock_started,
        }
    )


def _mitigations(finished: Finished) -> tuple[MitigationStatus, ...]:
    """Those of the plan and those that were applied beyond it, in the order of the vocabulary."""
    named = finished.plan.mitigations.union(finished.applied)
    return tuple(
        MitigationStatus(mitigation=mitigation.value, status="applied", reason=None)
        if mitigation in finished.applied
        else MitigationStatus(
            mitigation=mitigation.value,
            status="unavailable",
            reason=_text(finished.missing.get(mitigation)) or _UNANSWERED,
        )
        for mitigation in Mitigation
        if mitigation in named
    )


def _verification(report: Report | None) -> VerificationCounts | None:
    if report is None:
        return None
    return VerificationCounts.model_validate(
        {
            "window": report.window,
            "grid": str(report.grid),
            "passes": report.passes,
            "rollbacks": report.rollbacks,
            "drafted": report.drafted,
            "accepted": report.accepted,
            "decided": report.decided,
            "verifier_us": _microseconds(report.verifier_seconds),
            "first_window_us": None if report.first_window is None else _microseconds(report.first_window),
        }
    )


def _intervals(
    finished: Finished, log: Mapping[str, Any] | None
) -> tuple[tuple[Interval, ...], str, str | None, str | None]:
    """The intervals, whose they are, why there are none, and when their clock started."""
    if finished.replica and finished.gate is not None:
        return (_by_gateway(finished),), "gateway", None, None
    if log is None or not asks_guard(finished):
        return (), "none", _unasked(finished), None
    try:
        said = _IntervalLog.model_validate(log)
        ours = tuple(_by_guard(line) for line in said.admissions if line.request == finished.request_id)
    except ValidationError:
        return (), "none", "the replica's guard gave an answer that makes no sense", None
    if not ours:
        reason = f"the replica's guard does not know the request: its log holds the last {said.kept} and ends with it"
        return (), "none", reason, None
    return ours, "guard", None, said.started


def _unasked(finished: Finished) -> str:
    """Why there is no answer of a guard."""
    if finished.verification is not None:
        # The guard's log holds an interval for each pass, and an answer may have thousands of them.
        return f"each pass of a verified answer was a request of its own: {finished.request_id}.v1 and on"
    return "the replica's guard could not be asked" if finished.replica else "no replica was leased for the request"


def _by_gateway(finished: Finished) -> Interval:
    """The lease by the gateway's own gate. When the engine's server took the request is not known here."""
    assert finished.gate is not None  # noqa: S101 - the caller asked
    return Interval.model_validate(
        {
            "epoch": None,
            "sequence": None,
            "admission": str(finished.admission),
            "asked_us": finished.gate.asked,
            "granted_us": finished.gate.granted,
            "started_us": None,
            "ended_us": finished.gate.ended,
            "peak": _count(finished.peak),
        }
    )


def _by_guard(line: _Admission) -> Interval:
    return Interval.model_validate({**line.model_dump(exclude={"request"}), "epoch": _text(line.epoch)})


def _utc(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def _temperature(value: float | None) -> str:
    """As short as it can be without losing a bit; None is where the engine's own default rules."""
    return "engine-default" if value is None else repr(float(value)).removesuffix(".0")


def _microseconds(seconds: float) -> int:
    """Whole microseconds within the document's bounds. The order of max's arguments makes 0 of what is no number."""
    return round(min(max(0.0, seconds) * 1e6, LARGEST_INTEGER))


def _count(value: int | None) -> int | None:
    """A count as its replica told it, None for one that no engine can reach."""
    return value if value is not None and value <= LARGEST_INTEGER else None


def _text(value: str | None) -> str | None:
    """A text that has bytes: JSON from elsewhere can carry half a surrogate pair, which has none."""
    return None if value is None else value.encode("utf-8", "replace").decode()
