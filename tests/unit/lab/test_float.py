"""Rounding is what the formats say, additions are not associative, and a neighbour's size moves a scaled value."""

import argparse
import itertools
import json
import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import pytest
from matplotlib.figure import Figure

from app.lab.demonstration import NotDemonstrable, Result
from app.lab.float import DEMONSTRATION
from app.lab.float_associativity import associativity, both_ways
from app.lab.float_formats import formats
from app.lab.float_fused import fused, multiply_add
from app.lab.float_rounding import format_of
from app.lab.float_scaling import beside, moves, quantised
from app.lab.float_toy import TOY, toy, toy_numbers, triples_that_differ
from app.lab.precision import DTYPES, SUMMED, bits, raw, rounded, spacing

SMALL = ("--trials", "300")
EIGHT = "float8_e4m3fn"
QUARTERS = (Fraction(1, 4), Fraction(1, 2), Fraction(3, 4))


def run(*words: str) -> Result:
    """The demonstration with these options."""
    parser = argparse.ArgumentParser()
    DEMONSTRATION.add_arguments(parser)
    parser.add_argument("--seed", type=int, default=0)
    return DEMONSTRATION.run(parser.parse_args(words))


def dice() -> np.random.Generator:
    return np.random.default_rng(7)


def test_the_default_finds_a_triple_that_differs_in_every_format() -> None:
    """The two sums of the case shown have other bits, and redoing the additions by hand gives both of them."""
    cases = run(*SMALL).data["cases"]

    assert tuple(cases) == SUMMED
    for name, case in cases.items():
        a, b, c = rounded([case[operand] for operand in "abc"], name)
        assert case["differs"]
        assert case["left_first_bits"] != case["right_first_bits"]
        assert (float((a + b) + c), float(a + (b + c))) == (case["left_first"], case["right_first"])


def test_operands_that_are_exact_in_every_order_show_no_difference() -> None:
    """1, 2 and 4 add up without rounding: the control, and the finding says so."""
    result = run(*SMALL, "--a", "1", "--b", "2", "--c", "4")

    assert [case["differs"] for case in result.data["cases"].values()] == [False] * len(SUMMED)
    assert sum("no difference was seen" in finding for finding in result.findings) == len(SUMMED)


def test_the_textbook_operands_lose_their_third_in_one_order() -> None:
    """(1e20 - 1e20) + 3.14 keeps 3.14, the other order swallows it; float16 holds no 1e20, and that is said."""
    result = run(*SMALL, "--a=1e20", "--b=-1e20", "--c=3.14")
    cases = result.data["cases"]

    assert cases["float32"]["left_first"] == pytest.approx(3.14)
    assert cases["float32"]["right_first"] == 0.0
    assert not cases["float16"]["differs"]
    assert cases["float16"]["a"] is None
    assert any(finding.startswith("float16") and "beyond the range" in finding for finding in result.findings)


def test_an_order_that_leaves_the_range_is_told_from_one_that_stays() -> None:
    """60000 + 60000 overflows in float16 before 60000 is taken away again; the other order never gets there."""
    result = run(*SMALL, "--dtype", "float16", "--a", "60000", "--b", "60000", "--c=-60000")

    assert result.data["cases"]["float16"]["differs"]
    assert result.data["cases"]["float16"]["left_first"] is None
    assert "one order left the range" in result.findings[0]


def test_counts_of_random_triples_are_those_of_scalar_arithmetic() -> None:
    """Counting the same draws one by one gives the same number, and it is neither none nor all."""
    part = associativity(("bfloat16",), None, 200, dice())
    triples = rounded(dice().standard_normal((200, 3)), "bfloat16")

    by_hand = sum(float((a + b) + c) != float(a + (b + c)) for a, b, c in triples)
    assert part.data["random_triples"]["bfloat16"] == {"triples": 200, "differ": by_hand}
    assert 0 < by_hand < 200


def test_two_of_three_operands_are_refused_by_name() -> None:
    """The message names the one that is missing."""
    with pytest.raises(NotDemonstrable, match="--b is missing"):
        run("--a", "1", "--c", "2")


@pytest.mark.parametrize(
    ("words", "option"),
    [
        (("--dtype", "float64"), "--dtype"),
        (("--trials", "0"), "--trials"),
        (("--value", "nan"), "--value"),
        (("--a", "1e39"), "--a"),
    ],
)
def test_options_out_of_range_are_refused_by_name(
    words: Sequence[str], option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A typing error is a message, not a traceback."""
    with pytest.raises(SystemExit):
        run(*words)

    assert f"argument {option}" in capsys.readouterr().err


def test_bits_are_written_as_sign_exponent_and_fraction() -> None:
    """-1.5 has the biased exponent of 1 and the first fraction bit, in each format with its own widths."""
    assert bits(-1.5, "float32") == "1 01111111 1" + "0" * 22
    assert bits(-1.5, "bfloat16") == "1 01111111 1000000"
    assert bits(-1.5, "float16") == "1 01111 1000000000"
    assert bits(-1.5, EIGHT) == "1 0111 100"


@pytest.mark.parametrize("name", ["float16", EIGHT])
def test_rounding_a_fraction_agrees_with_the_format_at_every_midpoint(name: str) -> None:
    """Between any two neighbours the midpoint goes to the even one, and a hair beside it to the nearer one."""
    codes = np.arange(1 << (8 * DTYPES[name].itemsize), dtype=f"u{DTYPES[name].itemsize}")
    values = codes.view(DTYPES[name]).astype(np.float64)
    finite = np.unique(values[np.isfinite(values)])[:: 1 if name == EIGHT else 61]
    form = format_of(name)

    for low, high in itertools.pairwise(finite.tolist()):
        points = [Fraction(low) + (Fraction(high) - Fraction(low)) * share for share in QUARTERS]
        # A float64 holds each of these exactly, so the cast rounds it once too.
        assert [form.nearest(point) for point in points] == [float(rounded(float(point), name)) for point in points]


def test_rounding_beyond_the_largest_number_is_infinite() -> None:
    """Half a step beyond the largest number is a tie with an odd one, and goes out of range."""
    half = format_of("float16")

    assert half.nearest(Fraction(65519)) == 65504.0
    assert half.nearest(Fraction(65520)) == math.inf
    assert half.nearest(Fraction(-65520)) == -math.inf


def test_the_five_bit_float_has_uneven_steps() -> None:
    """Steps of a quarter up to 2, of a half up to 4, of one up to 7; the negative numbers mirror them."""
    numbers = toy_numbers()
    positive = [number for number in numbers if number >= 0]

    assert [after - before for before, after in itertools.pairwise(positive)] == [0.25] * 8 + [0.5] * 4 + [1.0] * 3
    assert sorted(-number for number in numbers) == list(numbers)


def test_the_number_line_has_a_mark_at_every_number_and_nowhere_else() -> None:
    """As many marks as numbers from 0 up, as far apart as the numbers are."""
    positive = [number for number in toy_numbers() if number >= 0]
    (line,) = toy().sheets[0].rows[0]
    places = [place for place, mark in enumerate(line) if mark == "|"]

    assert [place / places[-1] for place in places] == [number / positive[-1] for number in positive]


def test_the_toys_triples_are_counted_one_by_one() -> None:
    """The table look-up counts what nested loops of exact additions count."""
    numbers = toy_numbers()
    sums = {(a, b): TOY.nearest(Fraction(a) + Fraction(b)) for a in numbers for b in numbers}
    within = [
        (left, right)
        for a, b, c in itertools.product(numbers, repeat=3)
        if all(map(math.isfinite, (sums[a, b], sums[b, c])))
        and all(map(math.isfinite, (left := sums[sums[a, b], c], right := sums[a, sums[b, c]])))
    ]

    differ = sum(left != right for left, right in within)
    assert triples_that_differ() == (differ, len(within))
    assert differ > 0


def test_the_table_of_formats_says_what_the_casts_do() -> None:
    """The largest number survives its cast, the next step does not exist, and JSON has null for what overflowed."""
    data = formats().data

    assert data["formats"][EIGHT]["largest"] == float(rounded(448.0, EIGHT)) == 448.0
    assert [data["formats"][name]["spacing_at_20"] for name in ("float16", "bfloat16", EIGHT)] == [
        spacing(20.0, name) for name in ("float16", "bfloat16", EIGHT)
    ]
    assert rounded(1.0 + data["formats"]["bfloat16"]["spacing_at_1"] / 4, "bfloat16") == 1.0
    place = data["casts"]["values"].index(70_000.0)
    assert data["casts"]["float16"][place] is None
    assert data["casts"][EIGHT][place] is None


def test_another_neighbour_rounds_the_same_value_to_another_number() -> None:
    """The scale is the neighbour's over 448, and the value is what the FP8 grid of that scale holds."""
    four, six = beside(0.3, 4.0), beside(0.3, 6.0)

    assert four.value != six.value
    assert four.scale == np.float32(4.0) / np.float32(448.0)
    assert four.value == pytest.approx(four.stored * four.scale)
    assert abs(four.value - 0.3) <= spacing(0.3 / four.scale, EIGHT) * four.scale / 2


def test_a_scale_twice_as_large_moves_no_normal_value() -> None:
    """The control: only the exponent shifts. Half as much again moves them."""
    values = np.linspace(0.1, 1.0, 200)

    assert not moves(values, 2.0, 4.0).any()
    assert moves(values, 4.0, 6.0).any()


def test_a_neighbour_smaller_than_the_value_changes_nothing() -> None:
    """The value itself is the largest, so the demonstration says that no difference was seen."""
    result = run(*SMALL, "--value", "1000")

    assert result.data["scaling"]["distinct_results"] == 1
    assert any("same number beside every neighbour" in finding for finding in result.findings)


def test_a_tensor_of_zeros_stays_zero() -> None:
    """Its scale would be 0; it is 1."""
    back, _, scales = quantised(np.zeros(4))

    assert back.tolist() == [0.0] * 4
    assert scales.tolist() == [1.0]


def test_fused_keeps_the_rounding_error_that_two_steps_lose() -> None:
    """With c = -(a * b), one rounding leaves exactly the error of the product, and two leave 0."""
    form = format_of("float32")
    a = b = float(np.float32(1.0) + np.float32(2.0**-12))
    product = float(np.float32(a) * np.float32(b))
    result = multiply_add(a, b, -product, form)

    assert result.separate == 0.0
    assert result.fused == float(Fraction(a) * Fraction(b) - Fraction(product)) == 2.0**-24


def test_two_roundings_are_those_of_numpy() -> None:
    """Multiply, then add, in float32 and float16: bit for bit what the processor does."""
    for name in ("float32", "float16"):
        form = format_of(name)
        for a, b, c in rounded(dice().standard_normal((100, 3)), name):
            assert multiply_add(float(a), float(b), float(c), form).separate == float(a * b + c)


def test_fusing_is_counted_and_small_integers_are_unmoved() -> None:
    """Some random triples differ and not all; where nothing has to be rounded, none does."""
    data = fused(200, dice()).data["fused_multiply_add"]

    assert all(0 < count["differ"] < 200 for count in data.values())
    assert not multiply_add(3.0, 5.0, 7.0, format_of("float16")).differs


def test_a_product_out_of_range_is_infinite_only_where_it_is_rounded_first() -> None:
    """256 * 256 - 60000 fits into float16; the product alone does not."""
    result = multiply_add(256.0, 256.0, -60_000.0, format_of("float16"))

    assert result.separate == math.inf
    assert result.fused == float(np.float16(65_536 - 60_000))


def test_the_two_orders_of_equal_operands_agree() -> None:
    """(a + a) + a and a + (a + a) are the same additions."""
    draws = rounded(dice().standard_normal(500), "bfloat16")
    left, right = both_ways(np.stack((draws, draws, draws), axis=-1))

    assert raw(left).tolist() == raw(right).tolist()


def test_a_seed_repeats_the_result_and_another_does_not() -> None:
    """Everything random comes from the seed, and all of it is JSON."""
    one, again, other = (json.dumps(run(*SMALL, "--seed", seed).data, allow_nan=False) for seed in ("3", "3", "4"))

    assert one == again
    assert one != other


def test_the_plot_has_four_pictures_with_something_on_them() -> None:
    """The number line has a mark per number; a format on each of the three lines; a bar per format."""
    figure = Figure()
    result = run(*SMALL)
    result.draw(figure)
    line, steps, scaled, shares = figure.axes

    assert line.lines[0].get_xdata() == pytest.approx(result.data["toy"]["numbers"])
    assert [one.get_label() for one in steps.lines] == ["float16", "bfloat16", EIGHT]
    assert len(set(np.asarray(scaled.lines[0].get_ydata()).tolist())) > 10
    assert len(shares.patches) == len(SUMMED)
