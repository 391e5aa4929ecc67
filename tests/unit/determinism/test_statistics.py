"""Bounds of a rate: known values, borders, and the sentence."""

import pytest

from app.determinism.statistics import clopper_pearson_upper, rate_text, wilson_lower, wilson_upper


@pytest.mark.parametrize(
    ("k", "n", "upper"),
    [(0, 5, 0.451), (0, 20, 0.139), (0, 100, 0.0295), (0, 1000, 0.0030), (0, 64, 0.0457)],
)
def test_exact_one_sided_bounds_of_zero_are_the_known_ones(k: int, n: int, upper: float) -> None:
    """No event in n trials bounds the rate as published tables say."""
    assert clopper_pearson_upper(k, n) == pytest.approx(upper, rel=0.006)


@pytest.mark.parametrize(
    ("k", "n", "upper"),
    [(0, 5, 0.522), (0, 20, 0.168), (0, 100, 0.036), (1, 100, 0.0545), (3, 100, 0.0852)],
)
def test_exact_two_sided_intervals_are_pairs_of_one_sided_bounds(k: int, n: int, upper: float) -> None:
    """The upper end of the two-sided 95 % interval is the one-sided 97.5 % bound."""
    assert clopper_pearson_upper(k, n, 0.975) == pytest.approx(upper, rel=0.01)


@pytest.mark.parametrize(
    ("k", "n", "lower", "upper"),
    [
        (0, 5, 0.0, 0.435),
        (0, 20, 0.0, 0.161),
        (0, 100, 0.0, 0.037),
        (0, 1000, 0.0, 0.0038),
        (1, 100, 0.0018, 0.0545),
        (3, 100, 0.0103, 0.0845),
        (2, 16, 0.035, 0.360),
    ],
)
def test_wilson_interval_is_the_known_one(k: int, n: int, lower: float, upper: float) -> None:
    """The pair of one-sided 97.5 % score bounds is the two-sided 95 % interval of the tables."""
    assert wilson_lower(k, n, 0.975) == pytest.approx(lower, abs=0.0006)
    assert wilson_upper(k, n, 0.975) == pytest.approx(upper, abs=0.0006)


@pytest.mark.parametrize(("rate", "repeats"), [(0.05, 59), (0.01, 299), (0.001, 2995), (0.0001, 29956)])
def test_clean_repeats_that_a_claim_needs(rate: float, repeats: int) -> None:
    """That many clean repeats, and no fewer, put the bound below the rate."""
    assert clopper_pearson_upper(0, repeats) < rate < clopper_pearson_upper(0, repeats - 1)


def test_bounds_of_nothing_and_of_everything() -> None:
    """Without trials nothing is known; with nothing but events the bound is 1."""
    assert clopper_pearson_upper(0, 0) == 1.0
    assert clopper_pearson_upper(7, 7) == 1.0
    assert wilson_upper(0, 0) == 1.0
    assert wilson_lower(0, 0) == 0.0
    assert wilson_lower(0, 10) == 0.0


def test_large_counts_stay_exact() -> None:
    """A million trials are no problem, and the bound lies a little above the rate."""
    bound = clopper_pearson_upper(100_000, 1_000_000)
    assert bound == pytest.approx(0.1 + 1.645 * (0.1 * 0.9 / 1e6) ** 0.5, abs=2e-6)


@pytest.mark.parametrize(("k", "n"), [(-1, 3), (4, 3), (0, -1)])
def test_impossible_counts_are_refused(k: int, n: int) -> None:
    """A count of events outside its trials is an error, not a bound."""
    with pytest.raises(ValueError, match="not a count"):
        clopper_pearson_upper(k, n)
    with pytest.raises(ValueError, match="not a count"):
        wilson_upper(k, n)


@pytest.mark.parametrize("confidence", [0.0, 1.0, 95.0])
def test_impossible_confidence_is_refused(confidence: float) -> None:
    """Confidence is a probability between 0 and 1."""
    with pytest.raises(ValueError, match="confidence"):
        rate_text(0, 3, confidence)


@pytest.mark.parametrize(
    ("k", "n", "text"),
    [
        (0, 64, "0 of 64, below 4.6 % (95 %)"),
        (3, 64, "3 of 64, 4.7 %, below 11.7 % (95 %)"),
        (0, 0, "0 of 0, nothing measured"),
        (5, 5, "5 of 5, 100 %"),
        (0, 29956, "0 of 29956, below 0.0100 % (95 %)"),
        (1, 1_000_000, "1 of 1000000, 0.00010 %, below 0.00048 % (95 %)"),
        (9999, 10_000, "9999 of 10000, 99.9 %, below 100.0 % (95 %)"),
    ],
)
def test_the_sentence_never_says_zero_percent(k: int, n: int, text: str) -> None:
    """A rate is printed with its bound, rounded so that it claims no more than was measured."""
    assert rate_text(k, n) == text
