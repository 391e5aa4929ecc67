"""Full experts send tokens elsewhere, the neighbours decide which, and nothing but the routing makes a difference."""

import argparse
import json

import numpy as np
import pytest
from matplotlib.figure import Figure

from app.lab.demonstration import NotDemonstrable, Result
from app.lab.moe import DEMONSTRATION
from app.lab.moe_batches import Batch, Rules, compare, draw_batches, watch
from app.lab.moe_experts import HIDDEN, Layer, Request, outputs
from app.lab.moe_routing import DROPPED, OVERFLOWS, capacity, route

EXPERTS = 4
FALLBACK = EXPERTS
SMALL = ("--experts", "4", "--batch", "6", "--tokens", "5", "--trials", "3")


def run(*words: str) -> Result:
    """The demonstration with these options."""
    parser = argparse.ArgumentParser()
    DEMONSTRATION.add_arguments(parser)
    parser.add_argument("--seed", type=int, default=0)
    return DEMONSTRATION.run(parser.parse_args(words))


def setting(seed: int = 3) -> tuple[Layer, Request, tuple[Batch, ...]]:
    """A layer, a request of 6 tokens, and it at the end of 5 batches of 8."""
    for_layer, for_request, for_neighbours = np.random.default_rng(seed).spawn(3)
    layer = Layer.drawn(for_layer, EXPERTS)
    request = Request.drawn(for_request, layer, 6, 2)
    return layer, request, draw_batches(for_neighbours, layer, request, 7, 7, 5)


def test_a_full_expert_sends_the_later_token_to_the_fallback() -> None:
    """Both want expert 1, which takes one: the first in the batch has it."""
    ranked = np.array([[1, 0, 2, 3], [1, 2, 0, 3]])

    routing = route(ranked, 1, 1)

    assert routing.assigned.tolist() == [[1], [FALLBACK]]
    assert routing.overflowed == 1


def test_overflow_goes_to_the_next_best_expert_with_room_or_to_none() -> None:
    """The next-best passes over experts that are full or the token's already; dropped choices have no expert."""
    ranked = np.array([[1, 0, 2, 3], [1, 0, 2, 3], [1, 0, 2, 3]])

    assert route(ranked, 2, 1, "next").assigned.tolist() == [[1, 0], [2, 3], [FALLBACK, FALLBACK]]
    assert route(ranked, 2, 1, "drop").assigned.tolist() == [[1, 0], [DROPPED, DROPPED], [DROPPED, DROPPED]]


def test_two_overflows_of_a_token_go_to_two_experts() -> None:
    """Even where the next-best one has room for both."""
    ranked = np.tile([0, 1, 2, 3], (3, 1))

    assert route(ranked, 2, 2, "next").assigned.tolist() == [[0, 1], [0, 1], [2, 3]]


def test_without_a_capacity_every_token_has_its_own_experts() -> None:
    """Unlimited room, however many want the same."""
    ranked = np.tile([3, 1, 0, 2], (50, 1))

    routing = route(ranked, 2, None)

    assert (routing.assigned == [3, 1]).all()
    assert routing.overflowed == 0


def test_the_capacity_is_a_multiple_of_an_equal_share_rounded_up() -> None:
    """16 tokens with 2 experts each make 32 choices for 8 experts."""
    assert capacity(16, 8, 2, 1.0) == 4
    assert capacity(16, 8, 2, 1.1) == 5
    assert capacity(1, 8, 2, 1.25) == 1


@pytest.mark.parametrize("phase", ["decode", "prefill"])
def test_unlimited_capacity_changes_no_bit(phase: str) -> None:
    """So a difference under a capacity comes from the routing and not from the shape of a product (L2)."""
    layer, request, batches = setting()
    unlimited = Rules(2, None, phase, "fallback")
    alone = watch(layer, Batch(request, (), 0), unlimited)

    trials = [compare(alone, watch(layer, batch, unlimited)) for batch in batches]

    assert [trial.seen.outputs.tobytes() for trial in trials] == [alone.outputs.tobytes()] * 5
    assert not any(trial.moved.any() or trial.changes.any() for trial in trials)


@pytest.mark.parametrize("phase", ["decode", "prefill"])
@pytest.mark.parametrize("overflow", OVERFLOWS)
def test_exactly_the_tokens_that_moved_have_another_output(phase: str, overflow: str) -> None:
    """Under a capacity some move and some stay, in batches that differ by nothing but the neighbours' contents."""
    layer, request, batches = setting()
    rules = Rules(2, 1.0, phase, overflow)
    alone = watch(layer, Batch(request, (), 0), rules)

    trials = [compare(alone, watch(layer, batch, rules)) for batch in batches]

    moved = np.stack([trial.moved for trial in trials])
    assert (moved == np.stack([trial.changes.any(axis=1) for trial in trials])).all()
    assert 0 < moved.sum() < moved.size
    assert len({trial.seen.outputs.tobytes() for trial in trials}) > 1


def test_the_first_of_the_batch_never_moves_while_decoding() -> None:
    """It is admitted first, as it is when it is alone."""
    layer, request, batches = setting()
    rules = Rules(2, 1.0, "decode", "fallback")
    alone = watch(layer, Batch(request, (), 0), rules)

    assert alone.overflowed == 0
    for batch in batches:
        assert not compare(alone, watch(layer, batch._replace(place=0), rules)).moved.any()


def test_a_request_can_crowd_out_itself_in_a_prefill() -> None:
    """Its own tokens share a batch there, so even alone it may overflow."""
    layer, request, _ = setting()

    assert watch(layer, Batch(request, (), 0), Rules(2, 0.5, "prefill", "fallback")).overflowed > 0


def test_an_output_is_the_state_plus_the_weighted_experts() -> None:
    """The formula, in float64 and by matrix products."""
    layer, request, _ = setting()
    assigned = np.array([[0, 3], [1, FALLBACK], [2, DROPPED], [DROPPED, DROPPED], [3, 0], [FALLBACK, FALLBACK]])
    states, weights = request.states.astype(np.float64), request.weights.astype(np.float64)
    experts = [np.maximum(states @ up, 0) @ down for up, down in zip(layer.up, layer.down, strict=True)]
    experts.append(np.zeros((6, HIDDEN)))  # number -1

    expected = states + sum(
        weights[:, [slot]] * np.stack([experts[expert][token] for token, expert in enumerate(assigned[:, slot])])
        for slot in range(2)
    )

    assert outputs(layer, request, assigned) == pytest.approx(expected, abs=1e-5)
    assert (outputs(layer, request, assigned)[3] == request.states[3]).all()
    assert request.weights.sum(axis=1) == pytest.approx(1.0)


def test_the_default_run_shows_the_request_move_and_the_batch_repeat() -> None:
    """Alone nothing overflows; in every batch something moves; the whole batch repeats; unlimited nothing changes."""
    data = run().data

    assert data["alone"]["overflowed_choices"] == 0
    assert all(trial["moved_tokens"] and trial["change_max"] > 0.01 for trial in data["trials"])
    assert data["distinct_results_of_request"] > 1 == data["distinct_results_of_whole_batch"]
    assert not any(trial["moved_tokens"] or trial["change_max"] for trial in data["controls_unlimited"])
    assert data["sweep"][-1] == {"factor": None, "room": None, "moved_share": 0.0, "overflowed_share": 0.0}
    assert data["moved_share_in_front"] == 0.0


def test_the_findings_carry_the_counts() -> None:
    """The first sentence has the batch in which most tokens moved, and its figures."""
    result = run(*SMALL, "--capacity-factor", "1")
    worst = max(result.data["trials"], key=lambda trial: len(trial["moved_tokens"]))

    assert f"{len(worst['moved_tokens'])} of 5 tokens of your request had" in result.findings[0]
    assert f"moved by up to {worst['change_max']:.3g}" in result.findings[0]
    assert f"of {worst['argmax_changed_tokens']} changed" in result.findings[0]


@pytest.mark.parametrize(
    ("words", "why"), [(("--batch", "1"), "it was alone in each"), (("--capacity-factor", "64"), "had room")]
)
def test_where_nothing_moves_the_finding_says_so(words: tuple[str, str], why: str) -> None:
    """No phenomenon is claimed, and no table of moved tokens is shown."""
    result = run(*SMALL, *words)

    assert result.findings[0].startswith("No token of your request moved")
    assert why in result.findings[0]
    assert len(result.sheets) == 2


def test_equal_options_give_an_equal_result() -> None:
    """A seed repeats the run; another one draws other requests."""
    first, again, other = run(*SMALL), run(*SMALL), run(*SMALL, "--seed", "1")

    assert (first.sheets, first.findings, first.data) == (again.sheets, again.findings, again.data)
    assert first.data["alone"]["experts"] != other.data["alone"]["experts"]


def test_long_tables_are_cut_and_say_so() -> None:
    """Of many batches the first ten are shown, and how many more there are."""
    rows = run(*SMALL, "--trials", "14").sheets[0].rows

    assert rows[-2][0] == "4 more"
    assert len(rows) == 13


def test_the_data_is_json() -> None:
    """``--json`` can print it."""
    assert len(json.loads(json.dumps(run(*SMALL).data, allow_nan=False))["trials"]) == 3


def test_a_plot_shows_the_changes_and_the_capacities() -> None:
    """The image has a row per batch and a column per token; the curve falls to nothing with the capacity."""
    figure = Figure()

    run(*SMALL).draw(figure)

    left, right = figure.axes[:2]
    assert np.asarray(left.images[0].get_array()).shape == (3, 5)
    moved = np.asarray(right.lines[0].get_ydata())
    assert moved[0] > moved[-1] == 0.0
    assert right.get_legend() is not None


@pytest.mark.parametrize(
    "words",
    [("--experts", "1"), ("--capacity-factor", "nan"), ("--trials", "0"), ("--batch", "many"), ("--phase", "idle")],
)
def test_options_out_of_range_are_refused_by_name(words: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    """The message names the option, and nothing runs."""
    with pytest.raises(SystemExit):
        run(*words)
    assert f"argument {words[0]}:" in capsys.readouterr().err


@pytest.mark.parametrize("words", [("--top-k", "5", "--experts", "4"), ("--place", "9", "--batch", "8")])
def test_options_that_do_not_fit_each_other_are_refused_by_name(words: tuple[str, ...]) -> None:
    """Both options are in the message."""
    with pytest.raises(NotDemonstrable, match=rf"{words[0]} {words[1]} .*{words[2]}"):
        run(*words)
