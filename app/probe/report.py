"""What a run found, and how it reads: the table for people, the sentences beside it, the exit status. Pure."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Literal

from rich import box
from rich.table import Table
from rich.text import Text

from app.determinism.mode import DETERMINISTIC_MODES, MODE_MITIGATIONS, Mitigation, Mode
from app.determinism.statistics import rate_text
from app.probe.experiment import Experiment
from app.probe.tally import Row, Status, WaitSource

EXIT_FINE: Final = 0
EXIT_DIVERGED: Final = 1
EXIT_NOT_MEASURED: Final = 2
EXIT_INTERRUPTED: Final = 130

_QUESTIONS_LISTED: Final = 6
_UNKNOWN: Final = "unknown"
_NONE: Final = "-"


@dataclass(frozen=True, slots=True)
class Report:
    """The whole finding. ``load_*`` count the background requests; ``interrupted`` says that the run was cut short."""

    experiment: Experiment
    model: str | None
    rows: tuple[Row, ...]
    load_requests: int = 0
    load_failures: int = 0
    load_failure: str | None = None
    interrupted: bool = False

    @property
    def exit_code(self) -> int:
        """130 interrupted; else 1 when a deterministic mode diverged; 2 when requests failed or nothing measured."""
        if self.interrupted:
            return EXIT_INTERRUPTED
        if any(row.alarm for row in self.rows):
            return EXIT_DIVERGED
        failed = any(row.status is Status.FAILED for row in self.rows)
        measured = any(row.status is Status.MEASURED for row in self.rows)
        return EXIT_NOT_MEASURED if failed or not measured else EXIT_FINE


def render_tables(report: Report, width: int) -> tuple[Table, ...]:
    """One line per mode, in one table, or in two where ``width`` (characters) is too small for all the columns."""
    if width >= _WIDTH_OF_ALL_COLUMNS:
        return (_table(report, _COLUMNS, _title(report)),)
    return _table(report, _COLUMNS[:_FIRST_HALF], _title(report)), _table(
        report, (_COLUMNS[0], *_COLUMNS[_FIRST_HALF:])
    )


def notes(report: Report) -> tuple[str, ...]:
    """What must be said beside the figures, the closing sentence last."""
    return (*_findings(report), *_doubts(report), _closing(report))


def _table(report: Report, columns: tuple["_Column", ...], title: str | None = None) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    table.padding = (0, 1, 0, 0)
    for column in columns:
        table.add_column(column.header, justify=column.justify, min_width=column.width, overflow="fold")
    for row in report.rows:
        table.add_row(*(Text(column.cell(row), style=_style(row)) for column in columns))
    return table


def _title(report: Report) -> str:
    experiment = report.experiment
    prompts = len(experiment.prompts)
    what = f"{prompts} prompt{'s' if prompts > 1 else ''}" + (" in one request" if experiment.together else "")
    seed = "" if experiment.seed is None else f", seed {experiment.seed}"
    return (
        f"{report.model or 'unknown model'} at {experiment.url}: {what}, {experiment.repeats} repeat"
        f"{'s' if experiment.repeats > 1 else ''} each, "
        f"{experiment.tokens} tokens, temperature {experiment.temperature:g}{seed}, "
        f"{experiment.concurrency} at a time over a load of {experiment.load}"
    )


def _style(row: Row) -> str:
    if row.alarm or row.status is Status.FAILED:
        return "bold red"
    if row.status is Status.UNAVAILABLE:
        return "dim"
    return "yellow" if row.diverged else ""


def _repeats(row: Row) -> str:
    return str(row.compared) if row.compared == row.asked else f"{row.compared} of {row.asked}"


def _distinct(row: Row) -> str:
    if not row.distinct:
        return _NONE
    if len(row.distinct) <= _QUESTIONS_LISTED:
        return " ".join(map(str, row.distinct))
    return f"{min(row.distinct)} to {max(row.distinct)}"


def _diverged(row: Row) -> str:
    said = rate_text(row.diverged, row.compared) if row.compared else ""
    match row.status:
        case Status.UNAVAILABLE:
            return "; ".join(filter(None, (said, f"unavailable: {row.reason}")))
        case Status.FAILED:
            return "; ".join(filter(None, (said, f"{row.failed} failed: {row.reason}")))
        case _:
            return said or "nothing measured"


def _fork(row: Row) -> str:
    if row.fork is None:
        return _UNKNOWN if row.diverged else _NONE
    return f"token {row.fork}" if row.diverged == 1 else f"token {row.fork} (median {row.fork_median:g})"


def _peak(row: Row) -> str:
    if row.peak is None:
        return _UNKNOWN if row.answers else _NONE
    return str(row.peak)


def _rate(rate: float | None) -> str:
    return _NONE if rate is None else f"{rate:.0f}"


def _wait(row: Row) -> str:
    if row.wait is None:
        return _NONE
    sign = "" if row.wait_source is WaitSource.ADMISSION else "+"
    return f"{row.wait.median:{sign}.2f} / {row.wait.high:{sign}.2f} s"


@dataclass(frozen=True, slots=True)
class _Column:
    """A column: its header, how a mode's cell in it reads, and the least width at which it stays readable."""

    header: str
    cell: Callable[[Row], str]
    width: int
    justify: Literal["left", "right"] = "right"


_COLUMNS: Final = (
    _Column("mode", lambda row: row.mode.value, 9, "left"),
    _Column("repeats", _repeats, 7),
    _Column("distinct\noutputs", _distinct, 8),
    _Column("diverged", _diverged, 20, "left"),
    _Column("first fork", _fork, 13, "left"),
    _Column("co-resident\npeak", _peak, 11),
    _Column("tokens/s", lambda row: _rate(row.tokens_per_second), 8),
    _Column("load\ntokens/s", lambda row: _rate(row.background_per_second), 8),
    _Column("added wait\nmedian / p95", _wait, 18),
)
_FIRST_HALF: Final = 5
_WIDTH_OF_ALL_COLUMNS: Final = 130


def _findings(report: Report) -> Iterator[str]:
    for row in report.rows:
        if row.alarm:
            yield f"{row.mode}: {rate_text(row.diverged, row.compared)} diverged, in a mode that is meant to repeat."
        if row.mode is Mode.STANDARD and row.compared and not row.diverged:
            yield (
                f"standard: no divergence seen, {rate_text(0, row.compared)}. Nothing holds it there: these prompts "
                f"under this load did not show one. More --load, --repeats or other --prompts may."
            )


def _doubts(report: Report) -> Iterator[str]:
    rows, experiment = report.rows, report.experiment
    silent = [row.mode.value for row in rows if row.answers and not row.confirmed and row.mode is not Mode.STANDARD]
    if silent:
        yield f"The server did not confirm {', '.join(silent)}: it may have answered as if no mode had been asked for."
    for row in rows:
        if Mitigation.BATCH_ISOLATION in MODE_MITIGATIONS[row.mode] and row.peak is not None and row.peak > 1:
            yield f"{row.mode}: the co-resident peak is {row.peak}, so a request was not alone on the engine."
    if experiment.temperature > 0 and experiment.seed is None and any(row.mode is Mode.STANDARD for row in rows):
        yield "standard samples without a seed here, so its answers differ by design; --seed pins it."
    if report.load_failures:
        yield (
            f"{report.load_failures} of {report.load_requests} background requests failed ({report.load_failure}), so "
            f"the load was lighter than asked for."
        )
    if any(row.wait_source is WaitSource.LATENCY_OVER_STANDARD for row in rows):
        yield "Added wait is the answer's latency over that of standard in this run."
    if report.interrupted:
        yield "Interrupted: the figures cover what had been answered by then."


def _closing(report: Report) -> str:
    if not any(row.compared for row in report.rows):
        return "Nothing was compared, so nothing is known."
    zero = next(
        (row for row in report.rows if row.compared and not row.diverged and row.mode in DETERMINISTIC_MODES), None
    )
    zero = zero or next((row for row in report.rows if row.compared and not row.diverged), None)
    example = f'"{rate_text(0, zero.compared)}"' if zero else '"0 of n, below x %"'
    return (
        f"What the numbers mean: {example} says that a true rate above that bound would rarely show so few "
        f"divergences; it is not never, and it speaks of these prompts on this engine under this load only."
    )
