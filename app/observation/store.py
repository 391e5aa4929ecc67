"""What the ledger holds, and the protocol that every store of it keeps.

A cohort is the repeats of one canonical request in one mode, on one posture; these three are its identity, so a
verdict never compares across them. Of its answers a store keeps digests, counts and the circumstances of each distinct
one (a specimen), and text only where the operator asked for it.

Counts are merged, never overwritten: a sighting adds one to what is there. That makes one protocol fit a file with one
writer and a database that several gateways share, where the first reference to arrive stays the reference.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from operator import attrgetter
from typing import Final, NamedTuple, Protocol

from app.determinism.divergence import Verdict
from app.determinism.output import Blocks, Output

PAIRED_OBSERVATIONS: Final = 64
"""Only this many first observations of a cohort enter pairwise agreement, so that no hot prompt dominates it."""

DISTINCT_OUTPUTS: Final = 64
"""Output digests kept apart per cohort; later ones are counted together under `OTHER_OUTPUTS`."""

OTHER_OUTPUTS: Final = "other"

PRUNE_COHORTS: Final = 5_000
PRUNE_RUN_ANSWERS: Final = 10_000
"""The most that one call of `Store.prune` takes away of each; more than the ledger writes between two calls."""

RUN_SHARE: Final = 0.25
"""The part of a store's bytes that answers of runs may hold against cohorts, which may hold the rest.

Only a store that is over its bytes looks at it, and takes from the side that is over its part. So a prompt that one
caller repeats under a label loses its own oldest answers and nobody's cohorts. A quarter, because cohorts are what
verdicts need, and because as many answers as are kept by default take about an eighth of the default bytes in SQLite.
"""


RUN_CHARACTERS: Final = 2**20
"""Characters of kept texts that one page of a run holds; writing more would hold an event loop for tens of ms."""


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
    LEDGER_FULL = "ledger_full"
    OTHER = "other"


class Origin(StrEnum):
    """Who sent a request: a client, or the gateway itself, in order to measure."""

    CLIENT = "client"
    CANARY = "canary"
    SHADOW = "shadow"


class CohortId(NamedTuple):
    """The identity of a cohort."""

    key: str
    mode: str
    posture: str


class Observation(NamedTuple):
    """One answered request, as the gateway hands it over.

    ``coresident_peak`` is None where no guard told it. ``output`` is None where the answer could not be read, and
    ``skip_reason`` (a `Skip`, or any text, which then counts as "other") says why it is not to be compared. ``applied``
    names the mitigations that were applied where they are not just those of the mode: such answers are a cohort apart.
    ``run`` is the caller's label of a run, if he gave one. ``greedy`` is whether the likeliest token was taken at each
    place; of other answers the margin at a fork says nothing.
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
    origin: Origin = Origin.CLIENT
    run: str | None = None
    greedy: bool = True

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


@dataclass(frozen=True, slots=True)
class Specimen:
    """One distinct output of a cohort, as it was when first seen.

    ``fork_tokens``, ``fork_characters``, ``margin`` and ``similarity`` are against the cohort's reference (see
    `app.determinism.divergence.Comparison`; similarity is the edit similarity, 0 to 1), and None on the reference
    itself or where they are not known; so is ``cause``. ``tokens`` is how long the output is. ``text`` is what was
    answered, None unless the operator keeps texts.
    """

    digest: str
    request_id: str
    replica: str
    at: float
    origin: str = Origin.CLIENT
    coresident_peak: int | None = None
    cached_tokens: int | None = None
    tokens: int | None = None
    fork_tokens: int | None = None
    fork_characters: int | None = None
    margin: float | None = None
    similarity: float | None = None
    cause: str | None = None
    text: str | None = None


specimen_row: Final = attrgetter(*(field.name for field in fields(Specimen)))
"""The members of a specimen in their order; ``dataclasses.astuple`` would copy each deeply, at 20 times the cost."""


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


class Sighting(NamedTuple):
    """One observation as a store takes it. ``verdict`` is None for the reference; ``at`` is seconds since 1970.

    ``output`` is the digest of what was answered; an output that is not kept ``apart`` is counted with the others.
    ``specimen`` comes with an output that its sender had not seen before in this cohort; ``run`` and ``request_id``
    where the request belongs to a run.
    """

    cohort: CohortId
    model: str
    reference: Reference
    output: str
    verdict: Verdict | None
    at: float
    specimen: Specimen | None = None
    run: str | None = None
    request_id: str = ""
    apart: bool = True

    @property
    def slot(self) -> str:
        """The name under which the output is counted."""
        return self.output if self.apart else OTHER_OUTPUTS


@dataclass(frozen=True, slots=True)
class CohortSummary:
    """A cohort in a list. Times are seconds since 1970.

    ``reference_peak`` is the `Observation.coresident_peak` of the answer that came first. ``origins`` are those of the
    kept specimens, in order of name: of a repeat that brought nothing new, no origin is kept.
    """

    id: CohortId
    model: str
    observed: int
    matched: int
    diverged: int
    distinct: int
    first_seen: float
    last_seen: float
    reference_peak: int | None = None
    origins: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RunEntry:
    """One answer of a run. ``number`` grows with each; ``at`` is seconds since 1970. ``text`` as in `Specimen`.

    ``output`` is the answer's own digest, also where its cohort counts it with others.
    """

    number: int
    cohort: CohortId
    output: str
    request_id: str
    at: float
    text: str | None = None


@dataclass(frozen=True, slots=True)
class StoreSize:
    """How much a store holds; ``bytes`` is what its retention counts, ``run_answers`` are those of all runs."""

    cohorts: int
    bytes: int
    run_answers: int


@dataclass(frozen=True, slots=True)
class Retention:
    """What a store keeps: so many cohorts, bytes, and seconds after one was last seen. The longest unseen go first.

    Answers of runs are kept as long as their cohort, but only so many of them and only so many seconds after each; the
    first recorded go first. Where the bytes do not hold both, see `RUN_SHARE`.
    """

    cohorts: int = 100_000
    bytes: int = 2**30
    seconds: float = 30 * 86_400.0
    run_answers: int = 1_000_000


DEFAULT_RETENTION: Final = Retention()


class Store(Protocol):
    """A place for cohorts. Every method is called on one thread, may block, and raises StoreError when it fails."""

    def load(self, cohort: CohortId) -> Cohort | None:
        """The cohort as stored, None when it is not."""

    def record(self, sightings: Sequence[Sighting]) -> Mapping[CohortId, Reference]:
        """Add sightings, all or none. A cohort that is new gets the sighting's reference; a known one keeps its own.

        Returns the references of those cohorts in which somebody else was first: the stored one is another than their
        sighting's, or a sighting came without a verdict though the cohort was known. Such a sighting is counted as a
        repeat of the stored reference, and its sender is to do the same. Verdicts that come along stay as they are.
        A specimen is kept if it is the first of its output. What was recorded survives the end of the process.
        """

    def cohorts(
        self, *, limit: int, before: float | None = None, mode: str | None = None, diverged: bool = False
    ) -> list[CohortSummary]:
        """The cohorts seen last, the latest first: at most ``limit``, last seen before the time ``before``.

        ``mode`` keeps those of one mode, and ``diverged`` those in which an output differed.
        """

    def specimens(self, cohort: CohortId) -> list[tuple[Specimen, int]]:
        """The distinct outputs of a cohort, the first seen first, each with how often it was seen; none if unknown."""

    def runs(self, *, limit: int) -> list[tuple[str, int]]:
        """The labels of the runs that were answered last, at most so many, and how many answers each has.

        The latest come first. It takes no longer where many labels are kept, or one with many answers.
        """

    def run(self, label: str, *, after: int, limit: int) -> list[RunEntry]:
        """The answers of a run in order whose number is over ``after``, at most ``limit``; none where no more is kept.

        Fewer where their texts have over `RUN_CHARACTERS` together, but one at least: whoever asks on gets all.
        """

    def size(self) -> StoreSize:
        """How much it holds."""

    def prune(self, now: float) -> int:
        """Forget what is past its retention: at most `PRUNE_COHORTS` and `PRUNE_RUN_ANSWERS` at a time.

        A cohort goes when its answers in runs have gone. Returns how many of both went, 0 where nothing is to go.
        """

    def close(self) -> None:
        """Let go of everything; later calls are an error of the caller, a second close is not."""
