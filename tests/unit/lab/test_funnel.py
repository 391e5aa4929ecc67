"""Each layer touches the logits as it should, and only a tie makes another text of a small change."""

import argparse
import json
from functools import cache

import numpy as np
import pytest
from matplotlib.figure import Figure

from app.lab.demonstration import Result
from app.lab.funnel import DEMONSTRATION
from app.lab.funnel_decoder import ARBITER, LARGEST, Setting, decode, effect, forks, margins_at, reach, refer
from app.lab.funnel_judges import judge
from app.lab.funnel_layers import Step, Traffic, exact_logits, experts_of, logits, quiet, slices_of
from app.lab.funnel_model import EXPERTS, FALLBACK, HIDDEN, TOPICS, Model, Numbers, on_grid
from app.lab.precision import DTYPES

SMALL = ("--prompts", "2", "--repeats", "3", "--tokens", "12")


def run(*words: str) -> Result:
    """The demonstration with these options."""
    parser = argparse.ArgumentParser()
    DEMONSTRATION.add_arguments(parser)
    parser.add_argument("--seed", type=int, default=0)
    return DEMONSTRATION.run(parser.parse_args(words))


@cache
def small() -> Result:
    return run(*SMALL)


@cache
def setting(dtype: str = "bfloat16", batch_max: int = 16) -> Setting:
    """3 prompts, 5 repeats of each, 24 tokens."""
    for_model, for_traffic, for_prompts = np.random.default_rng(7).spawn(3)
    model = Model.drawn(for_model, 24)
    traffic = Traffic.drawn(for_traffic, model, 7, batch_max)
    return Setting(model, traffic, model.states_of(for_prompts, 3), 5, 24, dtype)


def diverged(layers: tuple[str, ...], rule: str, dtype: str = "bfloat16") -> int:
    """How many of the 15 answers have a fork."""
    found = forks(setting(dtype), refer(setting(dtype), rule), decode(setting(dtype), layers, rule))
    return int(np.count_nonzero(found >= 0))


def some_features(rows: int = 6) -> Numbers:
    model = setting().model
    state = model.states_of(np.random.default_rng(1), rows)
    return model.features(state, model.expert(state))


def test_a_product_of_the_model_is_exact_in_any_order() -> None:
    """So the decoder itself adds no difference: forwards, backwards and for other numbers of rows, the bits agree."""
    features, weights = some_features(), setting().model.unembedding
    backwards = features[:, ::-1] @ weights[::-1]

    assert (exact_logits(setting().model, features) == backwards).all()
    assert (exact_logits(setting().model, features[2:3])[0] == backwards[2]).all()
    assert (on_grid(features) == features).all()
    assert (on_grid(weights) == weights).all()


def test_a_full_expert_sends_the_token_to_the_fallback() -> None:
    """L1: with 8 in the batch an expert takes 2. One ahead that wants it leaves room, two do not."""
    size = np.full(3, 8)
    ahead = np.array([[5, 1, 1], [5, 5, 1], [1, 1, 1]])

    found = experts_of(np.full(3, 5), Step(size, ahead, np.zeros((3, 4), np.intp)))

    assert found.tolist() == [5, FALLBACK, 5]


def test_alone_the_own_expert_has_room() -> None:
    """A batch of one never overflows."""
    own = np.arange(EXPERTS)

    assert (experts_of(own, quiet(EXPERTS)) == own).all()


def test_the_slices_follow_the_size_of_the_batch_alone() -> None:
    """L2: more requests, fewer slices."""
    assert slices_of(np.array([1, 2, 3, 16])).tolist() == [4, 2, 1, 1]


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_slices_and_arrival_change_the_last_bits_of_a_product(dtype: str) -> None:
    """L2 and L3: other bits than in the first order, all within reach of the exact sum."""
    model, features = setting().model, some_features()
    exact = exact_logits(model, features)
    near = reach(exact.max(axis=1, keepdims=True), dtype)
    orders = (([4] * 6, [0, 1, 2, 3]), ([1] * 6, [0, 1, 2, 3]), ([4] * 6, [3, 1, 0, 2]))

    found = [logits(model, features, np.array(cut), np.tile(order, (6, 1)), dtype) for cut, order in orders]

    assert found[0].dtype == DTYPES[dtype]
    assert all((other != found[0]).any() for other in found[1:])
    assert all((np.abs(one.astype(np.float64) - exact) < near).all() for one in found)


def test_a_split_product_adds_stored_partial_sums_in_order() -> None:
    """The definition, number by number: slices within a rank first, then the ranks as they arrived."""
    model, features, order = setting().model, some_features(1), [2, 0, 3, 1]
    kind = DTYPES["bfloat16"].type
    width = HIDDEN // 8

    ranks = []
    for rank in range(4):
        edges = [(2 * rank + part) * width for part in range(2)]
        parts = [kind(features[0, at : at + width] @ model.unembedding[at : at + width, 17]) for at in edges]
        ranks.append(parts[0] + parts[1])
    expected = ((ranks[2] + ranks[0]) + ranks[3]) + ranks[1]

    assert logits(model, features, np.array([2]), np.array([order]), "bfloat16")[0, 17] == expected


def test_the_traffic_of_a_step_is_the_same_for_every_run() -> None:
    """Layers on or off look at equal draws; another step has others, and nobody ahead is behind the batch's end."""
    traffic = setting().traffic
    one, again, other = traffic.step(3, 50), traffic.step(3, 50), traffic.step(4, 50)

    assert all((left == right).all() for left, right in zip(one, again, strict=True))
    assert (one.size != other.size).any()
    assert (np.count_nonzero(one.ahead >= 0, axis=1) < one.size).all()
    assert (np.sort(one.arrival, axis=1) == np.arange(4)).all()


@pytest.mark.parametrize("rule", [LARGEST, ARBITER])
def test_with_no_layer_on_every_repeat_is_equal(rule: str) -> None:
    """The control: ties alone do no harm."""
    assert diverged((), rule) == 0


@pytest.mark.parametrize("layer", ["L2", "L3"])
def test_a_rounding_layer_needs_ties_to_change_a_text(layer: str) -> None:
    """With L4 it does, without L4 and in float32 it does not, though it touches nearly all logits."""
    reference = refer(setting(), LARGEST)

    assert diverged((layer,), LARGEST) > 0
    assert diverged((layer,), ARBITER) == 0
    assert diverged((layer,), LARGEST, "float32") == 0
    assert effect(setting(), reference, (layer,)).touched_share > 0.5


def test_full_experts_change_a_text_without_any_tie() -> None:
    """L1 is no rounding error: fewer steps, but large, and neither the arbiter nor float32 helps."""
    reference = refer(setting(), LARGEST)
    large, small_change = (effect(setting(), reference, (layer,)) for layer in ("L1", "L2"))

    assert diverged(("L1",), ARBITER) > 0
    assert diverged(("L1",), ARBITER, "float32") > 0
    assert large.touched_share < small_change.touched_share
    assert large.typical > 20 * small_change.typical > 0


def test_a_fork_of_rounding_lies_at_a_near_tie() -> None:
    """The margin is at most twice the largest change: both logits can move. L1 forks at margins beyond that."""
    reference = refer(setting(), LARGEST)
    found = {
        layer: margins_at(setting(), reference, forks(setting(), reference, decode(setting(), (layer,), LARGEST)))
        for layer in ("L1", "L2", "L3")
    }
    changes = {layer: effect(setting(), reference, (layer,)).largest for layer in ("L2", "L3")}

    assert all(found[layer].max() <= 2 * changes[layer] for layer in ("L2", "L3"))
    assert found["L1"].max() > 2 * changes["L2"]


def test_in_batches_of_one_the_load_changes_nothing() -> None:
    """L1 and L2 come from the others; L3 does not."""
    alone = setting(batch_max=1)
    reference = refer(alone, LARGEST)

    assert effect(alone, reference, ("L1", "L2")) == (0.0, 0.0, 0.0)
    assert effect(alone, reference, ("L3",)).touched_share > 0.5


def test_a_fork_is_the_first_other_token() -> None:
    """Counted from 0, and -1 where all tokens agree."""
    reference = refer(setting(), LARGEST)
    answers = np.repeat(reference.answers, 5, axis=0)
    answers[3, [6, 9]] += 1

    assert forks(setting(), reference, answers).tolist() == [-1, -1, -1, 6, *[-1] * 11]


def test_three_judges_score_equal_similar_and_unrelated_answers() -> None:
    """One other token of four costs a quarter by edit distance, and by topics only if it has another topic."""
    references = np.array([[0, 1, 2, 3], [100, 101, 102, 103]])
    synonym, other = 3 + TOPICS, 0
    answers = np.array([[0, 1, 2, 3], [0, 1, 2, synonym], [100, 101, 102, 103], [100, 101, 102, other]])

    verbatim, fuzzy, semantic = judge(references, answers)

    assert verbatim.scores.tolist() == [1, 0, 1, 0]
    assert fuzzy.scores.tolist() == [1, 0.75, 1, 0.75]
    assert semantic.scores.tolist() == [1, 1, 1, 0.75]
    assert (verbatim.other_prompts, fuzzy.other_prompts, semantic.other_prompts) == (0, 0, 0)


def test_the_default_run_shows_the_funnel() -> None:
    """Nothing, then each alone, then all: L1 large, L2 and L3 tiny, and through L4 all of them another text."""
    runs = {"+".join(one["layers"]): one for one in run("--repeats", "3").data["runs"]}

    assert list(runs) == ["", "L1", "L2", "L3", "L1+L2+L3"]
    assert runs[""]["with_l4"]["diverged"] == 0
    assert all(runs[name]["with_l4"]["diverged"] > 0 for name in ("L1", "L2", "L3", "L1+L2+L3"))
    assert [runs[name]["without_l4"]["diverged"] for name in ("L2", "L3")] == [0, 0]
    assert runs["L1"]["change_typical_logits"] > 20 * runs["L2"]["change_typical_logits"]


def test_layers_that_are_off_are_not_run() -> None:
    """Without L4 there is one column of rates, and the judged answers are the arbiter's."""
    result = run(*SMALL, "--layers", "L3,L2")

    assert [one["layers"] for one in result.data["runs"]] == [[], ["L2"], ["L3"], ["L2", "L3"]]
    assert not any("L4 on" in column for column in result.sheets[0].columns)
    assert result.data["runs"][-1]["with_l4"] is None
    assert result.data["judges"][0]["scores"] == [1.0] * 6


def test_with_ties_alone_nothing_is_claimed() -> None:
    """Only the control is left, and it is said with its bound."""
    result = run(*SMALL, "--layers", "L4")

    assert len(result.data["runs"]) == 1
    assert "0 of 6, below" in result.findings[0]
    assert "All judges agree" in result.findings[-1]


def test_a_layer_without_a_cause_is_said_to_have_done_nothing() -> None:
    """In batches of one neither experts fill nor kernels change."""
    findings = run(*SMALL, "--batch-max", "1").findings

    assert [line for line in findings if "changed no logit" in line] == [
        f"{layer} changed no logit in this run: none of its causes came up." for layer in ("L1", "L2")
    ]
    assert not any(line.startswith("Diverged with L2 and L4") for line in findings)


def test_the_findings_carry_the_counts() -> None:
    """The last sentence counts all diverged answers as such, those that are alike too, and the table agrees."""
    result = run("--layers", "L3,L4", "--prompts", "2", "--repeats", "6", "--tokens", "16", "--seed", "3")
    last, scores = result.data["runs"][-1]["with_l4"], result.data["judges"][2]["scores"]
    alike = sum(score >= 0.8 and fork > 0 for score, fork in zip(scores, last["fork_tokens"], strict=True))

    assert 0 < alike < last["diverged"]
    assert f"L3 + L4: {last['diverged']} of 12" in result.findings[-1]
    assert f"{alike} of them reach 0.8" in result.findings[-1]
    assert result.sheets[1].rows[2][4] == f"{alike} of {last['diverged']}"


def test_equal_options_give_an_equal_result() -> None:
    """A seed repeats the run; another one has other answers."""
    again, other = run(*SMALL), run(*SMALL, "--seed", "1")

    assert (small().sheets, small().findings, small().data) == (again.sheets, again.findings, again.data)
    assert small().data["runs"] != other.data["runs"]


def test_the_data_is_json() -> None:
    """``--json`` can print it, one prompt without a score of other prompts included."""
    data = json.loads(json.dumps(run("--prompts", "1", "--tokens", "4").data, allow_nan=False))

    assert data["judges"][0]["other_prompts_median"] is None
    assert data["answers"] == 8


def test_a_plot_shows_changes_shares_and_agreement() -> None:
    """The agreement starts with every answer and never rises."""
    figure = Figure()

    small().draw(figure)

    changes, shares, agreement = figure.axes
    assert changes.get_yscale() == "log"
    assert len(shares.patches) == 2 * 5
    lines = [np.asarray(line.get_ydata()) for line in agreement.lines]
    assert len(lines) == 4
    assert all((np.diff(line) <= 0).all() for line in lines)
    assert agreement.get_legend() is not None


@pytest.mark.parametrize(
    "words",
    [("--layers", "L5"), ("--prompts", "0"), ("--repeats", "many"), ("--batch-max", "65"), ("--dtype", "float8")],
)
def test_options_out_of_range_are_refused_by_name(words: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    """The message names the option, and nothing runs."""
    with pytest.raises(SystemExit):
        run(*words)
    assert f"argument {words[0]}:" in capsys.readouterr().err
