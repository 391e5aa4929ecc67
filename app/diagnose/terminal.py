"""The report at a terminal: a table of findings, one of rungs, one of modes, and the sentences beside them."""

import json
from collections.abc import Iterator

from rich import box
from rich.table import Table
from rich.text import Text

from app.comparison.plain import one_line
from app.determinism.mode import DETERMINISTIC_MODES
from app.determinism.statistics import rate_text
from app.diagnose.cure import Cure, untried
from app.diagnose.findings import State
from app.diagnose.report import TITLES, Report, confidence, counted, doubts, summary
from app.diagnose.rungs import Rung

_STYLES = {
    State.PRESENT: "bold red",
    State.LOGPROBS_ONLY: "yellow",
    State.UNDECIDED: "yellow",
    State.NOT_SEEN: "",
    State.UNTESTED: "dim",
}
_REASON_CHARACTERS = 300


def tables(report: Report) -> Iterator[Table]:
    """Findings, rungs, and the modes where any was measured."""
    yield _findings(report)
    yield _rungs(report)
    if report.cures:
        yield _modes(report)


def sentences(report: Report) -> Iterator[str]:
    """The verdict by layer, the advice with what to send, and what must be said beside it."""
    yield from summary(report.verdict)
    yield ""
    yield from report.advice.sentences
    for name, value in report.advice.header.items():
        yield f"  as a header:    {name}: {value}"
    if report.advice.body:
        yield f"  or in the body: {json.dumps(dict(report.advice.body))}"
    said = doubts(report)
    if said:
        yield ""
    for doubt in said:
        yield one_line(doubt, _REASON_CHARACTERS)
    yield (
        'What the numbers mean: "0 of 24, below 11.8 % (95 %)" says that a true rate above that bound would rarely '
        "show so few; it is not never. p is how often chance alone would part the answers as well as the condition did."
    )


def _findings(report: Report) -> Table:
    deployment = report.deployment
    title = (
        f"{one_line(deployment.model, 80)} at {deployment.url}: {len(deployment.prompts)} prompts, "
        f"{report.course.tokens} tokens, temperature {report.investigation.temperature:g}, {report.seconds:.0f} s"
    )
    table = _table(title, "layer", "suspect", "verdict", "evidence: answers that differ", "chance", "what was compared")
    for finding in report.verdict.findings:
        reason = one_line(finding.reason, _REASON_CHARACTERS)
        cells = (TITLES[finding.suspect], finding.state.value, counted(finding), confidence(finding), reason)
        table.add_row(finding.layer.value, *(Text(cell, style=_STYLES[finding.state]) for cell in cells))
    return table


def _rungs(report: Report) -> Table:
    table = _table("The ladder", "rung", "rounds", "requests", "seconds", "left out or cut short because")
    for rung in Rung:
        record = report.evidence.records.get(rung)
        if record is not None:
            cells = (str(record.rounds), str(record.requests), f"{record.seconds:.0f}", record.reason or "")
        else:
            cells = ("-", "-", "-", report.evidence.missing.get(rung, "it was not reached"))
        table.add_row(rung.value, *(Text(one_line(cell, _REASON_CHARACTERS)) for cell in cells))
    return table


def _modes(report: Report) -> Table:
    table = _table(
        "The gateway's modes under load", "mode", "diverged", "tokens/s, load included", "added wait, median"
    )
    for cure in report.cures:
        table.add_row(cure.mode.value, *(Text(cell, style=_style(cure)) for cell in _mode(cure)))
    return table


def _mode(cure: Cure) -> tuple[str, str, str]:
    reason = untried(cure)
    if reason is not None:
        return one_line(reason, _REASON_CHARACTERS), "-", "-"
    wait = "-" if cure.row.wait is None else f"{cure.row.wait.median:.2f} s"
    return rate_text(cure.row.diverged, cure.row.compared), f"{cure.tokens_per_second:.0f}", wait


def _style(cure: Cure) -> str:
    if not cure.measured:
        return "dim"
    return "bold red" if cure.row.diverged and cure.mode in DETERMINISTIC_MODES else ""


def _table(title: str, *columns: str) -> Table:
    table = Table(title=Text(title), title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    table.padding = (0, 1, 0, 0)
    for column in columns:
        table.add_column(column, overflow="fold")
    return table
