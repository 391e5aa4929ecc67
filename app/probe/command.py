"""``reprise probe`` at a terminal: arguments in, table or JSON out, progress on standard error."""

import argparse
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import anyio
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from app.determinism.mode import Mode
from app.probe.arguments import misplaced
from app.probe.document import to_document
from app.probe.experiment import Experiment, NotMeasurable
from app.probe.mix_command import run_mix
from app.probe.report import EXIT_INTERRUPTED, EXIT_NOT_MEASURED, Report, notes, render_tables
from app.probe.runner import Probe, Watch
from app.probe.terminal import Lines

_WIDTH_WITHOUT_TERMINAL: Final = 160


def run(arguments: argparse.Namespace) -> int:
    """Run the probe; the exit status is returned (0 fine, 1 diverged, 2 not measured, 130 interrupted)."""
    try:
        _refuse_misplaced(arguments)
        if arguments.mix is not None:
            return run_mix(arguments, os.environ)
        experiment = Experiment.of(arguments, os.environ)
        return _measure(experiment, as_json=arguments.json)
    except NotMeasurable as exc:
        sys.stderr.write(f"reprise probe: {exc}\n")
        return EXIT_NOT_MEASURED


def _refuse_misplaced(arguments: argparse.Namespace) -> None:
    if unfit := misplaced(arguments):
        beside = "without" if arguments.mix is None else "beside"
        raise NotMeasurable(f"{', '.join(unfit)}: no meaning {beside} --mix")


def _measure(experiment: Experiment, *, as_json: bool) -> int:
    interrupted = False
    with _progress(experiment) as watch:
        probe = Probe(experiment, watch=watch)
        try:
            anyio.run(probe.run)
        except KeyboardInterrupt:
            interrupted = True
    if interrupted and not any(row.answers or row.reason for row in probe.rows):
        sys.stderr.write("reprise probe: interrupted before the first answer\n")
        return EXIT_INTERRUPTED
    report = _report(experiment, probe, interrupted=interrupted)
    if as_json:
        sys.stdout.write(json.dumps(to_document(report), indent=2) + "\n")
    else:
        _print(report)
    return report.exit_code


def _report(experiment: Experiment, probe: Probe, *, interrupted: bool) -> Report:
    load = probe.load
    if load is None:
        return Report(experiment, probe.model, probe.rows, interrupted=interrupted)
    return Report(
        experiment, probe.model, probe.rows, load.requests, load.failures, load.last_failure, interrupted=interrupted
    )


def _print(report: Report) -> None:
    console = Console(highlight=False)
    if not console.is_terminal:
        # A file or a pipe has no width of its own, and a wrapped table is hard to read and to search.
        console.width = _WIDTH_WITHOUT_TERMINAL
    for table in render_tables(report, console.width):
        console.print(table)
    for note in notes(report):
        console.print(note, markup=False)


@contextmanager
def _progress(experiment: Experiment) -> Iterator[Watch]:
    """One bar per mode begun, on standard error, or lines where that is no terminal."""
    console = Console(stderr=True)
    if not console.is_terminal:
        lines = Lines()
        yield lambda mode, requests: lines.advance(mode.value, requests, experiment.requests)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    tasks: dict[Mode, TaskID] = {}
    with Progress(*columns, console=console, transient=True) as progress:

        def watch(mode: Mode, requests: int) -> None:
            if mode not in tasks:
                tasks[mode] = progress.add_task(mode.value, total=experiment.requests)
            progress.advance(tasks[mode], requests)

        yield watch
