"""A fleet in simulated time: clients in a closed loop, replicas with their locks, and an event queue over both.

The same sequence of requests as the probe sends (`app.probe.mix_draws`) is routed as the scheduler routes
(`app.simulation.routing`), and each replica admits by the product's own gate, driven by the simulated clock. An event
costs O(log n): a client sends, or a replica's next request ends. After the horizon clients send nothing more, and what
is under way runs to its end, so that a request that the lock forgot would show.
"""

from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Final

from app.errors import QueueFull
from app.probe.mix_draws import Draws, mean_tokens
from app.probe.mix_figures import Quantiles, quantiles
from app.scheduling.ticket import Admission
from app.simulation.engine import EngineModel
from app.simulation.replica import Lock, SimulatedReplica, Work
from app.simulation.routing import Expectations, Router

_CLIENT: Final = -1
"""In the event queue, in the place of a replica's number."""

MakeLock = Callable[[Callable[[], float]], Lock]
"""A lock for one replica, from the simulated clock."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """What is simulated. ``clients`` are those of the whole fleet; ``warmup``, ``seconds`` and ``spill`` in seconds."""

    engine: EngineModel
    replicas: int
    clients: int
    percent: float
    warmup: float
    seconds: float
    make_lock: MakeLock
    spill: float
    seed: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of it in the window after the warm-up; ``started``, ``ended`` and ``refused`` count the whole run.

    Tokens count as in the probe: by the part of an answer's running time that lies in the window.
    """

    tokens_per_second: float
    shared: Quantiles | None
    isolated: Quantiles | None
    exclusive_share: float
    started: int
    ended: int
    refused: int


def simulate(scenario: Scenario) -> Outcome:
    """Run it. Equal scenarios have equal outcomes."""
    return _Run(scenario).outcome()


class _Run:
    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._now = 0.0
        self._replicas = [
            SimulatedReplica(scenario.make_lock(self._clock), scenario.engine, self._clock)
            for _ in range(scenario.replicas)
        ]
        self._versions = [0] * scenario.replicas
        engine, mean = scenario.engine, mean_tokens()
        per_replica = scenario.clients / scenario.replicas
        self._router = Router(
            scenario.replicas, Expectations(engine.latency(1, mean), engine.latency(per_replica, mean), scenario.spill)
        )
        self._draws = Draws(scenario.percent, seed=scenario.seed)
        self._began, self._until = scenario.warmup, scenario.warmup + scenario.seconds
        self._order = 0
        # Moment, order of planning (so that equal moments keep it), replica or client, version of the replica.
        self._events: list[tuple[float, int, int, int]] = []
        self._waits: dict[Admission, list[float]] = {admission: [] for admission in Admission}
        self._tokens = self._exclusive = 0.0
        self._started = self._ended = self._refused = 0

    def outcome(self) -> Outcome:
        scenario = self._scenario
        # Spread over the time of one answer: a fleet whose clients all begin at once needs longer to settle.
        spread = scenario.engine.latency(scenario.clients / scenario.replicas, mean_tokens())
        for client in range(scenario.clients):
            self._plan(spread * client / scenario.clients, _CLIENT, 0)
        while self._events:
            self._now, _, place, version = heappop(self._events)
            if place == _CLIENT:
                self._send()
            elif version == self._versions[place]:
                self._end(place)
        return Outcome(
            tokens_per_second=self._tokens / scenario.seconds,
            shared=quantiles(self._waits[Admission.SHARED]),
            isolated=quantiles(self._waits[Admission.EXCLUSIVE]),
            exclusive_share=self._exclusive / (scenario.seconds * scenario.replicas),
            started=self._started,
            ended=self._ended,
            refused=self._refused,
        )

    def _clock(self) -> float:
        return self._now

    def _plan(self, moment: float, place: int, version: int) -> None:
        self._order += 1
        heappush(self._events, (moment, self._order, place, version))

    def _send(self) -> None:
        """A client sends its next request, unless the run is over."""
        if self._now >= self._until:
            return
        draw = self._draws.draw()
        admission = Admission.EXCLUSIVE if draw.isolated else Admission.SHARED
        work = Work(admission, draw.tokens, self._now)
        place = self._router.take(admission)
        self._started += 1
        try:
            self._replicas[place].ask(work)
        except QueueFull as full:
            self._refused += 1
            self._router.give_back(place, admission)
            self._plan(self._now + (full.retry_after or 1.0), _CLIENT, 0)
        self._replan(place)

    def _end(self, place: int) -> None:
        """The next request of a replica ends, and its client goes on."""
        work = self._replicas[place].end_next()
        self._ended += 1
        self._router.give_back(place, work.admission)
        inside = min(self._now, self._until) - max(work.granted, self._began)
        if inside > 0:
            self._tokens += work.tokens * inside / (self._now - work.granted)
            if work.admission is Admission.EXCLUSIVE:
                self._exclusive += inside
        if self._began < self._now <= self._until:
            self._waits[work.admission].append(work.granted - work.asked)
        self._replan(place)
        self._send()

    def _replan(self, place: int) -> None:
        """Plan the next end of a replica anew; what was planned before is void."""
        self._versions[place] += 1
        moment = self._replicas[place].next_end()
        if moment is not None:
            self._plan(moment, place, self._versions[place])
