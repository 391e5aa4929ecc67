"""What a batch of sightings adds to each of its cohorts: the sums that every store writes."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from app.determinism.divergence import Verdict
from app.observation.store import CohortId, Sighting


@dataclass(slots=True)
class Addition:
    """What is new of one cohort. Times are seconds since 1970.

    ``first`` is its first sighting of the batch; ``unjudged`` are the outputs, in order, that their sender took for
    the reference, so that they came without a verdict.
    """

    first: Sighting
    last_seen: float
    matched: int = 0
    diverged: int = 0
    unjudged: list[str] = field(default_factory=list)
    outputs: Counter[str] = field(default_factory=Counter)

    def add(self, sighting: Sighting) -> None:
        """Add one sighting of the cohort."""
        self.last_seen = max(self.last_seen, sighting.at)
        self.outputs[sighting.slot] += 1
        self.matched += sighting.verdict is Verdict.MATCH
        self.diverged += sighting.verdict is Verdict.DIVERGED
        if sighting.verdict is None:
            self.unjudged.append(sighting.output)


def additions(sightings: Sequence[Sighting]) -> dict[CohortId, Addition]:
    """The additions of a batch, cohorts in the order in which they come."""
    found: dict[CohortId, Addition] = {}
    for sighting in sightings:
        addition = found.get(sighting.cohort)
        if addition is None:
            addition = found[sighting.cohort] = Addition(sighting, sighting.at)
        addition.add(sighting)
    return found


def judged(outputs: Iterable[str], reference: str) -> tuple[int, int]:
    """How many of these outputs match a reference, and how many diverge from it."""
    same = [output == reference for output in outputs]
    return sum(same), len(same) - sum(same)
