"""The two plots of answers: how long they agree, and what each batch size does."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.diagnose.conditions import conditions
from app.diagnose.plot import Plot, prompt_name
from app.diagnose.plot_answers import agreement, batch_map, standing
from app.diagnose.rungs import Rung
from app.diagnose.sample import Sample, Setting
from tests.unit.diagnose.made import OTHER, PROMPTS, SIZES, TOKENS, choice, realistic, report, sample
from tests.unit.diagnose.parsed import Node, axis, parse

ANSWER = [0] * 8


def svg_of(plot: Plot) -> Node:
    assert plot.svg is not None
    return parse(plot.svg).one("svg")


def leaving(token: int, prompt: int = 0, size: int = 4, logprob: float = -0.5) -> Sample:
    """An answer that leaves the others at a token."""
    return sample(ANSWER[:token] + [9] * (len(ANSWER) - token), prompt, Setting(size=size), logprob=logprob)


@given(st.lists(st.integers(0, 8), min_size=1))
def test_who_still_stands_is_counted_token_by_token(forks: list[int]) -> None:
    """Up to its fork an answer agrees, from there on it does not; one that forks nowhere agrees to the end."""
    pairs = [(sample(ANSWER), leaving(fork)) for fork in forks]
    assert list(standing(pairs, 8)) == [sum(fork > at for fork in forks) for at in range(8)]


def test_one_answer_that_is_the_beginning_of_another_leaves_it_where_it_ends() -> None:
    """Its end is where they part."""
    assert standing([(sample(ANSWER), sample(ANSWER[:3]))], 8) == (1, 1, 1, 0, 0, 0, 0, 0)


def test_a_condition_has_its_line_and_its_row() -> None:
    """The line's share at a token is that of the answers that agree up to it; the table counts them."""
    batched = [leaving(2), leaving(8), leaving(6), leaving(6)]
    plot = agreement(report({Rung.ALONE: [sample(ANSWER), sample(ANSWER)], Rung.BATCH: batched}))
    svg = svg_of(plot)
    upright = axis(svg, "upright")
    line = svg.every("path")[1].attributes["d"]

    assert f"V{upright(75):.2f}" in line
    assert line.split("V")[-1].split("H")[0] == f"{upright(25):.2f}"
    assert plot.header == ("agree up to", "token 0", "token 1", "token 3", "token 5", "token 7")
    assert plot.rows == (
        ("alone, repeated", *["1 of 1"] * 5),
        ("in a batch of 4", "4 of 4", "4 of 4", "3 of 4", "3 of 4", "1 of 4"),
    )


def test_every_condition_of_a_run_has_a_line() -> None:
    """One for each, named with how many agree to the end; other replicas are named by their address."""
    made = realistic()
    plot = agreement(made)
    names = [text.text for text in svg_of(plot).one("g", "legend").every("text")]

    assert [name.partition(":")[0] for name in names] == [each.name for each in conditions(made.evidence)]
    assert [name.partition(": ")[2] for name in names] == [f"{row[-1]} agree to the end" for row in plot.rows]
    assert len(names) == 4 + len(SIZES)
    assert f"Replica 2 is {OTHER}." in plot.said
    assert axis(svg_of(plot), "across")(TOKENS) == pytest.approx(628, abs=0.1)


def test_where_tokens_are_not_told_characters_are_counted() -> None:
    """And the axis says so."""
    texts = [choice(ANSWER)._replace(token_ids=None, tokens=None, text=text) for text in ("abcd", "abcd", "abxx")]
    plot = agreement(report({Rung.ALONE: [Sample(0, Setting(), text) for text in texts]}))

    assert plot.header[1:] == ("character 0", "character 1", "character 2", "character 3")
    assert plot.rows == (("alone, repeated", "2 of 2", "2 of 2", "1 of 2", "1 of 2"),)
    assert "character of the answer, counted from 0" in svg_of(plot).text


def test_empty_answers_are_plotted_too() -> None:
    """An answer may have no token at all."""
    assert agreement(report({Rung.ALONE: [sample([]), sample([])]})).rows == (("alone, repeated", "1 of 1"),)


def test_without_anything_compared_there_is_no_plot() -> None:
    """The reason is said instead, that of the rung for batches."""
    made = report({Rung.ALONE: [sample(ANSWER)]}, missing={Rung.BATCH: "the budget is too short"})

    assert (agreement(made).svg, batch_map(made).svg) == (None, None)
    assert agreement(made).said == "There were no two answers to one prompt to compare."
    assert batch_map(made).said == "No batch was compared with an answer given alone: the budget is too short."


def test_a_cell_counts_other_tokens_and_the_largest_difference() -> None:
    """Each prompt and size has its own; up to the fork alone are logprobs compared."""
    alone = [sample(ANSWER, prompt) for prompt in (0, 1) for _ in range(3)]
    batched = [leaving(8, 0, 2), leaving(3, 0, 2, -0.75), leaving(8, 1, 2), leaving(0, 1, 8), leaving(8, 0, 8, -0.625)]
    plot = batch_map(report({Rung.ALONE: alone, Rung.BATCH: batched}))

    assert plot.header == ("prompt", "alone", "2", "8")
    assert plot.rows == (
        (PROMPTS[0], "0 of 2, 0 nats", "1 of 2, 0.25 nats", "0 of 1, 0.12 nats"),
        (PROMPTS[1], "0 of 2, 0 nats", "0 of 1, 0 nats", "1 of 1"),
    )


def test_a_darker_cell_has_the_larger_difference() -> None:
    """The map's colours follow its figures."""
    alone = [sample(ANSWER) for _ in range(2)]
    batched = [leaving(8, 0, size, -0.5 - moved) for size in (2, 4, 8) for moved in (0.05 * size, 0.01)]
    dark = [
        mark.number("fill-opacity")
        for mark in svg_of(batch_map(report({Rung.ALONE: alone, Rung.BATCH: batched}))).every("rect", "mark")
    ]

    assert dark == sorted(dark)
    assert len(set(dark)) == 4


def test_a_size_that_a_prompt_was_not_asked_in_is_empty() -> None:
    """It says so, as a climb may end anywhere."""
    alone = [sample(ANSWER, prompt) for prompt in (0, 1) for _ in range(2)]
    plot = batch_map(report({Rung.ALONE: alone, Rung.BATCH: [leaving(8, 0, 2), leaving(8, 1, 4)]}))

    assert [row[2:] for row in plot.rows] == [("0 of 1, 0 nats", "no answer"), ("no answer", "0 of 1, 0 nats")]


def test_a_long_prompt_is_named_by_its_number() -> None:
    """Its words are filler; those of the others are their names."""
    made = realistic()

    assert prompt_name(made, 0) == PROMPTS[0]
    assert prompt_name(made, len(PROMPTS)).startswith("Long prompt 1:")
