"""Laws of the permutation test: against all relabellings there are, and over many runs in which nothing acts."""

import itertools
import math
from collections.abc import Hashable, Sequence
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from app.diagnose.attribution import SIGNIFICANCE, Stratum, attribute
from app.diagnose.sample import Sample, distance
from tests.unit.diagnose.samples import parted, plain, sample, shaken

TRIALS = 1500
MOST_UNITS = 6
SEEDS = range(6)
LAW = settings(max_examples=150, deadline=None, derandomize=True, database=None)

KINDS: tuple[Sample, ...] = (
    *(sample(shaken(plain(), key)) for key in range(4)),
    *(sample(parted(shaken(plain(), key), 5 + key, key)) for key in range(1, 4)),
    sample(plain()),
)
"""Answers to one prompt: some differ in the last bits, some in tokens, and drawn twice they are equal."""


@st.composite
def strata(draw: st.DrawFn) -> list[Stratum]:
    """One or two prompts' answers, of two or three conditions, few enough to try all relabellings."""
    several = st.lists(st.integers(1, 3), min_size=2, max_size=3).filter(lambda sizes: sum(sizes) <= MOST_UNITS)
    sizes = [draw(several) for _ in range(draw(st.integers(1, 2)))]
    return [
        Stratum(
            tuple((draw(st.sampled_from(KINDS)),) for _ in range(sum(each))),
            tuple(label for label, size in enumerate(each) for _ in range(size)),
        )
        for each in sizes
    ]


def relabelled(labels: Sequence[Hashable]) -> list[tuple[Hashable, ...]]:
    """All distinct orders of some labels."""
    return sorted(set(itertools.permutations(labels)), key=repr)


def parting(stratum: Stratum, labels: Sequence[Hashable]) -> float | None:
    """Mean distance between conditions minus mean distance within, over the mean of all; None where that is nothing."""
    within: list[float] = []
    between: list[float] = []
    for (i, one), (j, other) in itertools.combinations(enumerate(unit for (unit,) in stratum.units), 2):
        (within if labels[i] == labels[j] else between).append(distance(one, other))
    mean = sum(within + between) / max(1, len(within + between))
    if not within or not between or not mean:
        return None
    return (sum(between) / len(between) - sum(within) / len(within)) / mean


def exact_p(cases: list[Stratum]) -> float:
    """The share of all relabellings that part the answers as well as the true labels, by trying them."""
    told = [case for case in cases if parting(case, case.labels) is not None]
    if not told:
        return 1.0
    observed = sum(parting(case, case.labels) or 0.0 for case in told)
    tables = [[parting(case, labels) or 0.0 for labels in relabelled(case.labels)] for case in told]
    sums = [sum(values) for values in itertools.product(*tables)]
    return sum(value >= observed - 1e-9 for value in sums) / len(sums)


@LAW
@given(cases=strata())
def test_a_p_value_is_a_probability_above_zero(cases: list[Stratum]) -> None:
    """However few the answers: above 0, at most 1, and so is what was attainable."""
    found = attribute(cases)

    assert 0.0 < found.p <= 1.0
    assert 0.0 < found.attainable <= 1.0


@LAW
@given(cases=strata(), data=st.data())
def test_p_is_the_share_of_all_relabellings_in_whatever_order_the_answers_come(
    cases: list[Stratum], data: st.DataObject
) -> None:
    """Against every relabelling there is: p is their share, as near as drawn ones come, and order changes nothing."""
    truth = exact_p(cases)
    mixed = []
    for case in data.draw(st.permutations(cases)):
        order = data.draw(st.permutations(range(len(case.units))))
        mixed.append(Stratum(tuple(case.units[i] for i in order), tuple(case.labels[i] for i in order)))

    assert attribute(mixed).attainable == attribute(cases).attainable
    for several in (cases, mixed):
        drawn = sum(attribute(several, seed=seed).p for seed in SEEDS) / len(SEEDS)
        # Drawing ends at twenty as good as the truth or after a thousand; four standard errors of the mean.
        error = truth * math.sqrt((1 - truth) / 20) + math.sqrt(truth * (1 - truth) / 1000)
        assert abs(drawn - truth) <= 4 * error / math.sqrt(len(SEEDS)) + 2e-3


@LAW
@given(cases=strata(), names=st.permutations("xyz"))
def test_what_conditions_are_called_does_not_matter(cases: list[Stratum], names: list[str]) -> None:
    """Other names, the same result to the last bit."""
    renamed = [Stratum(case.units, tuple(names[int(str(label))] for label in case.labels)) for case in cases]

    assert attribute(renamed) == attribute(cases)


@LAW
@given(cases=strata(), kind=st.sampled_from(KINDS))
def test_equal_answers_give_a_p_of_one(cases: list[Stratum], kind: Sample) -> None:
    """Whatever the conditions: where no answer differs, nothing was seen."""
    equal = [Stratum(((kind,),) * len(case.units), case.labels) for case in cases]

    assert attribute(equal).p == 1.0


@LAW
@given(cases=strata())
def test_no_share_is_rarer_than_what_is_attainable(cases: list[Stratum]) -> None:
    """The least that one prompt's answers could give is never above what all their relabellings give."""
    (case, *_) = cases

    assert attribute([case]).attainable <= exact_p([case]) + 1e-12


def test_where_nothing_acts_few_are_blamed() -> None:
    """Over many runs with exchangeable labels, p is at most any level about that often, the blaming one among them."""
    random = Random(20)  # noqa: S311 - noise of a test
    found = [attribute([exchangeable(random) for _ in range(2)], seed=trial) for trial in range(TRIALS)]

    for level in (SIGNIFICANCE, 0.05, 0.2, 0.5):
        expected = TRIALS * level
        seen = sum(each.p <= level for each in found)
        assert seen <= expected + 3.3 * math.sqrt(expected * (1 - level)) + 1
    # The test is not merely deaf: about half of all runs are below the middle.
    assert sum(each.p <= 0.5 for each in found) > TRIALS / 3


def exchangeable(random: Random) -> Stratum:
    """Answers with noise of their own, some of them forked, three under each of two conditions that do nothing."""
    units = []
    for _ in range(6):
        choice = shaken(plain(), random.getrandbits(32))
        units.append((sample(parted(choice, 5, random.randint(1, 3)) if random.random() < 0.4 else choice),))
    return Stratum(tuple(units), (0, 0, 0, 1, 1, 1))
