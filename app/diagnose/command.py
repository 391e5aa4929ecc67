"""``reprise diagnose`` at a terminal: arguments in, tables, JSON and a page out, progress on standard error."""

import argparse
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import anyio
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from app.diagnose.advice import advise
from app.diagnose.diagnosis import Diagnosis, Watch
from app.diagnose.document import to_document
from app.diagnose.investigation import Investigation
from app.diagnose.page import to_page
from app.diagnose.report import EXIT_INTERRUPTED, EXIT_NOT_MEASURED, Report
from app.diagnose.terminal import sentences, tables
from app.probe.experiment import NotMeasurable
from app.probe.terminal import Lines, show

_STEPS: Final = 1000


def run(arguments: argparse.Namespace) -> int:
    """Run the diagnosis; the exit status is returned (0 fine, 1 diverged, 2 not measured, 130 interrupted)."""
    try:
        investigation = Investigation.of(arguments, os.environ)
        if arguments.html is not None:
            _check_page(Path(arguments.html))
        report = _diagnose(investigation)
        if report is None:
            sys.stderr.write("reprise diagnose: interrupted before the ladder began\n")
            return EXIT_INTERRUPTED
    except NotMeasurable as exc:
        sys.stderr.write(f"reprise diagnose: {exc}\n")
        return EXIT_NOT_MEASURED
    # A page that cannot be written does not cost the findings.
    lost = None if arguments.html is None else _write_page(Path(arguments.html), to_page(report))
    exit_code = report.exit_code(arguments.fail_on) if lost is None else EXIT_NOT_MEASURED
    if arguments.json:
        sys.stdout.write(json.dumps(to_document(report, exit_code), indent=2) + "\n")
    else:
        show(tables(report), sentences(report))
    if arguments.html is not None:
        sys.stderr.write(f"reprise diagnose: {lost or f'the page is {arguments.html}'}\n")
    return exit_code


def _diagnose(investigation: Investigation) -> Report | None:
    interrupted = False
    with _progress() as watch:
        diagnosis = Diagnosis(investigation, watch=watch)
        try:
            anyio.run(diagnosis.run)
        except KeyboardInterrupt:
            interrupted = True
    return report_of(investigation, diagnosis, interrupted=interrupted)


def report_of(investigation: Investigation, diagnosis: Diagnosis, *, interrupted: bool = False) -> Report | None:
    """What a run has found so far; None before its ladder began."""
    deployment, course, verdict = diagnosis.deployment, diagnosis.course, diagnosis.verdict
    if deployment is None or course is None or verdict is None:
        return None
    return Report(
        investigation=investigation,
        deployment=deployment,
        course=course,
        evidence=diagnosis.evidence,
        verdict=verdict,
        cures=diagnosis.cures,
        advice=advise(verdict, diagnosis.cures, gateway=deployment.gateway),
        seconds=diagnosis.seconds,
        left_out=diagnosis.left_out,
        crowded=diagnosis.crowded,
        interrupted=interrupted,
    )


def _check_page(path: Path) -> None:
    """Before the run, so that a typing error does not cost its minutes."""
    if not path.parent.is_dir() or path.is_dir():
        raise NotMeasurable(f"--html: cannot write {path}: {'it is a folder' if path.is_dir() else 'no such folder'}")


def _write_page(path: Path, page: str) -> str | None:
    """Why it could not be written; None when it was."""
    try:
        path.write_text(page, encoding="utf-8")
    except OSError as exc:
        return f"--html: cannot write {path}: {exc.strerror or exc}"
    return None


@contextmanager
def _progress() -> Iterator[Watch]:
    """A bar of the budget on standard error, or a line for each rung where that is no terminal."""
    console = Console(stderr=True)
    if not console.is_terminal:
        lines = Lines("reprise diagnose")
        yield lambda what, _part: lines.change(what)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("of the budget"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("looking at the server", total=_STEPS)
        yield lambda what, part: bar.update(task, description=what, completed=int(part * _STEPS))
