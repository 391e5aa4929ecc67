"""Runs an experiment against a server: per mode the references on a quiet server, then the repeats under load.

Each role has a client of its own, so that the load never takes a connection from the requests that are measured.
"""

import time
from collections.abc import Callable, Iterator

import anyio
import httpx

from app.determinism.mode import Mode
from app.probe.experiment import Experiment, Question
from app.probe.load import Load, Sleep
from app.probe.server import Asker, Clock, find_model, open_client
from app.probe.tally import Row, Tally

Watch = Callable[[Mode, int], None]


class Probe:
    """One run. `rows` may be read at any moment, also after a run that was cancelled.

    ``transport`` replaces the network, ``clock`` (monotonic seconds) and ``sleep`` time; ``watch`` is told how
    many more requests of a mode are done.
    """

    def __init__(
        self,
        experiment: Experiment,
        *,
        transport: httpx.AsyncBaseTransport | None = None,
        clock: Clock = time.monotonic,
        sleep: Sleep = anyio.sleep,
        watch: Watch = lambda _mode, _requests: None,
    ) -> None:
        self._experiment = experiment
        self._transport = transport
        self._clock = clock
        self._sleep = sleep
        self._watch = watch
        self._tallies: dict[Mode, Tally] = {}
        self.model = experiment.model
        self.load: Load | None = None

    @property
    def rows(self) -> tuple[Row, ...]:
        """The modes begun so far, in order."""
        standard = self._tallies.get(Mode.STANDARD)
        return tuple(tally.row(standard) for tally in self._tallies.values())

    async def run(self) -> None:
        """Measure every mode. Raises NotMeasurable when the server cannot be reached or names no model."""
        experiment = self._experiment
        async with self._client(experiment.concurrency) as client, self._client(max(experiment.load, 1)) as other:
            self.model = await find_model(client, experiment.url, experiment.model)
            path = experiment.questions[0].path
            load = self.load = Load(Asker(other, self.model, self._clock), path, experiment.load, self._sleep)
            ask = Asker(client, self.model, self._clock)
            async with anyio.create_task_group() as group:
                group.start_soon(load.run)
                for mode in experiment.modes:
                    await self._measure(mode, ask, load)
                group.cancel_scope.cancel()

    async def _measure(self, mode: Mode, ask: Asker, load: Load) -> None:
        tally = self._tallies[mode] = Tally(mode, self._experiment.comparisons)
        questions = self._experiment.questions
        # One at a time on a server that we keep quiet, so that load is what changes between reference and repeat.
        async with load.quiet():
            for position, question in enumerate(questions):
                if not tally.add_reference(position, await ask(mode, question)):
                    return
                self._watch(mode, 1)
        started, tokens = self._clock(), load.tokens
        rounds = self._experiment.rounds()
        try:
            async with anyio.create_task_group() as group:
                for _ in range(min(self._experiment.concurrency, tally.asked)):
                    group.start_soon(self._repeat, tally, questions, rounds, ask)
            tally.ended = True
        finally:
            tally.seconds = self._clock() - started
            tally.background_tokens = load.tokens - tokens

    async def _repeat(self, tally: Tally, questions: tuple[Question, ...], rounds: Iterator[int], ask: Asker) -> None:
        for position in rounds:
            if tally.hopeless:
                return
            tally.add(position, await ask(tally.mode, questions[position]))
            self._watch(tally.mode, 1)

    def _client(self, connections: int) -> httpx.AsyncClient:
        experiment = self._experiment
        return open_client(
            experiment.url,
            api_key=experiment.api_key,
            timeout=experiment.timeout,
            connections=connections,
            transport=self._transport,
        )
