"""Finished requests, guards' logs and signed receipts for tests."""

import json
from typing import Any

from app.determinism.mode import MODE_MITIGATIONS, Mitigation, Mode
from app.determinism.plan import Plan
from app.determinism.sampling import Sampling
from app.receipts.signing import Signer
from app.receipts.statement import receipt
from app.receipts.store import Finished, GateTimes, Kept
from app.verification.report import Report

REQUEST_ID = "0123456789abcdef0123456789abcdef"
AT = 1_790_000_000.25
"""2026-09-21T14:13:20.250000Z."""
INSTALLATION_KEY = bytes(range(32))
STRANGERS_KEY = bytes(range(1, 33))
GATE = GateTimes(asked=1_000_000, granted=1_250_000, ended=3_000_000)
ISOLATED = tuple(mitigation for mitigation in Mitigation if mitigation in MODE_MITIGATIONS[Mode.ISOLATED])

VERIFIED = Report(
    window=128,
    grid="chain",
    passes=3,
    repeats=1,
    rollbacks=1,
    drafted=40,
    accepted=30,
    decided=48,
    verifier_seconds=1.2345678,
    first_window=0.5,
)


def finished(**changed: Any) -> Finished:
    """An isolated request that went well on a replica with the guard."""
    usual = Finished(
        request_id=REQUEST_ID,
        path="/v1/chat/completions",
        plan=Plan(Mode.ISOLATED, "smollm2", MODE_MITIGATIONS[Mode.ISOLATED]),
        sampling=Sampling(0.7, 0.7, 2**63 - 1),
        outcome="ok",
        status=200,
        applied=ISOLATED,
        missing={},
        admission="exclusive",
        replica="127.0.0.1:8001",
        posture="5f0c1e",
        peak=1,
        waited=0.25,
        output="ab" * 32,
        cohort_key="cd" * 32,
        gate=None,
    )
    return usual._replace(**changed)


def kept(**changed: Any) -> Kept:
    """The same, as it is kept."""
    return Kept(AT, finished(**changed))


def guards_log(**changed: Any) -> dict[str, Any]:
    """What the guard answers about the request; changes go to its one admission."""
    admission = {
        "sequence": 7,
        "request": REQUEST_ID,
        "admission": "exclusive",
        "asked_us": 1_000_000,
        "granted_us": 1_250_000,
        "started_us": 1_250_040,
        "ended_us": 3_000_000,
        "peak": 1,
        "epoch": "e-0011223344556677",
    }
    return {
        "epoch": "e-0011223344556677",
        "started": "2026-09-21T14:00:00.000001Z",
        "kept": 4096,
        "next": 8,
        "admissions": [admission | changed],
    }


def signed(*, key: bytes = INSTALLATION_KEY, **changed: Any) -> dict[str, Any]:
    """A signed receipt of the request with its interval, as JSON members."""
    made = Signer(key).sign(receipt(kept(**changed), guards_log()))
    document: dict[str, Any] = made.model_dump(mode="json")
    return document


def to_json(document: object) -> bytes:
    """Compact JSON."""
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()
