"""One sum has as many results as orders, a fixed slice size keeps bits as the cache grows, and layers add it up."""

import argparse
import json
import math
from collections.abc import Sequence

import numpy as np
import pytest
from matplotlib.figure import Figure

from app.lab.demonstration import NotDemonstrable, Result
from app.lab.precision import SUMMED, Array, changed, raw, rounded
from app.lab.reduction import DEMONSTRATION
from app.lab.reduction_layers import orders_of, stack
from app.lab.reduction_operators import (
    Inputs,
    attention,
    effects_of,
    in_slices,
    in_stored_slices,
    matmul,
    rms_norm,
)
from app.lab.reduction_split_kv import grown, lengths_of, split_kv, totals_by_load
from app.lab.reduction_sums import ORDERS, sums, sums_of

SMALL = ("--size", "64,512", "--width", "32", "--layers", "6", "--split-size", "32")


def run(*words: str) -> Result:
    """The demonstration with these options."""
    parser = argparse.ArgumentParser()
    DEMONSTRATION.add_arguments(parser)
    parser.add_argument("--seed", type=int, default=0)
    return DEMONSTRATION.run(parser.parse_args(words))


def dice() -> np.random.Generator:
    return np.random.default_rng(7)


def weights(count: int, name: str = "float32") -> Array:
    return rounded(np.exp(dice().standard_normal(count)), name)


@pytest.mark.parametrize("name", SUMMED)
def test_the_order_of_one_sum_changes_its_bits(name: str) -> None:
    """The same 4096 numbers, and more than one result."""
    assert sums_of(dice().uniform(0.0, 1.0, 4096), name).distinct > 1


def test_numbers_that_add_up_exactly_have_one_sum() -> None:
    """The control: 64 ones need no rounding in any order, and the finding says that no difference was seen."""
    row = sums_of(np.ones(64), "bfloat16")

    assert row.distinct == 1
    assert [row.error(total) for total in row.by_order] == [0.0] * len(ORDERS)


def test_a_narrow_accumulator_stops_growing_where_a_tree_does_not() -> None:
    """In bfloat16 adding ones in order ends at 256, where the next one is half a step; the tree reaches the sum."""
    row = sums_of(np.ones(1024), "bfloat16")
    in_order, *_, tree = map(float, row.by_order)

    assert in_order == 256.0
    assert tree == row.exact == 1024.0


def test_a_sum_out_of_range_is_null_in_json() -> None:
    """The tree of 262144 numbers leaves float16; JSON has no infinity."""
    part = sums(("float16",), (1 << 18,), dice())

    assert part.data["sums"][0]["error_relative"]["tree"] is None
    assert "tree left the range of the format" in part.findings[0]
    assert json.dumps(part.data, allow_nan=False)


def test_a_fixed_size_keeps_every_closed_slice_and_a_fixed_number_keeps_none() -> None:
    """At each growth of the cache the closed partial sums of the one have their old bits, those of the other do not."""
    lengths = lengths_of(4, 64)
    first, *rest = grown(weights(max(lengths)), lengths, 4, 64)

    assert first.by_size.closed == 0
    for row in rest:
        assert row.by_size.kept == row.by_size.closed > 0
        assert row.by_number.kept == 0 < row.by_number.closed


def test_a_fixed_number_keeps_bits_only_where_its_boundaries_stay() -> None:
    """The control: 1023 and 1024 tokens in four slices have the same inner boundaries."""
    _, row = grown(weights(1024), (1023, 1024), 4, 256)

    assert row.by_number.edges[:-1] == (0, 256, 512, 768)
    assert row.by_number.kept == row.by_number.closed == 3


def test_the_load_that_picks_the_number_of_slices_picks_the_sum() -> None:
    """One cache, several numbers of slices, more than one sum; the load of 16 is the sum in one slice."""
    loads = totals_by_load(weights(2049), (1, 2, 4, 8, 16))

    assert [slices for _, slices, _ in loads] == [16, 8, 4, 2, 1]
    assert len({int(raw(total)) for _, _, total in loads}) > 1


def test_the_finding_counts_what_was_kept() -> None:
    """The sentence has the sums of the rows."""
    part = split_kv("float32", 4, 64, dice())
    rows = part.data["split_kv"]["lengths"]
    kept, closed = (sum(row["fixed_size"][key] for row in rows) for key in ("kept", "closed_before"))

    assert f"with slices of 64 tokens, {kept} of {closed}." in part.findings[0]
    assert kept == closed


def test_operators_are_what_their_formulas_say() -> None:
    """Against float64: the norm has mean square 1, the product is the product, attention is a weighted mean."""
    x, w, s, v = (dice().standard_normal(shape) for shape in ((3, 40), (5, 40), (3, 50), (4, 50)))
    whole = in_slices(1)
    softmax = np.exp(s) / np.exp(s).sum(axis=-1, keepdims=True)

    assert np.mean(rms_norm(x, whole) ** 2, axis=-1) == pytest.approx(1.0, rel=1e-5)
    assert matmul(x, w, whole) == pytest.approx(x @ w.T, rel=1e-4, abs=1e-5)
    assert attention(s, v, whole) == pytest.approx(softmax @ v.T, rel=1e-4, abs=1e-5)


def inputs(name: str) -> Inputs:
    shapes = ((16, 64), (64, 64), (16, 256), (16, 256))
    random = dice()
    return Inputs(*(rounded(random.standard_normal(shape), name) for shape in shapes))


def test_each_operator_depends_on_the_split_and_not_on_the_repeat() -> None:
    """In float32 four slices change all three; one slice against one slice changes none."""
    assert all(effect.changed > 0 for effect in effects_of(inputs("float32"), "float32", 4))
    assert [effect.changed for effect in effects_of(inputs("float32"), "float32", 1)] == [0, 0, 0]


def test_partial_sums_stored_in_16_bits_change_far_more() -> None:
    """Rounding the partial sums of a product moves more elements than their order does."""
    effects = {effect.operator: effect for effect in effects_of(inputs("bfloat16"), "bfloat16", 4)}

    assert effects["MatMul, 16-bit partial sums"].changed > 10 * effects["MatMul"].changed
    assert effects["MatMul, 16-bit partial sums"].changed > 0


def test_stored_partial_sums_are_rounded_before_they_are_added() -> None:
    """1 and an eighth of a step in bfloat16: the slice that holds the small part alone keeps it, the other loses it."""
    tiny = float(rounded(2.0**-10, "bfloat16"))
    reduce = in_stored_slices(2, "bfloat16")

    assert float(reduce(np.array([1.0, tiny, 0.0, tiny], np.float32))) == 1.0 + tiny
    assert float(in_slices(2)(np.array([1.0, tiny, 0.0, tiny], np.float32))) == 1.0 + 2 * tiny


def test_the_error_grows_over_the_layers() -> None:
    """Every order ends further from float64 than it was after the first layer."""
    run_of = stack("bfloat16", 12, 48, orders_of("bfloat16", 4), dice())

    assert [layer.number for layer in run_of] == list(range(1, 13))
    for order, error in run_of[-1].errors.items():
        assert error > 2 * run_of[0].errors[order] > 0


def test_one_other_order_reaches_the_whole_state() -> None:
    """After the layers more elements differ than after the first; the same order twice differs nowhere."""
    orders = orders_of("float16", 4)
    run_of = stack("float16", 12, 48, orders, dice())
    same = stack("float16", 3, 48, (orders[0], orders[0]._replace(name="again")), dice())

    stored = [layer.gaps["4 stored chunks"].changed for layer in run_of]
    assert 0 < stored[0] < stored[-1]
    assert [layer.gaps["again"].changed for layer in same] == [0, 0, 0]


def test_a_wider_format_is_nearer_to_the_truth() -> None:
    """float32 ends a thousand times nearer than float16, and float16 nearer than bfloat16."""
    ends = {name: stack(name, 6, 48, orders_of(name, 4), dice())[-1].errors["in order"] for name in SUMMED}

    assert 1000 * ends["float32"] < ends["float16"] < ends["bfloat16"]


def test_float32_has_no_stored_chunks_of_its_own() -> None:
    """Its partial sums are in the format already, so the table has an empty cell there."""
    result = run(*SMALL, "--dtype", "float32,bfloat16")
    sheet = result.sheets[-1]

    assert {row[0]: row[-1] == "" for row in sheet.rows} == {"float32": True, "bfloat16": False}
    assert sheet.columns[-1] == "differ 4 stored chunks"


@pytest.mark.parametrize(
    ("words", "option"),
    [
        (("--size", "4"), "--size"),
        (("--size", "8,16,32,64,128"), "--size"),
        (("--dtype", "int8"), "--dtype"),
        (("--layers", "0"), "--layers"),
        (("--splits", "1"), "--splits"),
        (("--split-size", "many"), "--split-size"),
    ],
)
def test_options_out_of_range_are_refused_by_name(
    words: Sequence[str], option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A typing error is a message, not a traceback."""
    with pytest.raises(SystemExit):
        run(*words)

    assert f"argument {option}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--splits", "64", "--split-size", "65536"), "--splits times --split-size"),
        (("--layers", "256", "--width", "512"), "--layers times the square of --width"),
        (("--width", "16", "--splits", "32"), "--width is less than --splits"),
    ],
)
def test_options_that_do_not_fit_each_other_are_named(words: Sequence[str], message: str) -> None:
    """Before any work is done."""
    with pytest.raises(NotDemonstrable, match=message):
        run(*words)


def test_a_seed_repeats_the_result_and_another_does_not() -> None:
    """Everything random comes from the seed, and all of it is JSON."""
    one, again, other = (json.dumps(run(*SMALL, "--seed", seed).data, allow_nan=False) for seed in ("3", "3", "4"))

    assert one == again
    assert one != other


def test_the_plot_has_the_error_by_layer_and_by_order() -> None:
    """A column per format; above a line per order and per gap with a point per layer, below a line per order."""
    figure = Figure(layout="constrained")
    run(*SMALL, "--dtype", "bfloat16,float32").draw(figure)
    brain, _, brain_sums, _ = figure.axes

    assert [len(np.asarray(line.get_xdata())) for line in brain.lines] == [6] * 5
    assert [line.get_label() for line in brain_sums.lines] == list(ORDERS)
    assert len(figure.legends) == 2


def test_a_run_of_one_layer_and_one_size_is_drawn_too() -> None:
    """Nothing in the plot needs two points."""
    figure = Figure()
    result = run("--size", "8", "--width", "16", "--layers", "1", "--dtype", "float16", "--split-size", "2")
    result.draw(figure)

    assert len(figure.axes[0].lines) == 5
    assert math.isfinite(result.data["layers"]["float16"][0]["error_relative"]["in order"])


def test_partial_sums_depend_on_nothing_but_their_slice() -> None:
    """What a later token weighs changes no closed slice: the reason why a fixed size protects from the load."""
    one, other = weights(256), weights(256)
    other[200:] *= np.float32(3.0)
    rows = [grown(cache, (256,), 4, 64)[0].by_size.partial for cache in (one, other)]

    assert changed(rows[0][:3], rows[1][:3]) == 0
    assert changed(rows[0][3:], rows[1][3:]) == 1
