"""What the ledger holds, and the protocol that every store of it keeps.

A cohort is the repeats of one canonical request in one mode, on one posture; these three are its identity, so a
verdict never compares across them. Of its answers a store keeps digests and counts, never text.

Counts are merged, never overwritten: a sighting adds one to what is there. That makes one protocol fit a file with one
writer and a database that several gateways share, where the first reference to arrive stays the reference.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple, Protocol

from app.determinism.divergence import Verdict
from app.determinism.output import Blocks, Output

PAIRED_OBSERVATIONS: Final = 64
"""Only this many first observations of a cohort enter pairwise agreement, so that no hot prompt dominates it."""

DISTINCT_OUTPUTS: Final = 64
"""Output digests kept apart per cohort; later ones are counted together under `OTHER_OUTPUTS`."""

OTHER_OUTPUTS: Final = "other"


class StoreError(Exception):
    """The store cannot be used now; the message says why and names no content."""


class StoreVersionError(StoreError):
    """The stored ledger was written by a newer version; it is left untouched."""


class Skip(StrEnum):
    """Why an answer is compared to nothing."""

    UNSEEDED_SAMPLING = "unseeded_sampling"
    INCOMPLETE = "incomplete"
    UPSTREAM_ERROR = "upstream_error"
    CLIENT_CLOSED = "client_closed"
    TOO_LARGE = "too_large"
    UNPARSABLE = "unparsable"
    REMOTE_MEDIA = "remote_media"
    NOT_APPLICABLE = "not_applicable"
    OTHER = "other"


class CohortId(NamedTuple):
    """The identity of a cohort."""

    key: str
    mode: str
    posture: str


@dataclass(frozen=True, slots=True)
class Observation:
    """One answered request, as the gateway hands it over.

    ``coresident_peak`` is None where no guard told it. ``output`` is None where the answer could not be read, and
    ``skip_reason`` (a `Skip`, or any text, which then counts as "other") says why it is not to be compared. ``applied``
    names the mitigations that were applied where they are not just those of the mode: such answers are a cohort apart.
    """

    request_id: str
    cohort_key: str
    model: str
    mode: str
    replica: str
    posture: str
    coresident_peak: int | None
    output: Output | None
    skip_reason: str | None = None
    applied: str = ""

    @property
    def cohort(self) -> CohortId:
        """The cohort that this observation belongs to."""
        mode = f"{self.mode}+{self.applied}" if self.applied else str(self.mode)
        return CohortId(self.cohort_key, mode, self.posture)


@dataclass(frozen=True, slots=True)
class Reference:
    """The first accepted observation of a cohort, without its text."""

    digest: str
    blocks: Blocks
    replica: str
    coresident_peak: int | None = None
    cached_tokens: int | None = None

    @classmethod
    def of(cls, observation: Observation, output: Output) -> "Reference":
        """The reference that an observation with this output makes."""
        return cls(output.digest, output.blocks, observation.replica, observation.coresident_peak, output.cached_tokens)


@dataclass(slots=True)
class CohortCounts:
    """How often each output of a cohort was seen, and the verdicts. Grows by `add`; owned by one thread at a time."""

    outputs: dict[str, int] = field(default_factory=dict)
    matched: int = 0
    diverged: int = 0

    @property
    def observed(self) -> int:
        """Observations, the reference included."""
        return sum(self.outputs.values())

    @property
    def distinct(self) -> int:
        """Distinct outputs, at most one more than `DISTINCT_OUTPUTS`."""
        return len(self.outputs)

    def slot(self, digest: str) -> str:
        """The name under which an output is counted: its digest, or `OTHER_OUTPUTS` when there are too many."""
        if digest in self.outputs or len(self.outputs) < DISTINCT_OUTPUTS:
            return digest
        return OTHER_OUTPUTS

    def add(self, slot: str, verdict: Verdict | None) -> None:
        """Count one observation; no verdict means that it is the reference."""
        self.outputs[slot] = self.outputs.get(slot, 0) + 1
        self.matched += verdict is Verdict.MATCH
        self.diverged += verdict is Verdict.DIVERGED


@dataclass(slots=True)
class Cohort:
    """A cohort as it is known: reference and counts. Times are seconds since 1970."""

    id: CohortId
    model: str
    reference: Reference
    counts: CohortCounts
    first_seen: float
    last_seen: float


@dataclass(frozen=True, slots=True)
class Sighting:
    """One observation as a store takes it. ``verdict`` is None for the reference; ``at`` is seconds since 1970."""

    cohort: CohortId
    model: str
    reference: Reference
    output: str
    verdict: Verdict | None
    at: float


class Store(Protocol):
    """A place for cohorts. Every method is called on one thread, may block, and raises StoreError when it fails."""

    def load(self, cohort: CohortId) -> Cohort | None:
        """The cohort as stored, None when it is not."""

    def record(self, sightings: Sequence[Sighting]) -> None:
        """Add sightings, all or none. A cohort that is new gets the sighting's reference; a known one keeps its own."""

    def prune(self, now: float) -> int:
        """Forget what is past its retention, a bounded amount at a time; returns how many cohorts went."""

    def close(self) -> None:
        """Let go of everything; later calls are an error of the caller, a second close is not."""
