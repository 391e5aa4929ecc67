"""Order of arrival does not repeat, a fixed order does, and only one tree over K survives another number of ranks."""

import argparse
import itertools
import json
from collections.abc import Sequence

import numpy as np
import pytest
from matplotlib.figure import Figure

from app.lab.allreduce import DEMONSTRATION
from app.lab.allreduce_layouts import pairs
from app.lab.allreduce_runs import Repeats, orders_that_can_differ, repeats
from app.lab.allreduce_sums import (
    Layer,
    by_one_tree,
    in_arrival_order,
    in_fixed_tree,
    in_ring,
    layer_of,
    partial_sums,
)
from app.lab.demonstration import Result
from app.lab.precision import SUMMED, changed, rounded

SMALL = ("--size", "64", "--runs", "20")


def run(*words: str) -> Result:
    """The demonstration with these options."""
    parser = argparse.ArgumentParser()
    DEMONSTRATION.add_arguments(parser)
    parser.add_argument("--seed", type=int, default=0)
    return DEMONSTRATION.run(parser.parse_args(words))


def layer(name: str = "bfloat16", size: int = 48) -> Layer:
    return layer_of(256, size, name, np.random.default_rng(7))


def by_method(name: str, ranks: int) -> dict[str, Repeats]:
    """All orders of arrival, each once."""
    arrivals = list(itertools.permutations(range(ranks)))
    return {one.method: one for one in repeats(name, layer(name), ranks, arrivals)}


@pytest.mark.parametrize("name", SUMMED)
def test_order_of_arrival_changes_the_result_and_a_fixed_order_does_not(name: str) -> None:
    """Of the 24 orders of four ranks, only those that swap the first two agree; ring and tree have one result."""
    methods = by_method(name, 4)

    assert methods["order of arrival"].distinct == orders_that_can_differ(4) == 12
    assert methods["order of arrival"].elements > 0
    assert methods["order of arrival"].apart > 0
    for fixed in ("ring", "fixed tree"):
        assert (methods[fixed].distinct, methods[fixed].elements, methods[fixed].apart) == (1, 0, 0.0)


def test_two_ranks_agree_in_any_order() -> None:
    """The control: addition commutes, and the finding says that arrival gave one result too."""
    result = run(*SMALL, "--ranks", "2")

    assert by_method("bfloat16", 2)["order of arrival"].distinct == 1
    assert sum("one result in order of arrival too" in finding for finding in result.findings) == 2


def test_partial_sums_that_need_no_rounding_agree_in_any_order() -> None:
    """The second control: small integers, eight ranks."""
    exact = Layer(rounded(np.ones(64), "bfloat16"), rounded(np.ones((64, 3)), "bfloat16"))
    partials = partial_sums(exact, 8)

    assert partials.tolist() == [[8.0] * 3] * 8
    for order in ([0, 1, 2, 3, 4, 5, 6, 7], [5, 2, 7, 0, 1, 6, 3, 4]):
        assert in_arrival_order(partials, order).tolist() == [64.0] * 3
        assert in_fixed_tree(partials, order).tolist() == [64.0] * 3


def test_a_fixed_tree_adds_by_rank_whoever_comes_first() -> None:
    """Four ranks are (0 + 1) + (2 + 3)."""
    partials = partial_sums(layer(), 4)
    a, b, c, d = partials

    assert changed(in_fixed_tree(partials, [3, 1, 0, 2]), (a + b) + (c + d)) == 0


def test_a_ring_starts_each_chunk_at_another_rank() -> None:
    """Of three ranks, chunk 0 is (1 + 2) + 0, chunk 1 is (2 + 0) + 1, and chunk 2 is (0 + 1) + 2."""
    partials = partial_sums(layer(size=9), 3)
    first, second, third = np.split(partials, 3, axis=1)
    expected = np.concatenate(
        ((first[1] + first[2]) + first[0], (second[2] + second[0]) + second[1], (third[0] + third[1]) + third[2])
    )

    assert changed(in_ring(partials), expected) == 0


@pytest.mark.parametrize("name", SUMMED)
def test_another_number_of_ranks_is_another_result_unless_one_tree_spans_them(name: str) -> None:
    """Ring and fixed tree differ between 2, 4 and 8 ranks; one tree inside and across them has one result."""
    for pair in pairs(name, layer(name), (2, 4, 8)):
        assert pair.elements["ring"] > 0
        assert pair.elements["fixed tree"] > 0
        assert pair.apart["ring"] > 0
        assert (pair.elements["one tree over K"], pair.apart["one tree over K"]) == (0, 0.0)


def test_one_tree_needs_shares_that_are_its_branches() -> None:
    """Three ranks cut K elsewhere, and the promise ends there."""
    assert changed(by_one_tree(layer(), 2), by_one_tree(layer(), 3)) > 0


def test_every_way_adds_up_to_the_layer() -> None:
    """No way forgets a share: in float32 all are within rounding of the result in float64, for an odd split too."""
    one = layer("float32")
    for ranks in (2, 5, 8):
        partials = partial_sums(one, ranks)
        for result in (
            in_arrival_order(partials, range(ranks)),
            in_fixed_tree(partials, range(ranks)),
            in_ring(partials),
            by_one_tree(one, ranks),
        ):
            assert result == pytest.approx(one.exact(), abs=1e-5)


def test_more_ranks_than_elements_leave_some_chunks_empty() -> None:
    """A ring of 64 ranks over 16 elements still gives 16 results."""
    assert in_ring(partial_sums(layer(size=16), 64)).shape == (16,)


def test_the_tables_count_what_the_data_says() -> None:
    """Distinct results by the number of ranks, method by method, in the second table."""
    result = run(*SMALL, "--ranks", "5")
    _, by_ranks, _ = result.sheets
    rows = result.data["repeats"]

    assert by_ranks.columns == ("format", "added in", "2 ranks", "3 ranks", "4 ranks", "5 ranks")
    assert by_ranks.rows[0][2:] == ("1", "3", "12", "60")
    for name, method, *cells in by_ranks.rows[1:]:
        own = [row["distinct"] for row in rows if (row["format"], row["method"]) == (name, method)]
        assert cells == [str(count) for count in own]


@pytest.mark.parametrize(
    ("words", "option"),
    [
        (("--ranks", "1"), "--ranks"),
        (("--size", "0"), "--size"),
        (("--runs", "1"), "--runs"),
        (("--dtype", "float8_e4m3fn"), "--dtype"),
    ],
)
def test_options_out_of_range_are_refused_by_name(
    words: Sequence[str], option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A typing error is a message, not a traceback."""
    with pytest.raises(SystemExit):
        run(*words)

    assert f"argument {option}" in capsys.readouterr().err


def test_a_seed_repeats_the_result_and_another_does_not() -> None:
    """Everything random comes from the seed, and all of it is JSON."""
    one, again, other = (json.dumps(run(*SMALL, "--seed", seed).data, allow_nan=False) for seed in ("3", "3", "4"))

    assert one == again
    assert one != other


def test_the_plot_has_the_runs_and_the_layouts() -> None:
    """Left a line per format and method with a point per number of ranks, right a bar per pair and method."""
    figure = Figure()
    result = run(*SMALL)
    result.draw(figure)
    left, right = figure.axes

    arrival = next(line for line in left.lines if line.get_label() == "bfloat16, order of arrival")
    seen = [
        one["distinct"]
        for one in result.data["repeats"]
        if (one["format"], one["method"]) == ("bfloat16", "order of arrival")
    ]
    assert np.asarray(arrival.get_ydata()).tolist() == seen
    assert len(left.lines) == 4
    assert len(right.patches) == 3 * len(result.data["layouts"])
