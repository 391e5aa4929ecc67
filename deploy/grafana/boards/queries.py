"""Fragments of PromQL that several panels share. ``scope`` is the inside of a selector; windows are PromQL durations.

A quotient is taken over a denominator that is above zero, so that a panel without traffic says "no traffic" and not
NaN.
"""

from statistics import NormalDist
from typing import Final

from app.determinism.statistics import CONFIDENCE

SCOPE: Final = 'model=~"$model",mode=~"$mode",origin=~"$origin"'
"""What is compared, by model, mode and who asked."""

SERVED: Final = 'model=~"$model",mode=~"$mode"'
"""What is served to clients, by model and mode."""

RATE: Final = "$__rate_interval"
RANGE: Final = "$__range"

_Z: Final = round(NormalDist().inv_cdf(CONFIDENCE), 10)
"""Rounded, so that the files are the same wherever they are written."""

_HALF: Final = round(_Z * _Z / 2, 10)
_QUARTER: Final = round(_Z * _Z / 4, 10)


def increase(name: str, *, by: str, scope: str, window: str) -> str:
    """How much a counter grew in a window, summed over what ``by`` does not name."""
    return f"sum by ({by}) (increase({name}{{{scope}}}[{window}]))"


def rate(name: str, *, by: str, scope: str) -> str:
    """A counter's growth per second."""
    return f"sum by ({by}) (rate({name}{{{scope}}}[{RATE}]))"


def share(numerator: str, denominator: str) -> str:
    """A quotient, absent where the denominator is 0."""
    return f"({numerator}) / (({denominator}) > 0)"


def diverged(window: str, *, by: str = "mode", scope: str = SCOPE) -> str:
    """How many answers diverged."""
    return increase("reprise_comparisons_total", by=by, scope=f'verdict="diverged",{scope}', window=window)


def compared(window: str, *, by: str = "mode", scope: str = SCOPE) -> str:
    """How many answers were compared, with either verdict."""
    return increase("reprise_comparisons_total", by=by, scope=f'verdict=~"match|diverged",{scope}', window=window)


def wilson_upper(events: str, trials: str) -> str:
    """The upper end of the score interval for a rate, one-sided, 95 %, absent without trials.

    Source: as `app.determinism.statistics.wilson_upper`, with numerator and denominator multiplied by the trials.
    """
    spread = f"sqrt(({events}) * (({trials}) - ({events})) / ({trials}) + {_QUARTER})"
    return f"(({events}) + {_HALF} + {_Z} * {spread}) / ((({trials}) > 0) + {2 * _HALF})"


def quantile(q: float, name: str, *, by: str = "", scope: str = "") -> str:
    """A quantile of a histogram over the recent past; NaN where nothing was observed."""
    labels = f"le, {by}" if by else "le"
    selector = f"{{{scope}}}" if scope else ""
    return f"histogram_quantile({q}, sum by ({labels}) (rate({name}_bucket{selector}[{RATE}])))"


def mean(name: str, *, by: str, scope: str, window: str) -> str:
    """The mean of what a histogram observed in a window."""
    return share(
        increase(f"{name}_sum", by=by, scope=scope, window=window),
        increase(f"{name}_count", by=by, scope=scope, window=window),
    )
