"""The sweep in simulation: the measured one again, to judge the model by, and then fleets of other sizes."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from app.probe.mix_draws import DEFAULT_SEED, mean_tokens
from app.scheduling.gate import Gate, GatePolicy
from app.simulation.engine import EngineModel
from app.simulation.fifo import FifoLock
from app.simulation.fleet import MakeLock, Outcome, Scenario, simulate
from app.simulation.measured import Measured, MeasuredRow

_REQUESTS: Final = 100_000
"""Requests from which a simulated percentage is exact enough: rates to about one in a thousand."""

_MOST_REQUESTS: Final = 700_000
"""Requests after which it ends although waits may not have settled, so that a sweep takes a minute and not an hour."""

_SPILLS: Final = 4
"""Horizon over spill threshold: queues of isolated work grow up to that threshold, and must be full to be counted."""

_SETTLING: Final = 120.0
"""Seconds that it takes at the least: where most work is isolated, queues go on growing for some longest waits."""

_LONGEST: Final = 1_800.0
_WARMUP_PART: Final = 3

LOCKS: Final[dict[str, Callable[[GatePolicy], MakeLock]]] = {
    "phase-fair": lambda policy: lambda clock: Gate(policy, clock=clock),
    "fifo": lambda _policy: lambda _clock: FifoLock(),
}
"""What can admit: the product's gate, or a plain FIFO reader/writer lock."""


@dataclass(frozen=True, slots=True)
class SweepPlan:
    """What is simulated. ``clients`` are those of one replica; ``spill`` is in seconds."""

    replicas: tuple[int, ...]
    clients: int
    percentages: tuple[float, ...]
    gate: str
    spill: float
    policy: GatePolicy = field(default_factory=GatePolicy)
    seed: int = DEFAULT_SEED


@dataclass(frozen=True, slots=True)
class Horizon:
    """Simulated seconds; the warm-up is not counted. ``settled`` says whether it is long enough for full queues."""

    warmup: float
    seconds: float
    settled: bool


@dataclass(frozen=True, slots=True)
class FleetRow:
    """One size of fleet at one percentage. ``retention`` is None where 0 % was not simulated."""

    replicas: int
    clients: int
    percent: float
    horizon: Horizon
    outcome: Outcome
    retention: float | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """One percentage as measured and as simulated."""

    measured: MeasuredRow
    simulated: Outcome

    @property
    def error(self) -> float:
        """The relative error in tokens per second; a model that promises too much has a positive one."""
        return self.simulated.tokens_per_second / self.measured.tokens_per_second - 1


def horizon(engine: EngineModel, replicas: int, clients: int, spill: float) -> Horizon:
    """How long to simulate so many replicas with ``clients`` each."""
    rate = replicas * engine.throughput(clients, mean_tokens()) / mean_tokens()
    settling = max(_SPILLS * spill, _SETTLING)
    total = min(max(_REQUESTS / rate, settling), _MOST_REQUESTS / rate, _LONGEST)
    return Horizon(total / _WARMUP_PART, total - total / _WARMUP_PART, settled=total >= settling)


def compare(engine: EngineModel, measured: Measured, plan: SweepPlan) -> Iterator[Comparison]:
    """The measured sweep, simulated: as many replicas and clients, and the same sequence of requests."""
    per_replica = max(1, round(measured.clients / measured.replicas))
    length = horizon(engine, measured.replicas, per_replica, plan.spill)
    for row in measured.rows:
        if row.tokens_per_second > 0:
            scenario = _scenario(engine, plan, measured.replicas, measured.clients, row.percent, length)
            yield Comparison(row, simulate(scenario))


def sweep(
    engine: EngineModel, plan: SweepPlan, *, watch: Callable[[str], None] = lambda _what: None
) -> Iterator[FleetRow]:
    """Every size of fleet at every percentage; ``watch`` is told what begins."""
    for replicas in plan.replicas:
        length = horizon(engine, replicas, plan.clients, plan.spill)
        clients = replicas * plan.clients
        outcomes: dict[float, Outcome] = {}
        for percent in plan.percentages:
            watch(f"{replicas} replica{'s' if replicas > 1 else ''}, {percent:g} % isolated")
            outcomes[percent] = simulate(_scenario(engine, plan, replicas, clients, percent, length))
        base = outcomes[0].tokens_per_second if 0 in outcomes else None
        for percent, outcome in outcomes.items():
            kept = outcome.tokens_per_second / base if base else None
            yield FleetRow(replicas, clients, percent, length, outcome, kept)


def _scenario(
    engine: EngineModel, plan: SweepPlan, replicas: int, clients: int, percent: float, length: Horizon
) -> Scenario:
    return Scenario(
        engine=engine,
        replicas=replicas,
        clients=clients,
        percent=percent,
        warmup=length.warmup,
        seconds=length.seconds,
        make_lock=LOCKS[plan.gate](plan.policy),
        spill=plan.spill,
        seed=plan.seed,
    )
