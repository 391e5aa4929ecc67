"""``reprise probe --mix`` at a terminal: arguments in, tables or JSON out, progress on standard error."""

import argparse
import json
import sys
from collections.abc import Mapping

import anyio

from app.probe.mix import MixPlan, MixProbe
from app.probe.mix_document import to_mix_document
from app.probe.mix_report import MixReport, mix_notes, render_mix
from app.probe.report import EXIT_INTERRUPTED
from app.probe.terminal import progress, show


def run_mix(arguments: argparse.Namespace, environment: Mapping[str, str]) -> int:
    """Run it; the exit status is returned (0 fine, 1 not alone, 2 not measured, 130 interrupted).

    Raises NotMeasurable as `MixPlan.of` and `MixProbe.run` do.
    """
    plan = MixPlan.of(arguments, environment)
    interrupted = False
    with progress(plan.steps, lines=True) as watch:
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
        show(render_mix(report), mix_notes(report))
    return report.exit_code
