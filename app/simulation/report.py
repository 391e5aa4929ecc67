"""What a simulation found, and how it reads: tables, the sentences beside them, one JSON document. Pure."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any, Final

from rich import box
from rich.table import Table

from app.probe.mix_figures import Quantiles
from app.simulation.arguments import GATES
from app.simulation.fit import Fit
from app.simulation.measured import Waits
from app.simulation.sweep import Comparison, FleetRow, SweepPlan

FORMAT: Final = "reprise-simulation/1"

_NONE: Final = "-"
_PERCENT: Final = 100
_MILLISECONDS: Final = 1000
_DOUBTFUL: Final = 0.2
"""Relative errors in tokens per second over this are no prediction."""

_SHORT: Final = 0.1
"""Seconds; relative errors of waits below it say nothing."""


@dataclass(frozen=True, slots=True)
class SimulationReport:
    """The whole finding."""

    source: str
    model: str
    plan: SweepPlan
    fit: Fit
    comparisons: tuple[Comparison, ...]
    rows: tuple[FleetRow, ...]


def render(report: SimulationReport) -> tuple[Table, ...]:
    """The fit, the measured sweep beside the simulated one, and the fleets."""
    return (_fit(report), _comparison(report), _fleets(report))


def notes(report: SimulationReport) -> tuple[str, ...]:
    """What must be said beside the figures."""
    return tuple(_notes(report))


def to_document(report: SimulationReport) -> dict[str, Any]:
    """What ``--json`` prints. Rates are per second, durations in seconds, unknown figures null."""
    return {
        "format": FORMAT,
        "from": report.source,
        "model": report.model,
        "settings": asdict(report.plan),
        "engine": asdict(report.fit.engine),
        "calibration": [
            {"clients": clients, "measured_tokens_per_second": measured, "model_tokens_per_second": model}
            for clients, measured, model in report.fit.points
        ],
        "comparison": [{**asdict(each), "tokens_per_second_error": each.error} for each in report.comparisons],
        "fleets": [asdict(row) for row in report.rows],
        "notes": list(notes(report)),
    }


def _fit(report: SimulationReport) -> Table:
    table = _table("the calibration", ("clients", "tokens/s\nmeasured", "tokens/s\nmodel", "error"))
    for clients, measured, model in report.fit.points:
        table.add_row(str(clients), f"{measured:.1f}", f"{model:.1f}", _error(model, measured))
    return table


def _comparison(report: SimulationReport) -> Table:
    table = _table(
        f"the measured sweep, simulated (gate: {report.plan.gate})",
        (
            "isolated",
            *("tokens/s\nmeasured", "tokens/s\nsimulated", "error"),
            *("shared wait p50 / p99\nmeasured", "shared wait p50 / p99\nsimulated"),
            *("isolated wait p50 / p99\nmeasured", "isolated wait p50 / p99\nsimulated"),
            *("exclusive time\nmeasured", "exclusive time\nsimulated"),
        ),
    )
    for each in report.comparisons:
        measured, simulated = each.measured, each.simulated
        table.add_row(
            f"{measured.percent:g} %",
            f"{measured.tokens_per_second:.1f}",
            f"{simulated.tokens_per_second:.1f}",
            _error(simulated.tokens_per_second, measured.tokens_per_second),
            *(_waits(measured.shared), _waits(simulated.shared)),
            *(_waits(measured.isolated), _waits(simulated.isolated)),
            *(_share(measured.exclusive_share), _share(simulated.exclusive_share)),
        )
    return table


def _fleets(report: SimulationReport) -> Table:
    table = _table(
        f"fleets, {report.plan.clients} clients per replica "
        f"(gate: {_gate(report.plan)}, spill at {report.plan.spill:g} s)",
        (
            *("replicas", "isolated", "tokens/s", "per\nreplica", "retention"),
            *("shared wait\np50 / p99", "isolated wait\np50 / p99", "exclusive\ntime", "simulated"),
        ),
    )
    before = None
    for row in report.rows:
        if before not in {None, row.replicas}:
            table.add_section()
        before = row.replicas
        rate = row.outcome.tokens_per_second
        table.add_row(
            *(str(row.replicas), f"{row.percent:g} %", f"{rate:.1f}", f"{rate / row.replicas:.1f}"),
            *(_share(row.retention), _waits(row.outcome.shared), _waits(row.outcome.isolated)),
            *(_share(row.outcome.exclusive_share), f"{row.horizon.seconds:.0f} s"),
        )
    return table


def _notes(report: SimulationReport) -> Iterator[str]:
    engine = report.fit.engine
    yield (
        f"The engine of {report.model} as fitted from {report.source}: a step of a batch of b takes "
        f"{engine.fixed * _MILLISECONDS:.2f} + {engine.each * _MILLISECONDS:.2f} b ms, and a request that begins holds "
        f"the batch up for {engine.prefill * _MILLISECONDS:.1f} ms."
    )
    yield (
        f"The model and the calibration: tokens/s within {_PERCENT * report.fit.error:.1f} % (root mean square over "
        f"{len(report.fit.points)} numbers of clients)."
    )
    if report.comparisons:
        worst = max(report.comparisons, key=lambda each: abs(each.error))
        mean = fmean(abs(each.error) for each in report.comparisons)
        yield (
            f"The simulation and the measured sweep: tokens/s off by {_PERCENT * mean:.1f} % on average, at most "
            f"{_PERCENT * worst.error:+.1f} % (at {worst.measured.percent:g} % isolated)." + _wait_errors(report)
        )
    else:
        yield "The document holds no measured sweep, so nothing is known of how well the simulation predicts one."
    if report.fit.error > _DOUBTFUL or any(abs(each.error) > _DOUBTFUL for each in report.comparisons):
        yield "DO NOT TRUST THESE FIGURES: they are off by over 20 % where they can be checked. Measure longer, alone."
    if any(not row.horizon.settled for row in report.rows):
        yield "Where the simulated time is short against the spill threshold, queues were not full: waits are too low."
    if refused := sum(row.outcome.refused for row in report.rows):
        yield f"{refused} simulated requests met a full queue and came again later."


def _gate(plan: SweepPlan) -> str:
    if plan.gate != GATES[0]:
        return plan.gate
    return f"{plan.gate}, share {plan.policy.exclusive_share:g}, phase {plan.policy.phase_seconds:g} s"


def _wait_errors(report: SimulationReport) -> str:
    """How far off waits are, over every quantile that was measured and is not short."""
    pairs = [
        (measured, simulated)
        for each in report.comparisons
        for ours, theirs in (
            (each.simulated.shared, each.measured.shared),
            (each.simulated.isolated, each.measured.isolated),
        )
        if ours is not None and theirs is not None
        for measured, simulated in ((theirs.p50, ours.p50), (theirs.p99, ours.p99))
        if measured >= _SHORT
    ]
    if not pairs:
        return ""
    mean = fmean(abs(simulated / measured - 1) for measured, simulated in pairs)
    return f" Waits (p50 and p99 of both classes, {len(pairs)} figures over {_SHORT:g} s): by {_PERCENT * mean:.0f} %."


def _table(title: str, headers: tuple[str, ...]) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    table.padding = (0, 1, 0, 0)
    for header in headers:
        table.add_column(header, justify="right", overflow="fold")
    return table


def _error(simulated: float, measured: float) -> str:
    return f"{_PERCENT * (simulated / measured - 1):+.1f} %"


def _waits(waits: Quantiles | Waits | None) -> str:
    return _NONE if waits is None else f"{waits.p50:.2f} / {waits.p99:.2f} s"


def _share(share: float | None) -> str:
    return _NONE if share is None else f"{share * _PERCENT:.1f} %"
