"""The examples of forks: which are chosen, and how they read."""

import re

import pytest

from app.determinism.divergence import Closeness
from app.diagnose.investigation import Investigation
from app.diagnose.page_examples import CHARACTERS, EXAMPLES, examples, shown
from app.diagnose.report import Report
from app.diagnose.rungs import Rung
from app.diagnose.sample import Sample, Setting
from tests.unit.diagnose.made import PROMPTS, URL, choice, realistic, report, sample
from tests.unit.diagnose.parsed import Node, parse


def two(left: list[str], right: list[str], temperature: float = 0.0) -> Report:
    """Two answers to the first prompt, alone and in a batch of four, in tokens of these texts."""
    vocabulary = sorted({*left, *right})
    made = []
    for words, setting in ((left, Setting()), (right, Setting(size=4))):
        ids = [vocabulary.index(word) for word in words]
        answer = choice(ids, [0.125] * len(ids), [-0.5] * len(ids), words)
        made.append(Sample(0, setting, answer))
    return report(
        {Rung.ALONE: made[:1], Rung.BATCH: made[1:]}, investigation=Investigation(URL, temperature=temperature)
    )


def first(made: Report) -> Node:
    return parse("".join(shown(made, examples(made)[0])))


def test_an_example_shows_the_prompt_the_beginning_and_both_continuations() -> None:
    """The fork's token is marked on both sides, and the summary has condition, place, margin and kind."""
    page = first(two(["The ", "sea ", "is ", "old"], ["The ", "sea ", "was ", "young"]))

    assert [pre.text.removeprefix("\n") for pre in page.every("pre")] == [PROMPTS[0], "The sea ", "is old", "was young"]
    assert [mark.text for mark in page.every("mark")] == ["is ", "was "]
    assert [name.text for name in page.every("b")] == ["alone", "in a batch of 4"]
    assert page.one("summary").text == (
        "prompt 1, in a batch of 4 · fork at token 2 · margin 0.12 nats · a tie, which rounding turns"
    )


def test_an_answer_that_ends_where_the_other_goes_on_is_marked_there() -> None:
    """Its end is the fork."""
    page = first(two(["one ", "two"], ["one ", "two", " three"]))
    assert [mark.text for mark in page.every("mark")] == ["(ends)", " three"]


def test_answers_that_share_nothing_say_so() -> None:
    """Rather than show an empty beginning."""
    assert "(nothing is shared)" in first(two(["a"], ["b"])).text


def test_white_space_at_the_fork_is_kept() -> None:
    """A line break may be the token that differs, also as the first character of all."""
    page = first(two(["\n", "\n", "a"], ["\n", "b"]))

    assert page.every("pre")[1].text == "\n\n"
    assert [mark.text for mark in page.every("mark")] == ["\n", "b"]


def test_texts_without_tokens_part_at_a_character() -> None:
    """Where the server tells no tokens, there is no token's number and no margin, but the texts are shown."""
    samples = [
        Sample(0, setting, choice([])._replace(token_ids=None, tokens=None, text=text))
        for setting, text in ((Setting(), "the sea"), (Setting(size=2), "the sun"))
    ]
    page = first(report({Rung.ALONE: samples[:1], Rung.BATCH: samples[1:]}))

    assert [mark.text for mark in page.every("mark")] == ["e", "u"]
    assert page.one("summary").text == "prompt 1, in a batch of 2 · margin not known"


def test_sampled_answers_have_no_kind() -> None:
    """A sampled token need not be the likeliest, so its margin explains nothing."""
    page = first(two(["a", "b"], ["a", "c"], temperature=0.7))
    assert page.one("summary").text == "prompt 1, in a batch of 4 · fork at token 1 · margin 0.12 nats"


def test_conditions_take_turns_and_the_clearest_forks_come_first() -> None:
    """A clear fork is a fault's, and the most worth reading; a condition with many forks does not hide the others."""
    alone = [sample([0] * 20), sample([0] * 20)]
    ties = [sample([0] * at + [at] * (20 - at), setting=Setting(size=2), margin=0.1) for at in range(1, 15)]
    alone_tie = [sample([0] * 20, margin=0.1) for _ in range(3)]
    clear = sample([0] * 15 + [99] * 5, setting=Setting(size=2), margin=4.0)
    other = sample([0] * 16 + [98] * 4, setting=Setting(size=4), margin=4.0)
    chosen = examples(report({Rung.ALONE: [*alone_tie, *alone], Rung.BATCH: [*ties, clear, other]}))

    assert len(chosen) == EXAMPLES
    assert [example.condition for example in chosen[:3]] == ["in a batch of 2", "in a batch of 4", "in a batch of 2"]
    assert chosen[0].sample is clear
    assert chosen[0].kind is Closeness.CLEAR
    assert {example.kind for example in chosen[2:]} == {Closeness.TIE}


def test_a_fork_that_comes_again_is_shown_once() -> None:
    """Repeats of one fork, under any condition, are one example."""
    batched = [sample([0, 1], setting=Setting(size=size)) for size in (2, 2, 4)]
    assert len(examples(report({Rung.ALONE: [sample([0, 0])], Rung.BATCH: batched}))) == 1


@pytest.mark.parametrize("place", [0, 3 * CHARACTERS])
def test_long_answers_are_cut_away_from_the_fork(place: int) -> None:
    """The end of the beginning, and the beginning of the rest."""
    words = ["x"] * 4 * CHARACTERS
    page = first(two([*words[:place], "left", *words[place:]], [*words[:place], "right", *words[place:]]))

    assert [mark.text for mark in page.every("mark")] == ["left", "right"]
    assert all(len(pre.text) < CHARACTERS + 20 for pre in page.every("pre"))


def test_answers_beside_long_neighbours_stand_against_those_beside_short_ones() -> None:
    """The left side is named as what it was."""
    beside = [sample([0, tokens], 1, Setting(size=4, kv=kv)) for kv, tokens in ((16, 1), (640, 2))]
    names = [name.text for name in first(report({Rung.KV: beside})).every("b")]

    assert names == ["beside short neighbours", "beside long neighbours"]


def test_a_realistic_run_has_examples_of_its_forks() -> None:
    """Each at the token and with the margin that the run's forks have."""
    made = realistic()
    places = {(fork.prompt, fork.token) for fork in made.verdict.forks.forks}
    told = [example.fork for example in examples(made)]

    assert len({(fork.prompt, fork.token) for fork in told if fork is not None} & places) == len(places)
    assert all(re.search(r"fork at token \d+", "".join(shown(made, example))) for example in examples(made))
