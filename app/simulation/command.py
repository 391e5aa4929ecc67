"""``reprise simulate`` at a terminal: a measured document in, tables or JSON out, progress on standard error."""

import argparse
import json
import sys
from pathlib import Path
from typing import Final

from app.probe.terminal import progress, show
from app.scheduling.gate import GatePolicy
from app.simulation.fit import fit
from app.simulation.measured import Measured, NotUsable, read_measured
from app.simulation.report import SimulationReport, notes, render, to_document
from app.simulation.sweep import SweepPlan, compare, sweep

EXIT_FINE: Final = 0
EXIT_NOT_USABLE: Final = 2
EXIT_INTERRUPTED: Final = 130


def run(arguments: argparse.Namespace) -> int:
    """Run the simulation; the exit status is returned (0 fine, 2 not usable, 130 interrupted)."""
    try:
        report = _simulate(arguments)
    except NotUsable as exc:
        sys.stderr.write(f"reprise simulate: {exc}\n")
        return EXIT_NOT_USABLE
    except KeyboardInterrupt:
        sys.stderr.write("reprise simulate: interrupted\n")
        return EXIT_INTERRUPTED
    if arguments.json:
        sys.stdout.write(json.dumps(to_document(report), indent=2) + "\n")
    else:
        show(render(report), notes(report))
    return EXIT_FINE


def plan_of(arguments: argparse.Namespace, measured: Measured) -> SweepPlan:
    """What the command line asks for; what it leaves open is as in the measured run. Raises NotUsable."""
    measured_mix = tuple(row.percent for row in measured.rows)
    percentages = measured_mix if arguments.mix is None else arguments.mix
    if not percentages:
        raise NotUsable(f"{arguments.source} holds no measured percentage; say which with --mix")
    return SweepPlan(
        replicas=arguments.replicas,
        clients=arguments.clients_per_replica or max(1, round(measured.clients / measured.replicas)),
        percentages=percentages,
        gate=arguments.gate,
        spill=arguments.spill,
        policy=GatePolicy(arguments.share, arguments.phase_seconds),
    )


def _simulate(arguments: argparse.Namespace) -> SimulationReport:
    measured = read_measured(Path(arguments.source))
    plan = plan_of(arguments, measured)
    fitted = fit(measured)
    with progress(1 + len(plan.replicas) * len(plan.percentages)) as watch:
        watch("the measured sweep")
        comparisons = tuple(compare(fitted.engine, measured, plan))
        rows = tuple(sweep(fitted.engine, plan, watch=watch))
    return SimulationReport(arguments.source, measured.model, plan, fitted, comparisons, rows)
