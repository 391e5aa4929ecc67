"""What ``k`` of ``n`` says about a rate: exact and approximate upper bounds, and the sentence that reports them.

A rate of zero is never reported: "0 of 64" is compatible with a true rate of 4.5 %, so every figure carries its bound.
All bounds here are one-sided: ``confidence`` is the probability, over repetitions of the whole measurement, that the
true rate lies on the stated side of the bound. A two-sided 95 % interval is the pair of one-sided 97.5 % bounds.

The bounds hold for a number of repeats fixed in advance. Looking again after every repeat and stopping at a convenient
moment makes them too narrow, and so does pooling repeats of one prompt as if they were independent prompts.
"""

import math
from statistics import NormalDist
from typing import Final

CONFIDENCE: Final = 0.95
"""The confidence of every bound that the product prints."""

_TINY: Final = 1e-300
_PRECISION: Final = 1e-15
_FRACTION_STEPS: Final = 20_000
_BISECTION_STEPS: Final = 80
_PERCENT: Final = 100.0


def clopper_pearson_upper(k: int, n: int, confidence: float = CONFIDENCE) -> float:
    """The exact upper bound of a rate of which ``k`` of ``n`` trials are evidence.

    It is the rate ``p`` at which seeing ``k`` or fewer events has probability ``1 - confidence``; its coverage is at
    least ``confidence`` for every true rate. With no trials, or with nothing but events, the bound is 1.
    Raises ValueError unless ``0 <= k <= n`` and ``0 < confidence < 1``.

    Source: C. J. Clopper and E. S. Pearson, "The use of confidence or fiducial limits illustrated in the case of the
    binomial", Biometrika 26 (1934) 404-413. For ``k = 0`` it is ``1 - (1 - confidence) ** (1 / n)``.
    """
    _check(k, n, confidence)
    if k == n:
        return 1.0
    alpha = 1.0 - confidence
    if k == 0:
        return -math.expm1(math.log(alpha) / n)
    low, high = k / n, 1.0
    for _ in range(_BISECTION_STEPS):
        middle = (low + high) / 2.0
        if 1.0 - _incomplete_beta(k + 1, n - k, middle) > alpha:
            low = middle
        else:
            high = middle
    return high


def wilson_upper(k: int, n: int, confidence: float = CONFIDENCE) -> float:
    """The upper end of the score interval: approximate, closed form, and so what PromQL can compute.

    With no trials, or with nothing but events, the bound is 1. Raises ValueError unless ``0 <= k <= n`` and
    ``0 < confidence < 1``.

    Source: E. B. Wilson, "Probable inference, the law of succession, and statistical inference", Journal of the
    American Statistical Association 22 (1927) 209-212.
    """
    _check(k, n, confidence)
    if k == n:
        return 1.0
    centre, spread = _wilson(k, n, confidence)
    return min(1.0, centre + spread)


def wilson_lower(k: int, n: int, confidence: float = CONFIDENCE) -> float:
    """The lower end of the score interval; without trials or events it is 0. Errors and source as ``wilson_upper``."""
    _check(k, n, confidence)
    if k == 0:
        return 0.0
    centre, spread = _wilson(k, n, confidence)
    return max(0.0, centre - spread)


def rate_text(k: int, n: int, confidence: float = CONFIDENCE) -> str:
    """``k`` of ``n`` as a sentence with its exact bound: "0 of 64, below 4.6 % (95 %)".

    The bound is rounded up, so that the sentence never claims more than was measured, and the rate is never rounded
    to 0 % or to 100 % when it is neither. Raises ValueError unless ``0 <= k <= n`` and ``0 < confidence < 1``.
    """
    bound = clopper_pearson_upper(k, n, confidence)
    if n == 0:
        return "0 of 0, nothing measured"
    if k == n:
        return f"{k} of {n}, 100 %"
    rate = "" if k == 0 else f"{_rate_percent(k / n)}, "
    return f"{k} of {n}, {rate}below {_bound_percent(bound)} ({confidence * _PERCENT:g} %)"


def _check(k: int, n: int, confidence: float) -> None:
    if not 0 <= k <= n:
        msg = f"{k} of {n} is not a count of events among trials"
        raise ValueError(msg)
    if not 0.0 < confidence < 1.0:
        msg = f"confidence must lie between 0 and 1, not {confidence}"
        raise ValueError(msg)


def _wilson(k: int, n: int, confidence: float) -> tuple[float, float]:
    z = NormalDist().inv_cdf(confidence)
    rate = k / n
    denominator = 1.0 + z * z / n
    centre = (rate + z * z / (2.0 * n)) / denominator
    spread = z * math.sqrt(rate * (1.0 - rate) / n + z * z / (4.0 * n * n)) / denominator
    return centre, spread


def _incomplete_beta(a: int, b: int, x: float) -> float:
    """The regularised incomplete beta function ``I_x(a, b)``; ``1 - I_p(k + 1, n - k)`` is P(X <= k) of Bin(n, p).

    Source: NIST Digital Library of Mathematical Functions, 8.17.4 (symmetry), 8.17.5 (binomial tail) and 8.17.22
    (continued fraction, which converges fast for ``x < (a + 1) / (a + b + 2)``).
    """
    if x <= 0.0:
        return 0.0
    if x >= 1.0:
        return 1.0
    if x > (a + 1) / (a + b + 2):
        return 1.0 - _incomplete_beta(b, a, 1.0 - x)
    front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    return math.exp(front) / (a * _continued_fraction(a, b, x))


def _continued_fraction(a: int, b: int, x: float) -> float:
    """``1 + d1/(1 + d2/(1 + ...))`` of DLMF 8.17.22, by the forward recurrence of W. J. Lentz (Appl. Opt. 15, 1976)."""
    value, c, d = 1.0, 1.0, 0.0
    for step in range(1, _FRACTION_STEPS):
        m = step // 2
        if step % 2:
            term = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        else:
            term = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        d = 1.0 / ((1.0 + term * d) or _TINY)
        c = (1.0 + term / c) or _TINY
        factor = c * d
        value *= factor
        if abs(factor - 1.0) < _PRECISION:
            break
    return value


def _rate_percent(rate: float) -> str:
    percent = rate * _PERCENT
    text = f"{percent:.{_decimals(percent)}f}"
    return f"{text if float(text) < _PERCENT else math.floor(percent * 10) / 10} %"


def _bound_percent(bound: float) -> str:
    percent = bound * _PERCENT
    scale = 10 ** _decimals(percent)
    return f"{min(math.ceil(percent * scale), _PERCENT * scale) / scale:.{_decimals(percent)}f} %"


def _decimals(percent: float) -> int:
    """One decimal from 1 % on, two significant digits below."""
    return 1 if percent >= 1.0 else 1 - math.floor(math.log10(percent))
