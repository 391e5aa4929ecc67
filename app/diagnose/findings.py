"""A verdict on each suspect, as a value with its evidence. Pure."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from app.diagnose.attribution import Attribution


class Layer(StrEnum):
    """The four layers, and what is none of them."""

    ARCHITECTURE = "L1"
    OPERATOR = "L2"
    FRAMEWORK = "L3"
    TIES = "L4"
    NONE = "-"


class Suspect(StrEnum):
    """What may make answers differ."""

    NEIGHBOUR_CONTENT = "neighbour_content"
    BATCH_SHAPE = "batch_shape"
    PREFIX_CACHE = "prefix_cache"
    KV_LENGTH = "kv_length"
    RUN_TO_RUN = "run_to_run"
    REPLICA = "replica"
    CONFIGURATION = "configuration"
    SAMPLER = "sampler"
    TIES = "ties"
    FAULT = "fault"


LAYERS: Final = {
    Suspect.NEIGHBOUR_CONTENT: Layer.ARCHITECTURE,
    Suspect.BATCH_SHAPE: Layer.OPERATOR,
    Suspect.PREFIX_CACHE: Layer.OPERATOR,
    Suspect.KV_LENGTH: Layer.OPERATOR,
    Suspect.RUN_TO_RUN: Layer.FRAMEWORK,
    Suspect.REPLICA: Layer.FRAMEWORK,
    Suspect.TIES: Layer.TIES,
    Suspect.CONFIGURATION: Layer.NONE,
    Suspect.SAMPLER: Layer.NONE,
    Suspect.FAULT: Layer.NONE,
}


class State(StrEnum):
    """What is known of a suspect."""

    PRESENT = "present"
    LOGPROBS_ONLY = "logprobs only"
    NOT_SEEN = "not seen"
    UNDECIDED = "undecided"
    UNTESTED = "untested"


@dataclass(frozen=True, slots=True)
class Count:
    """How many answers differ from the one they are compared with, of how many."""

    k: int
    n: int


@dataclass(frozen=True, slots=True)
class Finding:
    """The verdict on a suspect with its evidence.

    ``tokens`` counts the answers whose tokens differ from their reference, ``bits`` those whose tokens or logprobs do;
    ``delta`` is the largest difference of a logprob, in nats. ``reason`` is a sentence: what was compared, or why
    nothing is known.
    """

    suspect: Suspect
    state: State
    reason: str
    tokens: Count = Count(0, 0)
    bits: Count = Count(0, 0)
    delta: float | None = None
    attribution: Attribution | None = None

    @property
    def layer(self) -> Layer:
        """The layer that the suspect belongs to."""
        return LAYERS[self.suspect]

    @property
    def open(self) -> bool:
        """Whether answers differ, and more of them could tell whether the condition does it."""
        return self.bits.k > 0 and self.attribution is not None and not self.attribution.blamed

    @property
    def acts(self) -> bool:
        """Whether it changes anything."""
        return self.state in {State.PRESENT, State.LOGPROBS_ONLY}
