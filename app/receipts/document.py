"""The receipt as a document: its members, and the bytes that are signed.

Texts and integers only, so that every JSON reader holds the same values: times are whole microseconds, temperatures and
the seed (64 bits) are texts. That makes the signed bytes those of RFC 8785 (JSON Canonicalization Scheme), for which
many languages have a library: members sorted, no spaces, UTF-8, no escapes but the necessary ones. Before them goes
`DOMAIN`, so that a signature over a receipt can never be one over something else.

A format is closed: a document with a member more or less, or with another type, is not of this format. What has to
change gets a new one.
"""

import json
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

FORMAT: Final = "reprise-receipt/1"
DOMAIN: Final = FORMAT.encode() + b"\n"
ALGORITHM: Final = "ed25519"
LARGEST_INTEGER: Final = 2**53 - 1
"""The largest integer that a JSON reader with doubles holds (RFC 7493)."""

_D2: Final = "[0-9]{2}"
_TIME: Final = rf"^[0-9]{{4}}-{_D2}-{_D2}T{_D2}:{_D2}:{_D2}(\.[0-9]{{1,9}})?(Z|[+-]{_D2}:{_D2})$"

Count = Annotated[int, Field(ge=0, le=LARGEST_INTEGER)]
Microseconds = Annotated[int, Field(ge=0, le=LARGEST_INTEGER)]
Time = Annotated[str, Field(pattern=_TIME)]
Admission = Literal["shared", "exclusive"]


class _Member(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")


class MitigationStatus(_Member):
    """One mitigation of the plan, or one that the replica added, and what became of it."""

    mitigation: str = Field(examples=["batch_isolation"])
    status: Literal["applied", "unavailable"]
    reason: str | None = Field(description="Why it is unavailable; null where it was applied.")


class Interval(_Member):
    """One admission of the request, in microseconds of one monotonic clock; see ``intervals_clock_started``."""

    epoch: str | None = Field(description="The guard's process; its sequence numbers and its clock begin with it.")
    sequence: Count | None = Field(description="The place in the guard's log; null for the gateway's own gate.")
    admission: Admission
    asked_us: Microseconds = Field(description="The request asked for admission.")
    granted_us: Microseconds = Field(description="It was granted.")
    started_us: Microseconds | None = Field(description="The engine's server took the request; null where not known.")
    ended_us: Microseconds | None = Field(description="The engine's server let go of it; null while it has not.")
    peak: Count | None = Field(description="Co-resident peak over the interval, itself included; 1 = was alone.")


class VerificationCounts(_Member):
    """What it took to verify the answer, complete or not."""

    window: Count = Field(description="Tokens of a window, which is part of what was asked.")
    grid: Literal["chain", "prompt"] = Field(description="How the windows lie, and what a pass reads.")
    passes: Count = Field(description="Passes of the verifier.")
    rollbacks: Count = Field(description="Passes that refuted a draft.")
    drafted: Count = Field(description="Tokens that came from a drafter.")
    accepted: Count = Field(description="Those of them that the verifier chose too.")
    decided: Count = Field(description="Tokens of the answer, each decided by a pass.")
    verifier_us: Microseconds = Field(description="What the passes took on their engine, waits not included.")
    first_window_us: Microseconds | None = Field(description="From the plan to the first tokens; null where none came.")


class Receipt(_Member):
    """What was done for one finished request, as far as the gateway knows; null where it does not."""

    format: Literal["reprise-receipt/1"]
    gateway_version: str
    request_id: str = Field(description="The gateway's own id of the request.")
    finished: Time = Field(description="When its answer ended, UTC.")
    path: str = Field(examples=["/v1/chat/completions"])
    model: str | None
    mode: str = Field(examples=["isolated"])
    mitigations: tuple[MitigationStatus, ...]
    admission: Admission | None = Field(description="How it shared the engine; null where no replica was leased.")
    temperature_requested: str = Field(description="'engine-default' where the caller named none.")
    temperature_effective: str = Field(description="What took effect in the engine.")
    seed: str | None = Field(description="The seed that the engine got, in decimal; null where it got none.")
    replica: str | None
    posture: str | None = Field(description="The digest of the replica's observed posture.")
    outcome: str = Field(examples=["ok"])
    status: Count | None = Field(description="The HTTP status that the caller saw; null where none was sent.")
    coresident_peak: Count | None = Field(description="As the answer told it.")
    waited_us: Microseconds = Field(description="How long it waited for its lease, guard included.")
    output: str | None = Field(description="The digest of the output.")
    cohort_key: str | None = Field(description="What its repeats have in common; keyed by the installation.")
    verification: VerificationCounts | None = Field(description="Null for an answer that was not verified.")
    intervals: tuple[Interval, ...]
    intervals_source: Literal["guard", "gateway", "none"] = Field(description="Whose log the intervals come from.")
    intervals_reason: str | None = Field(description="Why there are no intervals; null where there are.")
    intervals_clock_started: Time | None = Field(description="When the guard's clock read 0; null for the gateway's.")


class Signature(_Member):
    """Who signed, and the signature over `signed_bytes`; both in base64."""

    algorithm: Literal["ed25519"]
    key: str = Field(description="The public key, 32 bytes. It proves nothing unless it is known from elsewhere.")
    value: str = Field(description="64 bytes (RFC 8032), over 'reprise-receipt/1', a newline, and RFC 8785 of receipt.")


class SignedReceipt(_Member):
    """A receipt and its signature."""

    receipt: Receipt
    signature: Signature


def canonical(document: Any) -> bytes:  # noqa: ANN401 - any JSON
    """The bytes of RFC 8785 for a document of texts, integers, booleans, nulls and members with ASCII names.

    Raises UnicodeEncodeError for half a surrogate pair and RecursionError for very deep documents.
    """
    return json.dumps(document, ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode()


def signed_bytes(document: Any) -> bytes:  # noqa: ANN401 - any JSON
    """What is signed for the member ``receipt`` of a signed receipt. Raises as `canonical` does."""
    return DOMAIN + canonical(document)
