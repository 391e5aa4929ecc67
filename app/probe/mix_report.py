"""What a run with mixed traffic found, and how it reads: tables, the sentences beside them, the exit status. Pure."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from rich import box
from rich.table import Table
from rich.text import Text

from app.probe.mix import MixPlan
from app.probe.mix_figures import ClassFigures, MixRow, Point, retention
from app.probe.report import EXIT_DIVERGED, EXIT_FINE, EXIT_INTERRUPTED, EXIT_NOT_MEASURED

EXIT_NOT_ALONE: Final = EXIT_DIVERGED
"""A request that was promised to be alone was not."""

_NONE: Final = "-"
_PERCENT: Final = 100


@dataclass(frozen=True, slots=True)
class MixReport:
    """The whole finding. ``lost`` says why the server was given up, ``interrupted`` that the run was cut short."""

    plan: MixPlan
    model: str | None
    rows: tuple[MixRow, ...]
    points: tuple[Point, ...] = ()
    lost: str | None = None
    interrupted: bool = False

    @property
    def exit_code(self) -> int:
        """130 interrupted; else 1 when an isolated request was not alone; 2 when something was not measured."""
        if self.interrupted:
            return EXIT_INTERRUPTED
        if any(row.not_alone for row in self.rows):
            return EXIT_NOT_ALONE
        incomplete = len(self.rows) < len(self.plan.percentages) or self.lost is not None
        doubtful = any(row.failed or row.unconfirmed or not _answers(row) for row in self.rows)
        return EXIT_NOT_MEASURED if incomplete or doubtful else EXIT_FINE

    @property
    def measured(self) -> bool:
        """Whether there is anything to print."""
        return bool(self.rows or self.points)


def render_mix(report: MixReport) -> tuple[Table, ...]:
    """The sweep, one line per percentage, and the calibration where there was one."""
    tables = [_sweep(report)] if report.rows else []
    return (*tables, _calibration(report.points)) if report.points else tuple(tables)


def mix_notes(report: MixReport) -> tuple[str, ...]:
    """What must be said beside the figures."""
    return (*_doubts(report), *_explanations(report))


def _sweep(report: MixReport) -> Table:
    plan = report.plan
    title = (
        f"{report.model or 'unknown model'} at {plan.url}: {plan.clients} clients, "
        f"{plan.seconds:g} s per percentage after {plan.warmup:g} s of warm-up"
    )
    columns: tuple[tuple[str, Callable[[MixRow], str]], ...] = (
        ("isolated", lambda row: f"{row.window.percent:g} %"),
        ("tokens/s", lambda row: f"{row.tokens_per_second:.1f}"),
        ("retention", lambda row: _percent(retention(row, report.rows))),
        ("shared\nrequests", lambda row: str(row.shared.answers)),
        ("shared wait\np50 / p99", lambda row: _waits(row.shared)),
        ("isolated\nrequests", lambda row: str(row.isolated.answers)),
        ("isolated wait\np50 / p99", lambda row: _waits(row.isolated)),
        ("exclusive\ntime", lambda row: _percent(row.exclusive_share)),
        ("not\nalone", lambda row: str(row.not_alone)),
        ("failed", lambda row: str(row.failed)),
    )
    table = _table(title, tuple(header for header, _ in columns))
    for row in report.rows:
        style = "bold red" if row.not_alone or row.failed else ""
        table.add_row(*(Text(cell(row), style=style) for _, cell in columns))
    return table


def _calibration(points: tuple[Point, ...]) -> Table:
    table = _table("calibration: ordinary traffic by number of clients", ("clients", "tokens/s", "requests", "failed"))
    for point in points:
        cells = (point.window.clients, f"{point.tokens_per_second:.1f}", point.answers, point.failed)
        table.add_row(*map(str, cells))
    return table


def _table(title: str, headers: tuple[str, ...]) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    table.padding = (0, 1, 0, 0)
    for header in headers:
        table.add_column(header, justify="right", overflow="fold")
    return table


def _answers(row: MixRow) -> int:
    return row.shared.answers + row.isolated.answers


def _percent(share: float | None) -> str:
    return _NONE if share is None else f"{share * _PERCENT:.1f} %"


def _waits(figures: ClassFigures) -> str:
    return _NONE if figures.waits is None else f"{figures.waits.p50:.2f} / {figures.waits.p99:.2f} s"


def _doubts(report: MixReport) -> Iterator[str]:
    for row in report.rows:
        percent, isolated = f"{row.window.percent:g} %", row.isolated.answers
        if row.not_alone:
            yield f"{percent}: {row.not_alone} of {isolated} isolated requests were not alone on the engine."
        if row.unconfirmed:
            yield f"{percent}: the server did not confirm {row.unconfirmed} of {isolated} isolated requests."
        if row.failed:
            yield f"{percent}: {row.failed} of {_answers(row) + row.failed} requests failed ({row.reason})."
    if report.lost is not None:
        yield f"The run ended early: nothing but failures came back ({report.lost})."
    if report.interrupted:
        yield "Interrupted: the figures are those of the windows that were complete by then."


def _explanations(report: MixReport) -> Iterator[str]:
    if any(row.isolated.answers for row in report.rows):
        replicas = max(len(row.replicas) for row in report.rows)
        on = f" on {replicas} replicas" if replicas > 1 else ""
        yield (
            "Waits are the server's own word (x-determinism-admission-wait). Exclusive time is the isolated requests' "
            f"running time{on}; the drains before it are not in it."
        )
    yield (
        "tokens/s spreads each answer's tokens over the time it ran and counts what falls into the window; requests "
        "count where they end."
    )
