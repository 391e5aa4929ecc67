"""How far two answers are apart, and where they part."""

import math
from array import array

import pytest

from app.determinism.output import Choice
from app.diagnose.sample import (
    DISTANCE_POWER,
    Fork,
    Setting,
    deltas_of,
    distance,
    fork_of,
    largest_delta,
    prefix_distance,
    same_bits,
    same_tokens,
    shared_tokens,
)
from tests.unit.diagnose.samples import CLEAR, CLOSE, LENGTH, TIE, parted, plain, sample, shaken, silent, told

FOUR = told([1, 2, 3, 4], logprobs=[-0.5] * 4, margins=[2.0] * 4)


def moved(*nats: float) -> Choice:
    """The same tokens, with logprobs that much lower."""
    return told([1, 2, 3, 4], logprobs=[-0.5 - each for each in nats], margins=[2.0] * 4)


def forking(at: int, left: float, right: float) -> tuple[Choice, Choice]:
    """Two answers of four tokens that part at one of them, with these margins there, and equal bits before."""
    sides = []
    for other, margin in ((0, left), (1, right)):
        margins = [2.0] * 4
        margins[at] = margin
        sides.append(parted(told([1, 2, 3, 4], logprobs=[-0.5] * 4, margins=margins), at, other))
    return sides[0], sides[1]


def apart(one: Choice, other: Choice) -> float:
    """The distance of two answers to one prompt."""
    return distance(sample(one), sample(other))


def test_equal_answers_have_no_distance() -> None:
    """The same tokens with the same logprobs to the last bit: 0, and so does an answer to itself."""
    assert apart(plain(), plain()) == 0.0
    assert same_bits(sample(plain()), sample(plain()))


def test_other_bits_of_the_same_tokens_are_a_distance() -> None:
    """Every shared token counts with its difference to the power, and the mean is taken over all of them."""
    one, other = sample(FOUR), sample(moved(0, 0.0625, 0, 0.5))

    assert distance(one, other) == pytest.approx((0.0625**DISTANCE_POWER + 0.5**DISTANCE_POWER) / 4)
    assert same_tokens(one, other)
    assert not same_bits(one, other)
    assert largest_delta(one, other) == 0.5
    assert deltas_of(one, other) == [0, 0.0625, 0, 0.5]


def test_a_difference_counts_up_to_one_nat() -> None:
    """However wild, no difference makes a distance above 1."""
    assert apart(FOUR, moved(50, 50, 50, 50)) == 1.0
    assert apart(FOUR, moved(1, 1, 1, 1)) == 1.0


def test_a_distance_is_the_same_from_both_sides() -> None:
    """Neither answer is the first."""
    one, other = shaken(plain(), "a"), parted(shaken(plain(), "b"), CLOSE + 1, margin=0.25)

    assert apart(one, other) == apart(other, one) > 0.0


def test_a_fork_counts_with_both_margins() -> None:
    """Where answers part the lead changed hands, so the difference is at least the sum of what both led by."""
    one, other = forking(2, 0.125, 0.25)

    assert apart(one, other) == pytest.approx(0.375**DISTANCE_POWER / 3)


def test_an_exact_tie_on_both_sides_is_still_a_fork() -> None:
    """No margin on either side: something broke the tie in two ways, and the distance is not 0."""
    one, other = forking(0, 0.0, 0.0)

    assert 0.0 < apart(one, other) < 1.0
    assert apart(one, other) == pytest.approx((2.0**-4) ** DISTANCE_POWER)


def test_a_fork_of_unknown_margin_counts_fully() -> None:
    """Nothing says that it was close."""
    one, other = forking(1, math.nan, math.nan)

    assert apart(one, other) == pytest.approx(1 / 2)


def test_one_known_margin_is_enough() -> None:
    """Where one side tells no margin, the other's counts alone."""
    one, other = forking(1, math.nan, 0.5)

    assert apart(one, other) == pytest.approx(0.5**DISTANCE_POWER / 2)


def test_nothing_counts_after_a_fork() -> None:
    """What follows another token answers another prompt: neither its logprobs nor its margins change anything."""
    one, other = parted(plain(), CLOSE, 1), parted(plain(), CLOSE, 2)
    wild = other._replace(
        logprobs=array("d", [*(other.logprobs or ())[: CLOSE + 1], *[-40.0] * (LENGTH - CLOSE - 1)]),
        margins=array("d", [*(other.margins or ())[: CLOSE + 1], *[0.0] * (LENGTH - CLOSE - 1)]),
    )

    assert apart(one, wild) == apart(one, other)
    assert deltas_of(sample(one), sample(wild)) == [0.0] * CLOSE


def test_an_answer_that_ends_earlier_parts_at_its_end() -> None:
    """The start of a longer answer: they share all of it, and the margin is the one that the longer saw there."""
    short = told([1, 2], logprobs=[-0.5] * 2, margins=[2.0] * 2)
    long = told([1, 2, 3], logprobs=[-0.5] * 3, margins=[2.0, 2.0, 0.5])

    assert shared_tokens(sample(short), sample(long)) == 2
    assert fork_of(sample(short), sample(long)) == Fork(prompt=0, token=2, taken=("3",), margin=0.5)
    assert apart(short, long) == pytest.approx(0.5**DISTANCE_POWER / 3)


def test_before_a_fork_the_fork_does_not_count() -> None:
    """What moved an answer before it took another token: the same whether it took one or not."""
    moved_before = shaken(plain(), "kernel")

    assert prefix_distance(sample(plain()), sample(parted(plain(), CLOSE))) == 0.0
    assert prefix_distance(sample(plain()), sample(parted(moved_before, LENGTH - 1))) == pytest.approx(
        prefix_distance(*(sample(told(range(LENGTH - 1), logprobs=each.logprobs)) for each in (plain(), moved_before)))
    )
    assert prefix_distance(sample(plain()), sample(moved_before)) == apart(plain(), moved_before) > 0.0
    assert prefix_distance(sample(silent(plain())), sample(silent(parted(plain())))) == 0.0


def test_without_logprobs_only_equality_is_known() -> None:
    """Tokens alone: 0 or 1, whichever side lacks the logprobs, and no difference in nats."""
    for one, other in ((silent(plain()), silent(plain())), (plain(), silent(plain()))):
        assert apart(one, other) == 0.0
        assert largest_delta(sample(one), sample(other)) is None
        assert same_bits(sample(one), sample(other))
    for one, other in ((silent(plain()), parted(silent(plain()))), (plain(), silent(parted(plain())))):
        assert apart(one, other) == 1.0
        assert not same_bits(sample(one), sample(other))


def test_an_unknown_logprob_is_left_out() -> None:
    """A token whose logprob one side does not tell says nothing; the others still do."""
    holed = told([1, 2, 3, 4], logprobs=[-0.5, math.nan, -0.5, -0.75], margins=[2.0] * 4)

    assert deltas_of(sample(FOUR), sample(holed)) == [0.0, 0.0, 0.25]
    assert apart(FOUR, holed) == pytest.approx(0.25**DISTANCE_POWER / 3)


def test_logprobs_that_are_all_unknown_make_no_distance() -> None:
    """The same tokens, and no figure to compare."""
    blind = told([1, 2], logprobs=[math.nan] * 2, margins=[2.0] * 2)

    assert apart(blind, blind) == 0.0
    assert largest_delta(sample(blind), sample(blind)) is None


def test_a_setting_is_alone_and_cold_unless_said() -> None:
    """On the first server, with nobody beside, and nothing left to chance."""
    assert Setting() == Setting(size=1, content=0, kv=0, warm=False, replica=0, seeded=True)


def test_token_ids_decide_over_their_texts() -> None:
    """Two ids may read alike, and are two tokens."""
    one, other = told([5, 6], tokens=["a", "b"], text="ab"), told([5, 7], tokens=["a", "b"], text="ab")

    assert not same_tokens(sample(one), sample(other))
    assert shared_tokens(sample(one), sample(other)) == 1


def test_token_texts_decide_where_ids_are_not_told() -> None:
    """One text cut in two ways is two answers; equal cuts are one."""
    one, other = told(tokens=["in", "side"], text="inside"), told(tokens=["ins", "ide"], text="inside")

    assert not same_tokens(sample(one), sample(other))
    assert same_tokens(sample(one), sample(told(tokens=["in", "side"], text="inside")))
    assert fork_of(sample(one), sample(other)) == Fork(prompt=0, token=0, taken=("in", "ins"), margin=None)


def test_characters_decide_where_no_token_is_told() -> None:
    """Two texts: they share so many characters, and there is no fork of tokens to speak of."""
    one, other = told(text="a clock"), told(text="a clerk")

    assert same_tokens(sample(one), sample(told(text="a clock")))
    assert not same_tokens(sample(one), sample(other))
    assert shared_tokens(sample(one), sample(other)) == 4
    assert fork_of(sample(one), sample(other)) is None


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (told([1, 2], tokens=["a", "b"], text="ab"), told(tokens=["a", "b"], text="ab")),
        (told([1, 2], text="ab"), told(text="ab")),
        (told([1, 2], text="ab", logprobs=[-1, -1]), told(tokens=["a", "b"], text="ab", logprobs=[-2, -2])),
        (told(tokens=["a", "b"], text="ab"), told(text="ab")),
    ],
    ids=["ids beside texts", "ids beside a text", "ids beside texts, with logprobs", "texts beside a text"],
)
def test_what_only_one_side_tells_makes_no_difference(one: Choice, other: Choice) -> None:
    """A server that tells token ids beside one that does not: they are compared by the best that both tell."""
    assert same_tokens(sample(one), sample(other))
    assert apart(one, other) == 0.0
    assert fork_of(sample(one), sample(other)) is None


def test_texts_of_other_servers_do_differ() -> None:
    """Where one side tells ids and the other texts of tokens, another text is another answer; no more is known."""
    one = told([1, 2], text="ab", logprobs=[-1, -1], margins=[1, 1])
    other = told(tokens=["a", "c"], text="ac", logprobs=[-1, -1], margins=[1, 1])

    assert apart(one, other) == 1.0
    assert deltas_of(sample(one), sample(other)) == []
    assert fork_of(sample(one), sample(other)) is None


def test_a_fork_tells_place_tokens_and_the_larger_margin() -> None:
    """Both tokens in one order whichever side is first, and the margin of the side that was surer."""
    one, other = forking(2, TIE, CLEAR)
    left, right = sample(one, prompt=3), sample(other, prompt=3)

    assert fork_of(left, right) == fork_of(right, left) == Fork(3, 2, ("1003", "3"), CLEAR)


def test_equal_tokens_have_no_fork() -> None:
    """Other logprobs alone are none."""
    assert fork_of(sample(plain()), sample(shaken(plain(), "x"))) is None
