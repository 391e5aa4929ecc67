"""Whether a condition parts the answers more than their repeats differ."""

from collections.abc import Hashable, Sequence

import pytest

from app.diagnose.attribution import DOUBT, SIGNIFICANCE, Attribution, Stratum, attribute
from app.diagnose.sample import Sample
from tests.unit.diagnose.samples import parted, plain, sample, shaken, silent


def stratum(units: Sequence[tuple[Hashable, Sample]]) -> Stratum:
    """One answer per unit."""
    return Stratum(tuple((each,) for _, each in units), tuple(label for label, _ in units))


def noise(condition: object, *, per: int, conditions: int = 2, own: bool = True, prompt: int = 0) -> Stratum:
    """Answers that have the noise of their condition, or where it is not their own, one of each repeat."""
    return stratum(
        [
            (
                label,
                sample(shaken(plain(prompt), (condition, prompt, label) if own else (condition, prompt, label, turn))),
            )
            for label in range(conditions)
            for turn in range(per)
        ]
    )


def test_a_condition_that_parts_the_answers_is_blamed() -> None:
    """Equal within, different between, in four prompts: the least p there is."""
    found = attribute([noise("kernel", per=3, prompt=prompt) for prompt in range(4)])

    assert found.blamed
    assert found.decided
    assert found.p == pytest.approx(found.attainable, abs=0.001)


@pytest.mark.parametrize("seed", range(5))
def test_noise_within_a_condition_blames_nobody(seed: int) -> None:
    """Each answer has noise of its own: all differ, and the condition is not the reason."""
    found = attribute([noise(seed, per=4, own=False, prompt=prompt) for prompt in range(4)])

    assert not found.blamed
    assert found.p > SIGNIFICANCE


def test_a_condition_is_seen_through_noise() -> None:
    """Half of the answers have noise of their own beside the condition's: it is blamed all the same."""
    found = attribute(
        stratum(
            [
                (label, sample(shaken(shaken(plain(prompt), (label, prompt)), (label, turn, prompt), turn % 2)))
                for label in range(2)
                for turn in range(6)
            ]
        )
        for prompt in range(4)
    )

    assert found.blamed


def test_equal_answers_say_nothing() -> None:
    """Nothing differs: there is no evidence, and none was to be had."""
    found = attribute([stratum([(turn % 2, sample(plain())) for turn in range(8)])])

    assert found == Attribution(p=1.0, attainable=1.0)
    assert not found.blamed
    assert not found.decided


@pytest.mark.parametrize(
    "labels", [(0, 0, 0, 0), (0, 1, 2, 3), (0,), ()], ids=["one condition", "no repeats", "one answer", "none"]
)
def test_without_both_repeats_and_conditions_nothing_can_be_said(labels: tuple[int, ...]) -> None:
    """One condition alone, or one answer of each, however much they differ."""
    units = [(label, sample(shaken(plain(), turn))) for turn, label in enumerate(labels)]

    assert attribute([stratum(units)]) == Attribution(p=1.0, attainable=1.0)


def test_no_strata_say_nothing() -> None:
    """A rung without answers."""
    assert attribute([]) == Attribution(p=1.0, attainable=1.0)


@pytest.mark.parametrize(
    ("labels", "ways"),
    [
        ((0, 0, 0, 1, 1, 1), 10),  # 6! / (3! 3!), and the two groups have no names
        ((0, 0, 1), 3),
        ((0, 0, 1, 1, 2, 2), 15),
        ((0, 0, 0, 1), 4),
        ((0, 0, 0, 0, 1, 1, 1, 1), 35),
    ],
)
def test_the_attainable_is_one_of_all_ways_to_deal_the_answers(labels: tuple[int, ...], ways: int) -> None:
    """Which group is called what does not matter, so groups of one size are not told apart."""
    units = [(label, sample(shaken(plain(), label))) for label in labels]

    assert attribute([stratum(units)]).attainable == pytest.approx(1 / ways)


def test_strata_multiply_what_is_attainable() -> None:
    """Each prompt is dealt by itself; one in which nothing differs does not help."""
    two = [noise("kernel", per=3, prompt=prompt) for prompt in range(2)]
    silent_one = stratum([(turn % 2, sample(plain())) for turn in range(6)])

    assert attribute([*two, silent_one]).attainable == pytest.approx(1 / 100)


def test_too_few_answers_are_never_decided() -> None:
    """Two against two part perfectly, and chance does that once in three: neither blamed nor acquitted."""
    found = attribute([noise("kernel", per=2)])

    assert not found.blamed
    assert not found.decided
    assert found.attainable == pytest.approx(1 / 3)


@pytest.mark.parametrize(
    ("p", "attainable", "blamed", "decided"),
    [
        (SIGNIFICANCE, 0.001, True, True),
        (SIGNIFICANCE * 1.01, 0.001, False, False),
        (DOUBT, 0.001, False, False),
        (DOUBT * 1.01, 0.001, False, True),
        (DOUBT * 1.01, SIGNIFICANCE * 1.01, False, False),
        (1.0, 1.0, False, False),
    ],
)
def test_between_blame_and_acquittal_there_is_doubt(p: float, attainable: float, blamed: bool, decided: bool) -> None:
    """Blamed up to `SIGNIFICANCE`; acquitted above `DOUBT`, and only by answers that could have blamed."""
    found = Attribution(p, attainable)

    assert (found.blamed, found.decided) == (blamed, decided)


def test_equal_input_gives_an_equal_result() -> None:
    """The relabellings are drawn from the seed alone."""
    strata = [noise("any", per=4, own=False, prompt=prompt) for prompt in range(3)]

    assert attribute(strata, seed=3) == attribute(strata, seed=3)
    assert len({attribute(strata, seed=seed).p for seed in range(20)}) > 1


def test_no_prompt_outweighs_another() -> None:
    """A prompt whose answers differ wildly at random does not hide three in which the condition parts the last bits."""
    fine = [noise("kernel", per=4, prompt=prompt) for prompt in range(3)]
    wild = stratum([(turn % 2, sample(parted(silent(plain(9)), 0, other=turn), prompt=9)) for turn in range(8)])

    assert attribute([*fine, wild]).blamed


def test_a_unit_weighs_the_same_however_often_it_was_asked() -> None:
    """Its distance to another is the mean over their answers, so a unit asked five times counts as one."""
    answers = [(turn % 2, sample(shaken(plain(), turn))) for turn in range(6)]
    often = Stratum(tuple((each,) * (1 + turn % 5) for turn, (_, each) in enumerate(answers)), stratum(answers).labels)

    assert attribute([often]).p == attribute([stratum(answers)]).p < 1.0


def test_units_of_several_answers_change_places_whole() -> None:
    """A unit's answers belong together: four units can be dealt in three ways, however many answers they hold."""
    pairs: dict[Hashable, list[list[Sample]]] = {
        label: [[sample(shaken(plain(), (label, each)))] * 5 for each in range(2)] for label in "ab"
    }
    dealt = Stratum.of(pairs)

    assert dealt.labels == ("a", "a", "b", "b")
    assert [len(unit) for unit in dealt.units] == [5] * 4
    assert attribute([dealt]).attainable == pytest.approx(1 / 3)
