"""Which answers are compared with which, under each condition."""

from collections.abc import Sequence

from app.diagnose.conditions import Pair, conditions
from app.diagnose.investigation import Investigation
from app.diagnose.rungs import Rung
from app.diagnose.sample import Sample, Setting
from tests.unit.diagnose.made import OTHER, URL, report, sample

SAME, OTHERS = [1, 2, 3], [1, 2, 4]


def named(samples: dict[Rung, list[Sample]], investigation: Investigation | None = None) -> dict[str, tuple[Pair, ...]]:
    evidence = report(samples, investigation=investigation).evidence
    return {condition.name: condition.pairs for condition in conditions(evidence)}


def ids(pairs: Sequence[Pair]) -> list[tuple[list[int], list[int]]]:
    """The tokens of reference and answer."""
    return [(list(one.choice.token_ids or ()), list(other.choice.token_ids or ())) for one, other in pairs]


def test_repeats_alone_are_compared_with_the_most_usual_of_them() -> None:
    """The reference is the answer nearest to all, of every rung that asks alone and cold; it is not compared itself."""
    odd, usual = sample(OTHERS), [sample(SAME) for _ in range(2)]
    found = named({Rung.ALONE: [odd, usual[0]], Rung.BATCH: [usual[1]]})

    assert list(found) == ["alone, repeated"]
    assert sorted(ids(found["alone, repeated"])) == [(SAME, SAME), (SAME, OTHERS)]


def test_each_batch_size_is_a_condition_of_its_own() -> None:
    """In order of size, against the answer given alone to the same prompt; without one nothing is compared."""
    batched = [sample(OTHERS, prompt, Setting(size=size)) for size in (8, 2) for prompt in (0, 1)]
    found = named({Rung.ALONE: [sample(SAME)], Rung.BATCH: batched})

    assert list(found) == ["in a batch of 2", "in a batch of 8"]
    assert ids(found["in a batch of 8"]) == [(SAME, OTHERS)]


def test_only_what_came_from_the_cache_counts_as_from_the_cache() -> None:
    """A request that the cache did not answer is no evidence of it; where the server is silent it is taken at hand."""
    warm = Setting(warm=True)
    hits = [sample(OTHERS, 4, warm, cached=cached) for cached in (128, 0, None)]
    assert len(named({Rung.CACHE: [sample(SAME, 4), *hits]})["from the cache"]) == 2


def test_long_neighbours_are_compared_with_short_ones() -> None:
    """Both are in a batch, so nothing but the length differs."""
    beside = [sample(tokens, 5, Setting(size=4, kv=kv)) for kv, tokens in ((16, SAME), (640, OTHERS))]
    found = named({Rung.ALONE: [sample([7], 5)], Rung.KV: beside})

    assert ids(found["beside long neighbours"]) == [(SAME, OTHERS)]


def test_replicas_and_unseeded_answers_are_compared_with_the_first_replica_alone() -> None:
    """Replicas are numbered from the first, which is 1."""
    found = named(
        {
            Rung.ALONE: [sample(SAME)],
            Rung.REPLICA: [sample(OTHERS, setting=Setting(replica=1))],
            Rung.SAMPLER: [sample(OTHERS, setting=Setting(seeded=False))],
        },
        Investigation(URL, temperature=0.7, replicas=(OTHER,)),
    )

    assert {name: ids(pairs) for name, pairs in found.items()} == {
        "from replica 2": [(SAME, OTHERS)],
        "without a seed": [(SAME, OTHERS)],
    }


def test_without_answers_there_is_no_condition() -> None:
    """Nothing is compared, and nothing fails."""
    assert named({}) == {}
    assert named({Rung.ALONE: [sample(SAME)]}) == {}
