"""One flipped token makes another text, unless the model comes back into a state that the text had been in."""

import argparse
import json
from functools import cache

import numpy as np
import pytest
from matplotlib.figure import Figure

from app.lab.butterfly import DEMONSTRATION
from app.lab.butterfly_agreement import BLOCK, Agreement, agreement
from app.lab.butterfly_chain import SUCCESSORS, Chain
from app.lab.demonstration import NotDemonstrable, Result

SMALL = ("--tokens", "40", "--flip-at", "10", "--prompts", "8")
FLIP = 10


def run(*words: str) -> Result:
    """The demonstration with these options."""
    parser = argparse.ArgumentParser()
    DEMONSTRATION.add_arguments(parser)
    parser.add_argument("--seed", type=int, default=0)
    return DEMONSTRATION.run(parser.parse_args(words))


@cache
def agreed(order: int, vocabulary: int) -> Agreement:
    return agreement(Chain(order, vocabulary, 3), prompts=200, tokens=100, flip_at=FLIP)


def test_equal_contexts_have_equal_successors() -> None:
    """The model is a table: what follows depends on prompt and context, wherever in an answer the context stands."""
    chain = Chain(2, 50, 1)
    context = np.full((3, 2), 7)

    assert all(np.array_equal(one, other) for one, other in zip(chain.step(context), chain.step(context), strict=True))
    answers = chain.decode(context, 40).tokens
    again = chain.decode(answers[:, 8:10], 30).tokens
    assert np.array_equal(again, answers[:, 10:])


def test_the_second_choice_is_another_token_and_never_ahead() -> None:
    """Best and runner-up differ, both are in the vocabulary, and the margin between them is not negative."""
    for vocabulary in (2, 5, 1000):
        step = Chain(1, vocabulary, 0).step(np.zeros((500, 1), np.int64))
        assert not np.any(step.best == step.runner_up)
        assert {*step.best, *step.runner_up} <= set(range(vocabulary))
        assert float(np.min(step.margin)) >= 0.0
        assert float(np.mean(step.margin)) == pytest.approx(8.0 / (min(SUCCESSORS, vocabulary) + 1), rel=0.15)


def test_without_a_flip_an_answer_repeats() -> None:
    """The control: decoding twice gives the same tokens, whatever the number of states."""
    chain, prompts = Chain(2, 1000, 0), np.arange(20).reshape(10, 2)

    assert np.array_equal(chain.decode(prompts, 50).tokens, chain.decode(prompts, 50).tokens)


@pytest.mark.parametrize(("order", "vocabulary"), [(3, 1000), (1, 16)])
def test_the_answers_part_at_the_flip_and_not_before(order: int, vocabulary: int) -> None:
    """Every position before it agrees in every pair, and the flipped one in none."""
    seen = agreed(order, vocabulary)

    assert np.all(seen.verbatim[:FLIP] == 1.0)
    assert seen.verbatim[FLIP] == 0.0


def test_with_many_states_the_rest_is_another_text() -> None:
    """A billion states: what follows the flip agrees as little as answers to different prompts, in either measure."""
    seen = agreed(3, 1000)

    assert seen.counts == (0, 0, 200)
    assert abs(seen.rest_verbatim - seen.unrelated_verbatim) < 0.01
    assert seen.rest_fuzzy < 0.02
    assert np.all(seen.fuzzy < 0.05)


def test_with_few_states_texts_meet_again_in_and_out_of_step() -> None:
    """Sixteen states: some pairs end in step, some shifted, so fuzzy agreement is well above verbatim agreement."""
    seen = agreed(1, 16)

    assert seen.counts.in_step > 0
    assert seen.counts.out_of_step > 0
    assert sum(seen.counts) == 200
    assert seen.rest_fuzzy > seen.rest_verbatim + 0.2
    assert seen.rest_verbatim > seen.unrelated_verbatim + 0.1


def test_a_pair_in_step_ends_alike_and_a_pair_apart_never_shares_a_token() -> None:
    """With one token of memory, the fates can be read off the tokens themselves."""
    seen = agreed(1, 16)
    fates = np.array(seen.fates)
    last = seen.plain.tokens[:, -1] == seen.flipped.tokens[:, -1]

    assert np.array_equal(last, fates == 0)
    pairs = zip(seen.plain.tokens, seen.flipped.tokens[:, FLIP:], seen.fates, strict=True)
    assert all(bool(set(plain) & set(rest)) == (fate != 2) for plain, rest, fate in pairs if fate)


def test_agreement_by_position_is_counted_token_by_token() -> None:
    """The shares are those of the two answers held side by side, and blocks of 16 follow the flip without a gap."""
    seen = agreed(2, 50)

    same = [float(np.mean(seen.plain.tokens[:, at] == seen.flipped.tokens[:, at])) for at in range(100)]
    assert list(seen.verbatim) == same
    assert seen.rest_verbatim == pytest.approx(np.mean(same[FLIP + 1 :]))
    assert list(seen.blocks) == [FLIP + 1 + BLOCK * number for number in range((100 - FLIP - 1) // BLOCK)]


def test_equal_options_give_an_equal_result() -> None:
    """A seed repeats the run; another one makes another model."""
    first, again, other = run(*SMALL), run(*SMALL), run(*SMALL, "--seed", "1")

    assert (first.sheets, first.findings, first.data) == (again.sheets, again.findings, again.data)
    assert first.sheets[1] != other.sheets[1]


def test_the_findings_carry_the_counts() -> None:
    """The sentences name where the answers part and how many pairs meet again, as the data has it."""
    result = run(*SMALL)
    pairs = result.data["models"][0]["pairs"]

    assert result.findings[0].startswith("The first difference is at 10 in 8 of 8 pairs.")
    assert f"{pairs['in_step'] + pairs['out_of_step']} of 8 pairs meet again" in result.findings[1]


def test_the_model_asked_for_comes_before_those_that_contrast_with_it() -> None:
    """Where it is one of them already, it is not shown twice."""
    assert [row[0] for row in run(*SMALL).sheets[0].rows] == [
        "order 2, 1,000 tokens",
        "order 2, 50 tokens",
        "order 1, 16 tokens",
    ]
    assert len(run(*SMALL, "--order", "1", "--vocabulary", "16").data["models"]) == 2


def test_the_data_is_json() -> None:
    """``--json`` can print it, even of a model whose states are beyond counting."""
    data = run(*SMALL, "--order", "8", "--vocabulary", "50000").data

    assert len(json.loads(json.dumps(data, allow_nan=False))["models"][0]["verbatim_share_by_position"]) == 40


def test_a_plot_has_both_agreements_of_every_model() -> None:
    """The upper axes show each position, the lower ones each block, for three models."""
    figure = Figure()

    run(*SMALL).draw(figure)

    upper, lower = figure.axes
    assert [len(np.asarray(line.get_ydata())) for line in upper.lines[:3]] == [40] * 3
    assert [len(np.asarray(line.get_ydata())) for line in lower.lines[:3]] == [1] * 3
    assert len(upper.get_legend_handles_labels()[1]) == 4


def test_a_flip_too_near_the_end_is_refused_by_name() -> None:
    """Less than one block after the flip leaves nothing to compare."""
    with pytest.raises(NotDemonstrable, match=r"--flip-at 30 leaves fewer than 16 of the --tokens 40"):
        run("--tokens", "40", "--flip-at", "30")


@pytest.mark.parametrize(
    "words", [("--order", "0"), ("--vocabulary", "1"), ("--tokens", "31"), ("--flip-at", "-1"), ("--prompts", "1")]
)
def test_options_out_of_range_are_refused_by_name(words: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    """The message names the option, and nothing runs."""
    with pytest.raises(SystemExit):
        run(*words)
    assert f"argument {words[0]}:" in capsys.readouterr().err
