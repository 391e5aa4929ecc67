"""The receipt says what is known of a request, and says so where something is not."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app import __version__
from app.determinism.mode import MODE_MITIGATIONS, Mitigation, Mode
from app.determinism.plan import Plan
from app.determinism.sampling import Sampling
from app.receipts.document import LARGEST_INTEGER
from app.receipts.statement import asks_guard, receipt
from tests.unit.receipts.made import GATE, REQUEST_ID, VERIFIED, finished, guards_log, kept

HARDENED = Plan(Mode.HARDENED, "smollm2", MODE_MITIGATIONS[Mode.HARDENED])


def test_everything_that_is_known_is_stated() -> None:
    """Each fact of the request is in its member, times in whole microseconds, the seed with all its 64 bits."""
    stated = receipt(kept(), guards_log()).model_dump(mode="json")
    intervals = stated.pop("intervals")
    mitigations = stated.pop("mitigations")

    assert stated == {
        "format": "reprise-receipt/1",
        "gateway_version": __version__,
        "request_id": REQUEST_ID,
        "finished": "2026-09-21T14:13:20.250000Z",
        "path": "/v1/chat/completions",
        "model": "smollm2",
        "mode": "isolated",
        "admission": "exclusive",
        "temperature_requested": "0.7",
        "temperature_effective": "0.7",
        "seed": "9223372036854775807",
        "replica": "127.0.0.1:8001",
        "posture": "5f0c1e",
        "outcome": "ok",
        "status": 200,
        "coresident_peak": 1,
        "waited_us": 250_000,
        "output": "ab" * 32,
        "cohort_key": "cd" * 32,
        "verification": None,
        "intervals_source": "guard",
        "intervals_reason": None,
        "intervals_clock_started": "2026-09-21T14:00:00.000001Z",
    }
    assert mitigations == [
        {"mitigation": name, "status": "applied", "reason": None}
        for name in ("batch_isolation", "cache_bypass", "pinned_seed")
    ]
    said = guards_log()["admissions"][0]
    assert intervals == [{name: value for name, value in said.items() if name != "request"}]


def test_what_could_not_be_honoured_is_stated_with_its_reason() -> None:
    """Missing mitigations carry the replica's reason; what the replica added beyond the plan is applied."""
    applied = (Mitigation.BATCH_ISOLATION, Mitigation.CACHE_BYPASS, Mitigation.BATCH_INVARIANCE)
    missing = {Mitigation.EAGER: "compiled"}
    stated = receipt(kept(plan=HARDENED, applied=applied, missing=missing), guards_log())
    found = {one.mitigation: (one.status, one.reason) for one in stated.mitigations}

    assert list(found) == [name for name in Mitigation if name in HARDENED.mitigations | set(applied)]
    assert found["batch_isolation"] == found["batch_invariance"] == ("applied", None)
    assert found["eager"] == ("unavailable", "compiled")
    assert found["fixed_kv_split"] == ("unavailable", "the request ended before a replica had answered it")


def test_a_request_without_a_replica_claims_nothing() -> None:
    """Refused or left before the lease: no replica, no admission, no interval, nothing applied, and no status."""
    stated = receipt(
        kept(replica="", posture="", admission="", applied=(), peak=None, status=0, output=None, cohort_key=None), None
    )
    unknown = ("replica", "posture", "admission", "coresident_peak", "status", "output", "cohort_key")
    assert {name: getattr(stated, name) for name in unknown} == dict.fromkeys(unknown)
    assert {one.status for one in stated.mitigations} == {"unavailable"}
    assert (stated.intervals, stated.intervals_source) == ((), "none")
    assert stated.intervals_reason == "no replica was leased for the request"
    assert not asks_guard(finished(replica="", gate=None))


def test_what_a_verified_answer_took_is_stated() -> None:
    """In whole microseconds; its passes have intervals of their own, so none of the guard's is asked for."""
    took = finished(verification=VERIFIED)
    stated = receipt(kept(verification=VERIFIED), guards_log())
    assert stated.verification is not None
    assert stated.verification.model_dump() == {
        "window": 128,
        "grid": "chain",
        "passes": 3,
        "rollbacks": 1,
        "drafted": 40,
        "accepted": 30,
        "decided": 48,
        "verifier_us": 1_234_568,
        "first_window_us": 500_000,
    }
    assert (stated.intervals, stated.intervals_source) == ((), "none")
    assert f"{REQUEST_ID}.v1 and on" in (stated.intervals_reason or "")
    assert not asks_guard(took)


def test_an_answer_that_was_never_decided_has_no_first_window() -> None:
    """Null, and not 0."""
    stated = receipt(kept(verification=replace(VERIFIED, first_window=None)), None).verification
    assert stated is not None
    assert stated.first_window_us is None


def test_without_a_guard_the_gateways_own_gate_is_the_source() -> None:
    """The interval says asked, granted and ended by the gateway's clock, and not when the engine began."""
    stated = receipt(kept(gate=GATE, peak=3, admission="shared"), None)
    (interval,) = stated.intervals

    assert (stated.intervals_source, stated.intervals_reason, stated.intervals_clock_started) == ("gateway", None, None)
    assert (interval.asked_us, interval.granted_us, interval.ended_us) == GATE
    assert (interval.admission, interval.peak) == ("shared", 3)
    assert (interval.epoch, interval.sequence, interval.started_us) == (None, None, None)
    assert asks_guard(finished())
    assert not asks_guard(finished(gate=GATE))


def test_a_request_that_still_runs_in_the_engine_has_an_open_interval() -> None:
    """The client may be gone before the engine's server has let go; the receipt does not invent an end."""
    (interval,) = receipt(kept(), guards_log(ended_us=None, started_us=None)).intervals
    assert (interval.started_us, interval.ended_us) == (None, None)


def test_a_guard_that_cannot_be_asked_is_said() -> None:
    """No answer: no intervals, with that reason, and the rest of the receipt stands."""
    stated = receipt(kept(), None)
    assert (stated.intervals, stated.intervals_source) == ((), "none")
    assert stated.intervals_reason == "the replica's guard could not be asked"
    assert stated.coresident_peak == 1


@pytest.mark.parametrize("lines", [[], [guards_log(request="f" * 32)["admissions"][0]]])
def test_a_guard_that_does_not_know_the_request_is_said(lines: list[Any]) -> None:
    """Its log went past the request, or ended with its process: nobody else's interval stands in."""
    stated = receipt(kept(), guards_log() | {"admissions": lines})
    assert (stated.intervals, stated.intervals_source, stated.intervals_clock_started) == ((), "none", None)
    assert stated.intervals_reason is not None
    assert "does not know the request: its log holds the last 4096" in stated.intervals_reason


@pytest.mark.parametrize(
    "log",
    [
        {},
        {"detail": "Not Found"},
        guards_log() | {"admissions": None},
        guards_log() | {"admissions": ["x"]},
        guards_log() | {"started": "yesterday"},
        guards_log(asked_us=1.5),
        guards_log(ended_us=-1),
        guards_log(peak=True),
        guards_log(admission="both"),
        guards_log(granted_us=2**53),
        guards_log(sequence="7"),
    ],
)
def test_a_guards_answer_that_makes_no_sense_changes_nothing_else(log: dict[str, Any]) -> None:
    """Whatever the other process sends, there is a receipt, and it has no interval that was made up."""
    stated = receipt(kept(), log)
    assert (stated.intervals, stated.intervals_source) == ((), "none")
    assert stated.intervals_reason == "the replica's guard gave an answer that makes no sense"


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "engine-default"), (0, "0"), (0.0, "0"), (1.0, "1"), (1e-5, "1e-05"), (0.1 + 0.2, "0.30000000000000004")],
)
def test_a_temperature_keeps_every_bit(value: float | None, text: str) -> None:
    """A text that reads back to the same number."""
    stated = receipt(kept(sampling=Sampling(value, value, None)), None)
    assert (stated.temperature_requested, stated.temperature_effective, stated.seed) == (text, text, None)


@given(waited=st.floats(), peak=st.integers(min_value=0), text=st.text(st.characters(codec=None), min_size=1))
def test_no_figure_of_a_replica_keeps_a_receipt_from_being_made(waited: float, peak: int, text: str) -> None:
    """Waits and counts that no engine can reach, and texts that no UTF-8 can carry, do not break the document."""
    plan = Plan(Mode.ISOLATED, text, MODE_MITIGATIONS[Mode.ISOLATED])
    missing = dict.fromkeys(plan.mitigations, text)
    stated = receipt(
        kept(plan=plan, replica=text, posture=text, missing=missing, applied=(), waited=waited, peak=peak), None
    )
    assert stated.waited_us == (round(min(waited * 1e6, LARGEST_INTEGER)) if waited > 0 else 0)
    assert stated.coresident_peak == (peak if peak <= LARGEST_INTEGER else None)
    assert stated.model is not None
    assert stated.model.encode().decode() == stated.replica == stated.posture == stated.mitigations[0].reason
