"""Laws of the bounds, by exact enumeration."""

from fractions import Fraction
from math import comb

from hypothesis import given
from hypothesis import strategies as st

from app.determinism.statistics import clopper_pearson_upper, rate_text, wilson_lower, wilson_upper

TRIALS = st.integers(1, 300)


def probability(k: int, n: int, p: Fraction) -> Fraction:
    """P(X = k) of a binomial variable, exactly."""
    return comb(n, k) * p**k * (1 - p) ** (n - k)


@given(n=st.integers(1, 24), percent=st.integers(1, 99))
def test_the_exact_bound_covers_every_true_rate(n: int, percent: int) -> None:
    """Over all outcomes, the bound lies above the true rate with probability 95 % at least."""
    p = Fraction(percent, 100)
    covered = sum(probability(k, n, p) for k in range(n + 1) if clopper_pearson_upper(k, n) >= float(p))
    assert covered >= Fraction(95, 100)


@given(n=st.integers(2, 60), data=st.data())
def test_the_exact_bound_solves_its_equation(n: int, data: st.DataObject) -> None:
    """At the bound, seeing k or fewer events has probability 5 %."""
    k = data.draw(st.integers(0, n - 1))
    p = Fraction(clopper_pearson_upper(k, n))
    tail = sum(probability(i, n, p) for i in range(k + 1))
    assert abs(float(tail) - 0.05) < 1e-9


@given(n=TRIALS, data=st.data())
def test_bounds_grow_with_events_and_shrink_with_trials(n: int, data: st.DataObject) -> None:
    """One more event raises every bound; one more clean trial lowers it."""
    k = data.draw(st.integers(0, n - 1))
    for bound in (clopper_pearson_upper, wilson_upper, wilson_lower):
        assert bound(k, n) <= bound(k + 1, n)
        assert bound(k, n + 1) <= bound(k, n)


@given(n=TRIALS, data=st.data())
def test_bounds_enclose_the_rate(n: int, data: st.DataObject) -> None:
    """The rate that was seen lies between the bounds, and all of them between 0 and 1."""
    k = data.draw(st.integers(0, n))
    assert 0.0 <= wilson_lower(k, n) <= k / n + 1e-12
    assert k / n <= clopper_pearson_upper(k, n) <= 1.0
    assert k / n - 1e-12 <= wilson_upper(k, n) <= 1.0


@given(n=st.integers(1, 10**6), data=st.data())
def test_the_sentence_claims_no_more_than_the_bound(n: int, data: st.DataObject) -> None:
    """The printed bound is never below the exact one, and no rate is printed as 0 %."""
    k = data.draw(st.integers(0, min(n, 50)))
    text = rate_text(k, n)
    assert text.startswith(f"{k} of {n}, ")
    if k < n:
        printed = float(text.rpartition("below ")[2].split(" ")[0]) / 100
        assert printed >= clopper_pearson_upper(k, n) * (1 - 1e-9)
    assert all(float(part.split(" ")[-2]) > 0 for part in text.split(" (")[0].split(", ")[1:])
