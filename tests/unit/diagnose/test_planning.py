"""How much of the ladder a budget allows, and what is said of the rest."""

import itertools
from collections.abc import Sequence
from typing import Any

import pytest

from app.diagnose.investigation import Investigation
from app.diagnose.material import LONG_NEIGHBOUR, PARAGRAPH, Material
from app.diagnose.planning import FEWEST_TOKENS, LEAST_TOKENS, MOST_TOKENS, Course, plan
from app.diagnose.rungs import Rung, neighbour_tokens
from tests.unit.diagnose.samples import deployment, material

ASKED = Investigation("http://server")
SPARED = (Rung.KV, Rung.CACHE, Rung.BATCH)
"""The order in which rungs are spared."""

BUDGETS = (-10.0, 0.0, 1.0, *(5.0 * 1.1**step for step in range(60)))
WHOLE = material()
SAMPLING = Investigation("http://server", temperature=0.8, replicas=("http://other",))


def course(
    seconds: float, investigation: Investigation = ASKED, *, longs: Sequence[int] | None = None, **found: Any
) -> Course:
    """The plan for a server and a budget."""
    made = WHOLE if longs is None else material(longs=longs)
    return plan(investigation, deployment(**found), made, seconds)


def test_time_enough_climbs_the_whole_ladder() -> None:
    """Every rung that applies, every size, and the most tokens; what is missing does not apply."""
    whole = course(3600.0)

    assert whole.extent.rungs == (Rung.ALONE, Rung.BATCH, Rung.CACHE, Rung.KV)
    assert whole.extent.sizes == ASKED.sizes
    assert whole.tokens == MOST_TOKENS
    assert set(whole.missing) == {Rung.SAMPLER, Rung.REPLICA}


def test_what_does_not_apply_is_said() -> None:
    """No replica named, nothing sampled without a seed; both rungs come with what makes them apply."""
    missing = course(3600.0).missing

    assert "--replica" in missing[Rung.REPLICA]
    assert missing[Rung.SAMPLER] == "nothing is sampled without a seed"
    assert course(3600.0, SAMPLING).missing == {}
    assert course(3600.0, SAMPLING).extent.replicas == 1
    seeded = Investigation("http://server", temperature=0.8, seed=1)
    assert Rung.SAMPLER in course(3600.0, seeded).missing


@pytest.mark.parametrize("investigation", [ASKED, SAMPLING, Investigation("http://server", tokens=30)])
def test_a_bigger_budget_never_gives_less(investigation: Investigation) -> None:
    """Neither rungs nor sizes are lost with more time; while those stay, neither are tokens."""
    plans = [course(seconds, investigation) for seconds in BUDGETS]

    assert len({each.extent for each in plans}) >= 4
    for less, more in itertools.pairwise(plans):
        assert set(less.extent.rungs) <= set(more.extent.rungs)
        assert set(less.extent.sizes) <= set(more.extent.sizes)
        if less.extent == more.extent:
            assert less.tokens <= more.tokens
    # A rung is kept only where answers are as long as is worth while.
    assert all(each.tokens >= LEAST_TOKENS for each in plans if set(SPARED) & set(each.extent.rungs))


def test_the_plan_fits_into_the_budget() -> None:
    """Whenever answers are longer than the least, the least rounds take less than the time there is."""
    for seconds in BUDGETS:
        each = course(seconds)
        if each.tokens >= LEAST_TOKENS:
            assert each.extent.weight(WHOLE) * each.tokens * 0.05 <= seconds


def test_a_slow_server_gets_a_smaller_plan() -> None:
    """Budget and speed weigh against each other: twice as slow is half the time."""
    for seconds in BUDGETS:
        assert course(seconds, token_seconds=0.1) == course(seconds / 2, token_seconds=0.05)


def test_a_short_budget_leaves_rungs_out_and_says_so() -> None:
    """Neighbours' KV first, then the cache, then the batch; each with what would bring it back."""
    seen = [tuple(rung for rung in SPARED if rung in course(seconds).missing) for seconds in BUDGETS]

    assert sorted(set(seen), key=len) == [SPARED[:count] for count in range(len(SPARED) + 1)]
    for rung in SPARED:
        assert "--budget" in course(0.0).missing[rung]
    assert course(0.0).extent.rungs == (Rung.ALONE,)


def test_sizes_are_spared_before_rungs() -> None:
    """The smallest and the largest batch stay while any batch does."""
    ends = (ASKED.sizes[0], ASKED.sizes[-1])
    plans = [course(seconds) for seconds in BUDGETS]

    assert {each.extent.sizes for each in plans} == {ends, ASKED.sizes}
    assert any(each.extent.sizes == ends and set(each.extent.rungs) >= set(SPARED) for each in plans)


def test_no_budget_at_all_still_asks_something() -> None:
    """The foot of the ladder with the shortest answers: whether there is time is the climb's to find out."""
    for seconds in (-100.0, 0.0):
        assert (course(seconds).extent.rungs, course(seconds).tokens) == ((Rung.ALONE,), FEWEST_TOKENS)


def test_a_server_of_no_measurable_slowness_gets_everything() -> None:
    """A clock that saw no time pass is no division by zero."""
    assert course(100.0, token_seconds=0.0).tokens == MOST_TOKENS


@pytest.mark.parametrize("tokens", [4, 30, MOST_TOKENS + 1, 300])
@pytest.mark.parametrize("context", [4096, None])
@pytest.mark.parametrize("seconds", [1.0, 290.0, 36_000.0])
def test_tokens_that_were_asked_for_are_sent(tokens: int, context: int | None, seconds: float) -> None:
    """Whatever the budget, and also where the context is not known: rungs are left out instead."""
    asked = Investigation("http://server", tokens=tokens)

    assert course(seconds, asked, context=context).tokens == tokens


def test_tokens_that_were_asked_for_are_sent_without_exact_lengths_too() -> None:
    """A server that tells no token ids."""
    words = Material.of(["one two", "three four"], PARAGRAPH.split(), (129, 257))

    asked = Investigation("http://server", tokens=100)
    assert plan(asked, deployment(exact=False), words, 3600.0).tokens == 100


def test_answers_end_within_the_context() -> None:
    """The longest prompt and its answer fit, and so do the neighbours' where they run."""
    for context in range(700, 1400, 7):
        longs = [length for length in (129, 257, 641, 1025) if length + 16 <= context]
        for tokens in (None, 60, 300):
            asked = Investigation("http://server", tokens=tokens)
            each = course(3600.0, asked, context=context, longs=longs)
            assert max(map(len, material(longs=longs).longs)) + each.tokens <= context
            if Rung.KV in each.extent.rungs:
                assert LONG_NEIGHBOUR + neighbour_tokens(each.tokens) <= context


@pytest.mark.parametrize(
    ("context", "longs", "missing"),
    [
        (100, (), {Rung.CACHE, Rung.KV}),
        (300, (129, 257), {Rung.KV}),
        (LONG_NEIGHBOUR + neighbour_tokens(LEAST_TOKENS) - 1, (129, 257, 641), {Rung.KV}),
        (LONG_NEIGHBOUR + neighbour_tokens(LEAST_TOKENS), (129, 257, 641), set()),
    ],
)
def test_a_short_context_leaves_out_what_needs_a_long_one(
    context: int, longs: tuple[int, ...], missing: set[Rung]
) -> None:
    """The cache wants a prompt of more than a block, neighbours' KV a long one; the reason tells the context."""
    each = course(3600.0, context=context, longs=longs)

    assert {Rung.CACHE, Rung.KV} & set(each.missing) == missing
    assert missing.isdisjoint(each.extent.rungs)
    for rung in missing:
        assert f"the model's context of {context} tokens is too short" in each.missing[rung]


def test_long_answers_leave_no_room_for_neighbours() -> None:
    """Neighbours answer three times as long, so many tokens leave them out, and the rest stays."""
    each = course(3600.0, Investigation("http://server", tokens=400), context=1500)

    assert "too short for neighbours" in each.missing[Rung.KV]
    assert (Rung.CACHE in each.extent.rungs, each.tokens) == (True, 400)


def test_prompts_that_are_long_themselves_are_said() -> None:
    """Where prompts fill every length, nothing is claimed of a context that is not known."""
    made = material(length=1025)

    missing = plan(ASKED, deployment(context=None), made, 3600.0).missing
    assert missing[Rung.CACHE].startswith("the prompts are too long")
    assert missing[Rung.KV].startswith("the prompts are too long")


def test_an_impossible_rung_keeps_its_own_reason() -> None:
    """A rung that could not be climbed in any time is not blamed on the budget."""
    each = course(0.0, context=100, longs=())

    assert "context" in each.missing[Rung.KV]
    assert "context" in each.missing[Rung.CACHE]
    assert "--budget" in each.missing[Rung.BATCH]


def test_one_size_is_its_own_smallest_and_largest() -> None:
    """A single batch size is never lost while batches are asked."""
    single = Investigation("http://server", sizes=(8,))

    assert {course(seconds, single).extent.sizes for seconds in BUDGETS} == {(8,)}
