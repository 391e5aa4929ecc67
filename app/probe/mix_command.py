"""``reprise probe --mix`` at a terminal: arguments in, tables or JSON out, progress on standard error."""

import argparse
import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

import anyio
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from app.probe.mix import MixPlan, MixProbe, Watch
from app.probe.mix_document import to_mix_document
from app.probe.mix_report import MixReport, mix_notes, render_mix
from app.probe.report import EXIT_INTERRUPTED

_WIDTH_WITHOUT_TERMINAL: Final = 160


def run_mix(arguments: argparse.Namespace, environment: Mapping[str, str]) -> int:
    """Run it; the exit status is returned (0 fine, 1 not alone, 2 not measured, 130 interrupted).

    Raises NotMeasurable as `MixPlan.of` and `MixProbe.run` do.
    """
    plan = MixPlan.of(arguments, environment)
    interrupted = False
    with _progress(plan) as watch:
        probe = MixProbe(plan, watch=watch)
        try:
            anyio.run(probe.run)
        except KeyboardInterrupt:
            interrupted = True
    report = MixReport(plan, probe.model, probe.rows, probe.points, probe.lost, interrupted=interrupted)
    if interrupted and not report.measured:
        sys.stderr.write("reprise probe: interrupted before the first window was complete\n")
        return EXIT_INTERRUPTED
    if arguments.json:
        sys.stdout.write(json.dumps(to_mix_document(report), indent=2) + "\n")
    else:
        _print(report)
    return report.exit_code


def _print(report: MixReport) -> None:
    console = Console(highlight=False)
    if not console.is_terminal:
        # A file or a pipe has no width of its own, and a wrapped table is hard to read and to search.
        console.width = _WIDTH_WITHOUT_TERMINAL
    for table in render_mix(report):
        console.print(table)
    for note in mix_notes(report):
        console.print(note, markup=False)


@contextmanager
def _progress(plan: MixPlan) -> Iterator[Watch]:
    """One bar, on standard error, and only where that is a terminal."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as progress:
        task = progress.add_task("starting", total=plan.steps, completed=-1)

        def watch(what: str) -> None:
            progress.update(task, description=what, advance=1)

        yield watch
