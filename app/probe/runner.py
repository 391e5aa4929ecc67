"""Runs an experiment against a server: per mode the references on a quiet server, then the repeats under load.

The clients are httpx, which is fit for a probe: none of its requests is cancelled but when the whole run is. Each role
has a client of its own, so that the load never takes a connection from the requests that are measured.
"""

import time
from collections.abc import Callable, Iterator

import anyio
import httpx
import orjson

from app.determinism.mode import Mode
from app.determinism.plan import MODE_HEADER
from app.probe.answer import Failure, Outcome, read_answer
from app.probe.experiment import Experiment, NotMeasurable, Question
from app.probe.load import Load, Sleep
from app.probe.tally import Row, Tally

Clock = Callable[[], float]
Watch = Callable[[Mode, int], None]

_DISCOVERY_SECONDS = 10.0
_KEEP_ALIVE_SECONDS = 1.0
"""Well below the time after which servers close an idle connection, so that no request meets a closing one."""
_OK = 200
_MISSING = frozenset({404, 405, 501})
_UNAUTHORIZED = frozenset({401, 403})


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
            self.model = await self._find_model(client)
            path = experiment.questions[0].path
            load = self.load = Load(_Asker(other, self.model, self._clock), path, experiment.load, self._sleep)
            ask = _Asker(client, self.model, self._clock)
            async with anyio.create_task_group() as group:
                group.start_soon(load.run)
                for mode in experiment.modes:
                    await self._measure(mode, ask, load)
                group.cancel_scope.cancel()

    async def _measure(self, mode: Mode, ask: "_Asker", load: Load) -> None:
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

    async def _repeat(
        self, tally: Tally, questions: tuple[Question, ...], rounds: Iterator[int], ask: "_Asker"
    ) -> None:
        for position in rounds:
            if tally.hopeless:
                return
            tally.add(position, await ask(tally.mode, questions[position]))
            self._watch(tally.mode, 1)

    def _client(self, connections: int) -> httpx.AsyncClient:
        key = self._experiment.api_key
        return httpx.AsyncClient(
            base_url=self._experiment.url,
            headers={} if key is None else {"authorization": f"Bearer {key}"},
            timeout=httpx.Timeout(self._experiment.timeout),
            limits=httpx.Limits(
                max_connections=connections,
                max_keepalive_connections=connections,
                keepalive_expiry=_KEEP_ALIVE_SECONDS,
            ),
            trust_env=False,
            transport=self._transport,
        )

    async def _find_model(self, client: httpx.AsyncClient) -> str:
        url = self._experiment.url
        try:
            response = await client.get("/v1/models", timeout=_DISCOVERY_SECONDS)
        except httpx.HTTPError as exc:
            raise NotMeasurable(f"cannot reach {url}: {_reason(exc)}") from exc
        if response.status_code in _UNAUTHORIZED:
            raise NotMeasurable(f"{url} refuses the API key (HTTP {response.status_code}); give --api-key")
        if self._experiment.model is not None and response.status_code in {_OK, *_MISSING}:
            return self._experiment.model
        try:
            model = orjson.loads(response.content)["data"][0]["id"] if response.status_code == _OK else None
        except (orjson.JSONDecodeError, KeyError, IndexError, TypeError):
            model = None
        if not isinstance(model, str):
            raise NotMeasurable(f"{url}/v1/models names no model (HTTP {response.status_code}); is the server ready?")
        return model


class _Asker:
    """Sends a question in a mode and returns what came back; raises nothing but cancellation."""

    def __init__(self, client: httpx.AsyncClient, model: str, clock: Clock) -> None:
        self._client = client
        self._model = model
        self._clock = clock

    async def __call__(self, mode: Mode, question: Question) -> Outcome:
        started = self._clock()
        try:
            response = await self._client.post(
                question.path,
                content=orjson.dumps({"model": self._model, **question.body}),
                headers={"content-type": "application/json", MODE_HEADER: mode},
            )
        except httpx.HTTPError as exc:
            return Failure(_reason(exc))
        latency = self._clock() - started
        return read_answer(
            question.path, question.choices, response.status_code, response.headers, response.content, latency
        )


def _reason(error: httpx.HTTPError) -> str:
    if isinstance(error, httpx.TimeoutException):
        return "no answer in time"
    if isinstance(error, httpx.ConnectError):
        return "connection refused or host unknown"
    return f"the connection broke ({type(error).__name__})"
