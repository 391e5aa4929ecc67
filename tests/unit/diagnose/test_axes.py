"""Ticks and scales."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.diagnose.axes import Scale, round_ticks


@given(st.floats(1e-6, 1e6), st.integers(3, 10), st.booleans())
def test_ticks_are_round_and_few_and_cover_the_axis(high: float, most: int, whole: bool) -> None:
    """From 0 on, equally far apart, at most as many as asked for, with less than a step left over at the end."""
    ticks = round_ticks(high, most, whole=whole)
    values = [value for value, _ in ticks]
    # Below 1 there is one whole number.
    step = 1.0 if whole and high < 1 else values[1]

    assert values[0] == 0
    assert len(values) <= most + 1
    assert values == pytest.approx([place * step if place else 0 for place in range(len(values))], abs=1e-9)
    assert values[-1] <= high * (1 + 1e-6) < values[-1] + step * (1 + 1e-4)
    if whole:
        assert all(value == int(value) for value in values)


@given(st.integers(1, 10**5), st.integers(3, 10))
def test_labels_say_the_values(high: int, most: int) -> None:
    """What is written at a tick is its value."""
    assert all(float(label) == pytest.approx(value, rel=1e-4) for value, label in round_ticks(high, most))


def test_a_scale_may_run_backwards() -> None:
    """On a page, down is up."""
    scale = Scale(2, 6, 100, 20)
    assert [scale(value) for value in (2, 3, 6)] == [100, 80, 20]
