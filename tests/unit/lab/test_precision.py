"""The formats by name, their bits, and what counts as a change."""

import argparse

import numpy as np
import pytest

from app.lab.precision import DTYPES, SUMMED, changed, distance, limits, listed, raw, rounded, spacing


def test_every_format_rounds_to_its_own_type() -> None:
    """A cast keeps the shape and has the type of the name; the largest number of the format survives it."""
    for name, dtype in DTYPES.items():
        largest = float(limits(name).max)
        values = rounded([[largest, 0.0]], name)
        assert values.dtype == dtype
        assert values.shape == (1, 2)
        assert float(values[0, 0]) == largest


def test_an_overflow_is_no_warning() -> None:
    """Warnings are errors here: the cast gives what the format has for it, silently."""
    assert np.isinf(float(rounded(1e6, "float16")))
    assert np.isnan(float(rounded(1e6, "float8_e4m3fn")))


def test_spacing_is_the_distance_to_the_next_number() -> None:
    """1 plus its spacing is another number, 1 plus a quarter of it is 1 again."""
    for name in SUMMED:
        step = spacing(1.0, name)
        assert float(rounded(1.0 + step, name)) == 1.0 + step
        assert float(rounded(1.0 + step / 4, name)) == 1.0


def test_a_change_is_one_of_bits() -> None:
    """0 and -0 are different, NaN is the same as itself, and transposed arrays are compared in their own order."""
    one, other = np.array([0.0, np.nan, np.nan, 1.0]), np.array([-0.0, np.nan, np.nan, 2.0])

    assert changed(one, other) == 2
    assert changed(np.arange(6.0).reshape(2, 3).T, np.arange(6.0).reshape(2, 3).T.copy()) == 0
    assert raw(np.array(1.0, np.float32)).shape == ()


def test_the_distance_of_two_arrays_is_the_largest_of_their_elements() -> None:
    """It is computed in float64, so two bfloat16 far apart lose nothing; empty arrays are 0 apart."""
    one, other = rounded([1.0, 256.0], "bfloat16"), rounded([1.0, 1.0078125], "bfloat16")

    assert distance(one, other) == 256.0 - 1.0078125
    assert distance(one[:0], other[:0]) == 0.0


def test_a_list_of_names_keeps_its_order_and_names_what_is_unknown() -> None:
    """Each name once; another word is refused with the known ones."""
    read = listed(SUMMED)

    assert read("float16, float32,float16") == ("float16", "float32")
    with pytest.raises(argparse.ArgumentTypeError, match="'float64' is none of float32, bfloat16, float16"):
        read("float32,float64")
