"""What a run found, and how it reads: the table for people, the sentences beside it, the exit status. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from rich import box
from rich.table import Table
from rich.text import Text

from app.determinism.mode import DETERMINISTIC_MODES, MODE_MITIGATIONS, Mitigation, Mode
from app.determinism.statistics import rate_text
from app.probe.experiment import Experiment
from app.probe.tally import Row, Spread, Status, WaitSource

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
        """130 when interrupted; else 1 when a deterministic mode diverged, 2 when requests failed, 0 otherwise."""
        if self.interrupted:
            return EXIT_INTERRUPTED
        if any(row.alarm for row in self.rows):
            return EXIT_DIVERGED
        if any(row.status is Status.FAILED for row in self.rows):
            return EXIT_NOT_MEASURED
        return EXIT_FINE


def render_table(report: Report) -> Table:
    """The table: one line per mode."""
    table = Table(title=_title(report), title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("mode", no_wrap=True)
    table.add_column("repeats", justify="right")
    table.add_column("distinct\noutputs", justify="right")
    table.add_column("diverged", overflow="fold", min_width=18)
    table.add_column("first fork")
    table.add_column("co-resident\npeak", justify="right")
    table.add_column("tokens/s", justify="right")
    table.add_column("load\ntokens/s", justify="right")
    table.add_column("added wait\nmedian / p95", justify="right", no_wrap=True)
    for row in report.rows:
        table.add_row(*(Text(cell, style=_style(row)) for cell in _cells(row)))
    return table


def notes(report: Report) -> tuple[str, ...]:
    """What must be said beside the figures, the closing sentence last."""
    return (*_findings(report), *_doubts(report), _closing(report))


def _title(report: Report) -> str:
    experiment = report.experiment
    prompts = len(experiment.prompts)
    what = f"{prompts} prompt{'s' if prompts > 1 else ''}" + (" in one request" if experiment.together else "")
    seed = "" if experiment.seed is None else f", seed {experiment.seed}"
    return (
        f"{report.model or 'unknown model'} at {experiment.url}: {what}, {experiment.repeats} repeats each, "
        f"{experiment.tokens} tokens, temperature {experiment.temperature:g}{seed}, "
        f"{experiment.concurrency} at a time over a load of {experiment.load}"
    )


def _style(row: Row) -> str:
    if row.alarm or row.status is Status.FAILED:
        return "bold red"
    if row.status is Status.UNAVAILABLE:
        return "dim"
    return "yellow" if row.diverged else ""


def _cells(row: Row) -> Iterator[str]:
    yield row.mode.value
    yield str(row.compared) if row.compared == row.asked else f"{row.compared} of {row.asked}"
    yield _distinct(row.distinct)
    yield _diverged(row)
    yield _fork(row)
    yield (_UNKNOWN if row.answers else _NONE) if row.peak is None else str(row.peak)
    yield _NONE if row.tokens_per_second is None else f"{row.tokens_per_second:.0f}"
    yield _NONE if row.background_per_second is None else f"{row.background_per_second:.0f}"
    yield _NONE if row.wait is None else _wait(row.wait, row.wait_source)


def _distinct(counts: tuple[int, ...]) -> str:
    if not counts:
        return _NONE
    if len(counts) <= _QUESTIONS_LISTED:
        return " ".join(map(str, counts))
    return f"{min(counts)} to {max(counts)}"


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


def _wait(wait: Spread, source: WaitSource | None) -> str:
    sign = "" if source is WaitSource.ADMISSION else "+"
    return f"{wait.median:{sign}.2f} / {wait.high:{sign}.2f} s"


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
