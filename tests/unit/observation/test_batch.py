"""What a batch adds: sums per cohort, and who was not judged."""

from app.determinism.divergence import Verdict
from app.determinism.output import Blocks
from app.observation.batch import additions, judged
from app.observation.store import CohortId, Reference, Sighting

A, B = CohortId("a", "isolated", "p-1"), CohortId("b", "isolated", "p-1")


def sighting(cohort: CohortId, output: str, verdict: Verdict | None, at: float) -> Sighting:
    return Sighting(cohort, "m", Reference("o-1", Blocks("tokens", ()), "r"), output, verdict, at)


def test_sightings_are_summed_by_cohort() -> None:
    """Outputs, verdicts and the latest time, in the order in which the cohorts come."""
    first = sighting(B, "o-1", None, 5.0)
    batch = [
        first,
        sighting(A, "o-1", Verdict.MATCH, 6.0),
        sighting(B, "o-1", Verdict.MATCH, 9.0),
        sighting(B, "o-2", Verdict.DIVERGED, 7.0),
    ]
    found = additions(batch)
    assert list(found) == [B, A]
    assert found[B].first is first
    assert (found[B].matched, found[B].diverged, found[B].last_seen) == (1, 1, 9.0)
    assert (found[B].outputs, found[B].unjudged) == ({"o-1": 2, "o-2": 1}, ["o-1"])
    assert (found[A].outputs, found[A].unjudged) == ({"o-1": 1}, [])


def test_outputs_are_judged_by_the_reference() -> None:
    """Equal digests match, others diverge."""
    assert judged(["o-1", "o-2", "o-1"], "o-1") == (2, 1)
    assert judged([], "o-1") == (0, 0)
