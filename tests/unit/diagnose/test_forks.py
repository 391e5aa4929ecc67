"""The answer that stands for a group, the forks from it, and how close a choice must be for rounding to turn it."""

import math
from array import array
from collections.abc import Sequence
from itertools import permutations, product

import pytest

from app.determinism.divergence import NEAR_NATS, TIE_NATS, Closeness
from app.determinism.output import Choice
from app.diagnose.forks import CHANCE, Forks, clear_fork, closeness, gather, medoid, nearest, tie_limit
from app.diagnose.sample import Fork, Sample
from tests.unit.diagnose.samples import CLEAR, CLOSE, LENGTH, TIE, parted, plain, sample, shaken, silent


def forks(margins: Sequence[float | None], *, limit: float = TIE_NATS, exposed: int = 0, tokens: int = 0) -> Forks:
    """A run with forks of these margins."""
    return Forks(tuple(Fork(0, place, (), each) for place, each in enumerate(margins)), None, limit, exposed, tokens)


@pytest.mark.parametrize("place", range(4))
def test_the_odd_one_out_is_never_the_reference(place: int) -> None:
    """Of three that nearly agree and one that forks early, one of the three stands for the group, in whatever order."""
    group = [sample(shaken(plain(), key)) for key in range(3)]
    group.insert(place, odd := sample(parted(plain(), 1)))

    assert medoid(group) is not odd


def test_the_reference_is_the_answer_in_the_middle() -> None:
    """Of answers that lie in a row, the middle one is nearest to the others."""
    row = [_lowered(plain(), nats) for nats in (0.0, 0.25, 0.5)]
    for order in permutations(map(sample, row)):
        assert medoid(order).choice is row[1]


def test_the_first_of_equal_answers_is_the_reference() -> None:
    """Equal answers, and two that nobody else could judge: the first one."""
    equal = [sample(plain()) for _ in range(3)]
    two = [sample(plain()), sample(parted(plain()))]

    assert medoid(equal) is equal[0]
    assert medoid(two) is two[0]
    assert medoid(two[::-1]) is two[1]


def test_candidates_are_measured_by_all_the_samples() -> None:
    """Of two that contradict each other, the one that others are near to is chosen, whichever of the two is first."""
    good, odd = sample(plain()), sample(parted(plain(), 1))
    others = [sample(shaken(plain(), key)) for key in range(3)]

    assert nearest([odd, good], [odd, good, *others]) is good
    assert nearest([odd], [odd, good, *others]) is odd


def test_no_answers_have_no_reference() -> None:
    """There is nothing to choose from."""
    with pytest.raises(ValueError, match="empty"):
        medoid([])


def test_ties_of_sixteen_bits_reach_two_steps_at_least() -> None:
    """With bfloat16's noise a tie may be as wide as the noise of both tokens; never below two steps of rounding."""
    assert tie_limit(0.03) == TIE_NATS
    assert tie_limit(0.125) == TIE_NATS
    assert tie_limit(0.2) == pytest.approx(0.4)


def test_ties_never_reach_beyond_what_is_near() -> None:
    """However noisy an engine is, a choice that was not near is not rounding's."""
    assert tie_limit(0.75) == tie_limit(40.0) == NEAR_NATS


def test_ties_of_float32_are_as_narrow_as_its_noise() -> None:
    """A thousandth of a nat is a clear lead where answers differ by 1e-5."""
    assert tie_limit(1e-5) == 2e-5
    assert closeness(1e-3, tie_limit(1e-5)) is not Closeness.TIE


def test_without_noise_ties_are_those_of_sixteen_bits() -> None:
    """Where no logprob differs, nothing is known of the engine's rounding."""
    assert tie_limit(None) == TIE_NATS


def test_closeness_has_three_steps_and_an_unknown() -> None:
    """Up to the limit a tie, up to a nat near, beyond it clear; a limit above a nat leaves no near."""
    limit = 0.25

    assert [closeness(margin, limit) for margin in (0.0, limit, 0.26, NEAR_NATS, 1.01, None)] == [
        Closeness.TIE,
        Closeness.TIE,
        Closeness.NEAR,
        Closeness.NEAR,
        Closeness.CLEAR,
        Closeness.UNKNOWN,
    ]
    assert [closeness(margin, 1.5) for margin in (1.4, 1.6)] == [Closeness.TIE, Closeness.CLEAR]


def test_a_clear_fork_has_a_clear_margin_on_either_side() -> None:
    """One side that was sure is enough; a tie on both, or no fork at all, is not."""
    sure, close = sample(parted(plain(), CLOSE, 1, margin=CLEAR)), sample(parted(plain(), CLOSE, 2, margin=TIE))

    assert clear_fork(sure, close)
    assert clear_fork(close, sure)
    assert not clear_fork(close, sample(plain()))
    assert not clear_fork(sure, sample(shaken(sure.choice, "x")))
    assert not clear_fork(sample(silent(sure.choice)), sample(silent(close.choice)))


def test_every_fork_is_counted_once() -> None:
    """Answers that part in the same way at the same place are one fork; another place or another token is another."""
    base = [sample(plain()) for _ in range(12)]
    same = [sample(parted(plain(), CLOSE, 1)) for _ in range(3)]
    other = [sample(parted(plain(), CLOSE, 2)), sample(parted(plain(), CLOSE + 1, 1))]

    gathered = gather([[*base, *same, *other]])

    assert [(fork.token, fork.margin) for fork in gathered.forks] == [(CLOSE, TIE), (CLOSE, TIE), (CLOSE + 1, CLEAR)]
    assert (gathered.count(Closeness.TIE), gathered.count(Closeness.CLEAR), gathered.judged) == (2, 1, 3)


def test_forks_of_other_prompts_are_other_forks() -> None:
    """Each group answers its own prompt; an empty one says nothing."""
    groups = [[sample(plain(p), prompt=p)] * 2 + [sample(parted(plain(p)), prompt=p)] for p in range(3)]

    assert [fork.prompt for fork in gather([*groups, []]).forks] == [0, 1, 2]


def test_noise_is_that_of_shared_tokens_that_moved() -> None:
    """Equal logprobs say nothing of the rounding, nor do those after a fork; 99 of 100 differences are within it."""
    one = sample(plain())
    forked = parted(_lowered(plain(), 0.25, at=0), 2)
    wild = forked._replace(logprobs=array("d", [*(forked.logprobs or ())[:3], *[-30.0] * (LENGTH - 3)]))

    assert gather([[one, one, sample(wild)]]).noise == 0.25
    assert gather([[one, one]]).noise is None

    rare = [_lowered(plain(), 2.0**-7, at=place % LENGTH) for place in range(99)]
    most = gather([[one] * 100 + list(map(sample, [*rare, _lowered(plain(), 0.5, at=0)]))])
    assert most.noise == 2.0**-7


def test_exposed_tokens_are_those_of_the_references() -> None:
    """One reference per group; a margin within the limit is exposed, one that is not known is no token."""
    holed = plain()._replace(margins=array("d", [math.nan, *(plain().margins or ())[1:]]))
    gathered = gather([[sample(plain())] * 3, [sample(holed, prompt=1)] * 2])

    assert (gathered.exposed, gathered.tokens) == (2, 2 * LENGTH - 1)


def test_a_margin_at_the_limit_is_exposed() -> None:
    """As a fork there would be a tie."""
    edge = plain()._replace(margins=array("d", [TIE_NATS] * 3 + [CLEAR] * (LENGTH - 3)))

    assert gather([[sample(edge)] * 2]).exposed == 3


def test_an_answer_that_is_compared_with_nothing_exposes_nothing() -> None:
    """One answer to a prompt: that it does not fork says nothing."""
    assert gather([[sample(plain())]]).tokens == 0


def test_without_margins_nothing_is_exposed() -> None:
    """Tokens alone: forks are seen, and none can be judged."""
    gathered = gather([[sample(silent(plain())), sample(silent(plain())), sample(silent(parted(plain())))]])

    assert (gathered.tokens, len(gathered.forks), gathered.judged) == (0, 1, 0)
    assert gathered.by_chance == 1.0


@pytest.mark.parametrize(("ties", "clear"), [(0, 3), (1, 2), (2, 2), (3, 0), (4, 1)])
def test_by_chance_is_the_chance_of_so_many_ties_or_more(ties: int, clear: int) -> None:
    """By counting all outcomes: each fork falls on a close choice on both sides with the square of their share."""
    run = forks([TIE] * ties + [CLEAR] * clear + [None], exposed=30, tokens=100)

    chance = 0.0
    for outcome in product((True, False), repeat=ties + clear):
        if sum(outcome) >= ties:
            chance += math.prod(0.3**2 if tie else 1 - 0.3**2 for tie in outcome)
    assert run.by_chance == pytest.approx(chance)


def test_ties_alone_are_not_chance_and_none_always_is() -> None:
    """Two ties where one token in seven was close are beyond chance; no tie at all never is."""
    assert forks([TIE] * 2, exposed=1, tokens=7).by_chance <= CHANCE
    assert forks([CLEAR] * 9, exposed=1, tokens=7).by_chance == pytest.approx(1.0)
    assert forks([TIE] * 9, exposed=7, tokens=7).by_chance == 1.0
    assert forks([], exposed=1, tokens=7).by_chance == 1.0


def test_forks_are_judged_by_the_engines_own_noise() -> None:
    """One margin is a tie where noise is that of bfloat16, and none in float32."""
    margin = 0.125
    coarse = [sample(plain()), sample(plain()), _forked_with_noise(margin, 2.0**-5)]
    fine = [sample(plain()), sample(plain()), _forked_with_noise(margin, 2.0**-17)]

    assert gather([coarse]).count(Closeness.TIE) == 1
    assert gather([fine]).count(Closeness.TIE) == 0


def _lowered(choice: Choice, nats: float, at: int | None = None) -> Choice:
    """With all logprobs lower by so much, or the one at a place."""
    places = range(LENGTH) if at is None else (at,)
    lowered = array("d", choice.logprobs or ())
    for place in places:
        lowered[place] -= nats
    return choice._replace(logprobs=lowered)


def _forked_with_noise(margin: float, noise: float) -> Sample:
    return sample(parted(_lowered(plain(), noise, at=0), CLOSE, margin=margin))
