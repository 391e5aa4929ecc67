"""The plot of the gateway's modes: what each costs here, and whether it repeated. Pure."""

from typing import Final

from app.determinism.mode import DETERMINISTIC_MODES
from app.determinism.statistics import rate_text
from app.diagnose.charts import Bar, bars
from app.diagnose.cure import Cure, untried
from app.diagnose.markup import shortened
from app.diagnose.plot import Plot
from app.diagnose.report import Report

_LABEL: Final = 60
_HEADER: Final = ("mode", "diverged", "tokens/s, load included", "added wait, median")


def modes(report: Report) -> Plot:
    """One bar for each mode that was measured; those that were not are named with the reason."""
    title = "What each mode costs, and whether it repeats"
    if not report.cures:
        return Plot(title, f"No mode was measured: {_why_none(report)}.")
    rows = tuple(_row(cure) for cure in report.cures)
    if not any(cure.measured and cure.tokens_per_second for cure in report.cures):
        return Plot(title, "No mode answered a repeat, so there is nothing to draw.", None, _HEADER, rows)
    several = [
        Bar(cure.mode.value, cure.tokens_per_second if cure.measured else None, _label(cure), _style(cure))
        for cure in report.cures
    ]
    said = (
        "How many tokens a second the server gave while repeats in a mode ran beside other traffic, that traffic "
        "included, and how many of the repeats diverged."
    )
    description = "; ".join(f"{bar.name}: {bar.label}" for bar in several) + "."
    return Plot(title, said, bars(title, description, several, "tokens per second, load included"), _HEADER, rows)


def _why_none(report: Report) -> str:
    if not report.deployment.gateway:
        return "this server offers none"
    return "the budget was spent" if report.investigation.cures else "that was not asked for"


def _label(cure: Cure) -> str:
    reason = untried(cure)
    if reason is not None:
        return shortened(reason, _LABEL)
    return f"{cure.row.diverged} of {cure.row.compared} diverged"


def _style(cure: Cure) -> str:
    if not cure.row.diverged:
        return "good"
    return "clear" if cure.mode in DETERMINISTIC_MODES else "near"


def _row(cure: Cure) -> tuple[str, ...]:
    reason = untried(cure)
    if reason is not None:
        return cure.mode.value, reason, "-", "-"
    wait = "-" if cure.row.wait is None else f"{cure.row.wait.median:.2f} s"
    return cure.mode.value, rate_text(cure.row.diverged, cure.row.compared), f"{cure.tokens_per_second:.0f}", wait
