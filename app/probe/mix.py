"""Measures what isolation costs: mixed traffic at several percentages of isolated requests, in a closed loop.

The clients never stop between two percentages. What each is told to send changes, the requests of before come back,
a warm-up passes, and only then a window begins. With calibration the run starts with ordinary traffic of 1, 2, 4 ...
clients: tokens per second and latencies by batch size, from which `app.simulation` fits its engine.
"""

import argparse
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import anyio
import httpx

from app.determinism.mode import Mode
from app.probe.answer import Answer
from app.probe.arguments import Unset
from app.probe.experiment import Experiment, NotMeasurable
from app.probe.load import Sleep
from app.probe.mix_draws import DEFAULT_SEED, LENGTHS, Draw, Draws
from app.probe.mix_figures import MixRow, Point, Window, point_of, row_of
from app.probe.mix_traffic import ServerLost, Traffic, question_of
from app.probe.server import Asker, Clock, find_model, open_client

DEFAULT_CLIENTS: Final = 16
_CALIBRATION_PART: Final = 4
"""A calibration window is this part of a percentage's: its one class needs fewer answers for the same accuracy."""

Watch = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class MixPlan:
    """One run. ``seconds`` and ``warmup`` (seconds too) are those of each percentage, ``timeout`` of one answer."""

    url: str
    percentages: tuple[float, ...]
    model: str | None = None
    clients: int = DEFAULT_CLIENTS
    seconds: float = 60.0
    warmup: float = 5.0
    calibrate: bool = False
    api_key: str | None = None
    timeout: float = 300.0
    seed: int = DEFAULT_SEED

    @classmethod
    def of(cls, arguments: argparse.Namespace, environment: Mapping[str, str]) -> "MixPlan":
        """The run that the command line describes. Raises NotMeasurable naming the option that is wrong."""
        same = Experiment.of(arguments, environment)
        clients = DEFAULT_CLIENTS if isinstance(arguments.load, Unset) else arguments.load
        if clients < 1:
            raise NotMeasurable("--load: mixed traffic needs at least one client")
        return cls(
            url=same.url,
            percentages=arguments.mix,
            model=same.model,
            clients=clients,
            seconds=arguments.seconds,
            warmup=arguments.warmup,
            # Whoever keeps the document may want to simulate from it later; a table has no such use.
            calibrate=arguments.json if arguments.calibrate is None else arguments.calibrate,
            api_key=same.api_key,
            timeout=same.timeout,
        )

    @property
    def ladder(self) -> tuple[int, ...]:
        """The numbers of clients to calibrate with: powers of two, and the clients of the run."""
        if not self.calibrate:
            return ()
        powers = (2**exponent for exponent in range(self.clients.bit_length()))
        return tuple(dict.fromkeys((*powers, self.clients)))

    @property
    def calibration_seconds(self) -> float:
        """The length of one calibration window."""
        return self.seconds / _CALIBRATION_PART

    @property
    def steps(self) -> int:
        """How often `MixProbe` says that something begins."""
        return 1 + len(self.ladder) + len(self.percentages)


class MixProbe:
    """One run. `rows` and `points` may be read at any moment, also after a run that was cancelled.

    ``transport`` replaces the network, ``clock`` (monotonic seconds) and ``sleep`` time; ``watch`` is told what begins.
    ``lost`` says why a run that ended early did.
    """

    def __init__(
        self,
        plan: MixPlan,
        *,
        transport: httpx.AsyncBaseTransport | None = None,
        clock: Clock = time.monotonic,
        sleep: Sleep = anyio.sleep,
        watch: Watch = lambda _what: None,
    ) -> None:
        self._plan = plan
        self._transport = transport
        self._clock = clock
        self._sleep = sleep
        self._watch = watch
        self._windows: list[Window] = []
        self._calibrations: list[Window] = []
        self._traffic: Traffic | None = None
        self.model = plan.model
        self.lost: str | None = None

    @property
    def rows(self) -> tuple[MixRow, ...]:
        """The percentages measured so far, in order."""
        return tuple(row_of(window, self._traffic.exchanges) for window in self._windows) if self._traffic else ()

    @property
    def points(self) -> tuple[Point, ...]:
        """The calibration so far."""
        return (
            tuple(point_of(window, self._traffic.exchanges) for window in self._calibrations) if self._traffic else ()
        )

    async def run(self) -> None:
        """Calibrate and measure. Raises NotMeasurable when the server cannot be reached or does not isolate."""
        plan = self._plan
        client = open_client(
            plan.url,
            api_key=plan.api_key,
            timeout=plan.timeout,
            connections=plan.clients,
            transport=self._transport,
        )
        async with client:
            self.model = await find_model(client, plan.url, plan.model)
            ask = Asker(client, self.model, self._clock)
            await self._try_out(ask)
            traffic = self._traffic = Traffic(
                ask.send, Draws(seed=plan.seed), plan.clients, clock=self._clock, sleep=self._sleep
            )
            try:
                async with anyio.create_task_group() as group:
                    group.start_soon(traffic.run)
                    await self._sweep(traffic)
                    group.cancel_scope.cancel()
            except* ServerLost:
                self.lost = traffic.lost

    async def _sweep(self, traffic: Traffic) -> None:
        plan = self._plan
        for clients in plan.ladder:
            self._watch(f"calibration, {clients} client{'s' if clients > 1 else ''}")
            await self._window(traffic, self._calibrations, clients, 0.0, plan.calibration_seconds)
        for percent in plan.percentages:
            self._watch(f"{percent:g} % isolated")
            await self._window(traffic, self._windows, plan.clients, percent, plan.seconds)

    async def _window(self, traffic: Traffic, into: list[Window], clients: int, percent: float, seconds: float) -> None:
        asked = self._clock()
        await traffic.turn(clients, percent)
        await self._sleep(max(0.0, self._plan.warmup - (self._clock() - asked)))
        began = self._clock()
        await self._sleep(seconds)
        window = Window(began, self._clock(), clients, percent)
        # The same traffic goes on until what is under way has come back, so that its share of the window is known.
        await traffic.turn(clients, percent)
        into.append(window)

    async def _try_out(self, ask: Asker) -> None:
        """One request of each class that will be sent, so that a server that cannot do it is told apart at once."""
        plan = self._plan
        self._watch("one request of each class")
        classes: Iterable[bool] = (False, True) if any(plan.percentages) else (False,)
        for isolated in classes:
            mode = Mode.ISOLATED if isolated else Mode.STANDARD
            # No number of the traffic's own, so that its prompts stay unrepeated.
            outcome = await ask(mode, question_of(Draw(isolated, -1, LENGTHS[0])))
            if not isinstance(outcome, Answer):
                raise NotMeasurable(f"a first request in mode {mode} failed: {outcome.reason}")
            if isolated and (outcome.mode != Mode.ISOLATED or outcome.coresident_peak is None):
                raise NotMeasurable(f"{plan.url} did not confirm that a request in mode isolated was alone")
