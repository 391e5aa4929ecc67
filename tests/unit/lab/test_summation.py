"""Each order adds what it says, one rounded addition at a time."""

import numpy as np
import pytest

from app.lab.precision import SUMMED, Array, raw, rounded
from app.lab.summation import chunked, edges_by_number, edges_by_size, partials, sequential, tree


def numbers(name: str, count: int = 37) -> Array:
    return rounded(np.random.default_rng(11).standard_normal(count), name)


@pytest.mark.parametrize("name", SUMMED)
def test_in_order_is_a_loop_of_scalar_additions(name: str) -> None:
    """No wider accumulator and no pairs: the bits are those of a plain loop."""
    values = numbers(name)
    total = values[0]
    for value in values[1:]:
        total = total + value

    assert sequential(values).dtype == values.dtype
    assert raw(sequential(values)) == raw(total)


@pytest.mark.parametrize("name", SUMMED)
def test_a_tree_adds_neighbours_and_lets_an_odd_one_wait(name: str) -> None:
    """Five numbers are ((a + b) + (c + d)) + e."""
    a, b, c, d, e = numbers(name, 5)

    assert raw(tree(np.array([a, b, c, d, e]))) == raw(((a + b) + (c + d)) + e)


def test_chunks_are_summed_alone_and_then_together() -> None:
    """The partial sum of a slice is that of the slice by itself."""
    values = numbers("bfloat16", 10)
    edges = (0, 4, 8, 10)

    parts = partials(values, edges)
    assert [raw(part) for part in parts] == [raw(sequential(values[i:j])) for i, j in ((0, 4), (4, 8), (8, 10))]
    assert raw(chunked(values, edges)) == raw((parts[0] + parts[1]) + parts[2])


def test_rows_are_summed_along_the_last_axis() -> None:
    """A row has the bits that it has alone, in every order."""
    rows = numbers("float32", 60).reshape(3, 4, 5)

    for order in (sequential, tree, lambda values: chunked(values, (0, 2, 5))):
        assert order(rows).shape == (3, 4)
        assert raw(order(rows)[1, 2]) == raw(order(rows[1, 2]))


def test_exact_sums_agree_in_every_order() -> None:
    """The control: small integers need no rounding."""
    values = rounded(np.arange(16), "bfloat16")

    totals = {float(sequential(values)), float(tree(values)), float(chunked(values, edges_by_number(16, 3)))}
    assert totals == {120.0}


def test_a_fixed_number_moves_its_boundaries_and_a_fixed_size_does_not() -> None:
    """One token more: every inner boundary of the first kind is another, all of the second are the same."""
    assert edges_by_number(1024, 4) == (0, 256, 512, 768, 1024)
    assert edges_by_number(1025, 4) == (0, 257, 514, 771, 1025)
    assert edges_by_size(1024, 256) == (0, 256, 512, 768, 1024)
    assert edges_by_size(1025, 256) == (0, 256, 512, 768, 1024, 1025)


def test_more_slices_than_elements_leave_one_element_each() -> None:
    """No slice is empty."""
    assert edges_by_number(3, 7) == (0, 1, 2, 3)
