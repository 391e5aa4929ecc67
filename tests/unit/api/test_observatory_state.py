"""What the observatory's state is put together from."""

from types import SimpleNamespace
from typing import cast

from prometheus_client import CollectorRegistry

from app.api.observatory_state import deterministic, sums, told_canaries, told_recent
from app.determinism.divergence import Verdict
from app.determinism.statistics import clopper_pearson_upper, rate_text
from app.measuring.schedule import Schedule
from app.observation.history import Recent
from app.observation.labels import Cause
from app.observation.metrics import Metrics
from app.observation.store import Origin
from app.observation.summary import modes


def test_origins_are_summed_with_a_bound_of_their_own() -> None:
    """The bound over all origins is that of all comparisons, not one of the bounds of the parts."""
    metrics = Metrics(CollectorRegistry())
    metrics.declare("m")
    compared = metrics.of("m", "standard").compared
    compared[Origin.CLIENT].comparisons[Verdict.MATCH].inc(40)
    compared[Origin.CANARY].comparisons[Verdict.MATCH].inc(22)
    compared[Origin.CANARY].comparisons[Verdict.DIVERGED].inc(2)
    compared[Origin.CANARY].divergences[Cause.CO_BATCHED].inc(2)
    (total,) = sums(modes(metrics))

    assert (total.origin, total.matched, total.diverged) == ("all", 62, 2)
    assert total.upper_bound == clopper_pearson_upper(2, 64)
    assert total.sentence == rate_text(2, 64)
    assert {cause: count for cause, count in total.causes.items() if count} == {"co_batched": 2}


def test_the_deterministic_modes_have_one_bound_together() -> None:
    """Over all of them and by origin; other modes are left out, and nothing compared is no figure."""
    metrics = Metrics(CollectorRegistry())
    metrics.declare("m")
    for mode, count in (("isolated", 10), ("invariant", 4), ("standard", 50)):
        metrics.of("m", mode).compared[Origin.CLIENT].comparisons[Verdict.MATCH].inc(count)
    metrics.of("m", "isolated").compared[Origin.CANARY].comparisons[Verdict.DIVERGED].inc(1)
    told = deterministic(modes(metrics))

    assert (told["client"]["compared"], told["client"]["diverged"]) == (14, 0)
    assert told["client"]["sentence"] == rate_text(0, 14)
    assert (told["all"]["compared"], told["all"]["diverged"]) == (15, 1)
    assert told["all"]["upper_bound"] == clopper_pearson_upper(1, 15)
    assert (told["shadow"]["compared"], told["shadow"]["upper_bound"]) == (0, 1.0)


def test_what_was_compared_lately_is_summed_over_origins() -> None:
    """Step by step, in order of time."""
    steps = {
        ("m", "standard", "client"): [(10.0, 2, 1), (25.0, 3, 0)],
        ("m", "standard", "shadow"): [(25.0, 1, 1)],
    }
    told = told_recent(Recent(0.0, 30.0, steps))

    by = {each["origin"]: each for each in told["modes"]}
    assert (told["since"], told["until"]) == (0.0, 30.0)
    assert by["all"]["steps"] == [(10.0, 2, 1), (25.0, 4, 1)]
    assert (by["all"]["compared"], by["all"]["diverged"]) == (6, 2)
    assert (by["client"]["compared"], by["shadow"]["compared"]) == (5, 1)


def test_the_canaries_facts_are_the_schedules() -> None:
    """The first prompt comes again after a whole round; once it has, nothing is due."""
    schedule = SimpleNamespace(interval=30.0, round=36, turns=7)
    told = told_canaries(cast(Schedule, schedule), 1000.0)
    assert told == {"interval": 30.0, "round": 36, "sent": 7, "first_comparison": 1000.0 + 30 * 30.0}
    schedule.turns = 37
    told = told_canaries(cast(Schedule, schedule), 1000.0)
    assert told is not None
    assert told["first_comparison"] is None
    assert told_canaries(None, 1000.0) is None
