"""The server that is asked: a client for it, its model, and what came back for a request, with who answered.

The clients are httpx, which is fit for a probe: none of its requests is cancelled but when the whole run is.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import httpx
import orjson

from app.determinism.mode import Mode
from app.determinism.plan import MODE_HEADER
from app.probe.answer import Failure, Outcome, read_answer
from app.probe.experiment import NotMeasurable, Question

Clock = Callable[[], float]

_DISCOVERY_SECONDS: Final = 10.0
_KEEP_ALIVE_SECONDS: Final = 1.0
"""Well below the time after which servers close an idle connection, so that no request meets a closing one."""
_OK: Final = 200
_MISSING: Final = frozenset({404, 405, 501})
_UNAUTHORIZED: Final = frozenset({401, 403})


@dataclass(frozen=True, slots=True)
class Reply:
    """What came back for one request, and the replica that answered it, where the server names one."""

    outcome: Outcome
    replica: str | None = None


def open_client(
    url: str, *, api_key: str | None, timeout: float, connections: int, transport: httpx.AsyncBaseTransport | None
) -> httpx.AsyncClient:
    """A client with so many connections of its own. ``timeout`` is in seconds; ``transport`` replaces the network."""
    return httpx.AsyncClient(
        base_url=url,
        headers={} if api_key is None else {"authorization": f"Bearer {api_key}"},
        timeout=httpx.Timeout(timeout),
        limits=httpx.Limits(
            max_connections=connections, max_keepalive_connections=connections, keepalive_expiry=_KEEP_ALIVE_SECONDS
        ),
        trust_env=False,
        transport=transport,
    )


async def find_model(client: httpx.AsyncClient, url: str, wanted: str | None) -> str:
    """The model to ask: the one that was named, else the server's first. Raises NotMeasurable."""
    try:
        response = await client.get("/v1/models", timeout=_DISCOVERY_SECONDS)
    except httpx.HTTPError as exc:
        raise NotMeasurable(f"cannot reach {url}: {reason_of(exc)}") from exc
    if response.status_code in _UNAUTHORIZED:
        raise NotMeasurable(f"{url} refuses the API key (HTTP {response.status_code}); give --api-key")
    if wanted is not None and response.status_code in {_OK, *_MISSING}:
        return wanted
    try:
        model = orjson.loads(response.content)["data"][0]["id"] if response.status_code == _OK else None
    except (orjson.JSONDecodeError, KeyError, IndexError, TypeError):
        model = None
    if not isinstance(model, str):
        raise NotMeasurable(f"{url}/v1/models names no model (HTTP {response.status_code}); is the server ready?")
    return model


class Asker:
    """Sends questions to one model; raises nothing but cancellation. ``clock``: monotonic seconds."""

    def __init__(self, client: httpx.AsyncClient, model: str, clock: Clock = time.monotonic) -> None:
        self._client = client
        self._model = model
        self._clock = clock

    async def __call__(self, mode: Mode, question: Question) -> Outcome:
        """What came back for a question in a mode."""
        return (await self.send(mode, question)).outcome

    async def send(self, mode: Mode, question: Question) -> Reply:
        """As a call, with who answered."""
        started = self._clock()
        try:
            response = await self._client.post(
                question.path,
                content=orjson.dumps({"model": self._model, **question.body}),
                headers={"content-type": "application/json", MODE_HEADER: mode},
            )
        except httpx.HTTPError as exc:
            return Reply(Failure(reason_of(exc)))
        latency = self._clock() - started
        outcome = read_answer(
            question.path, question.choices, response.status_code, response.headers, response.content, latency
        )
        return Reply(outcome, response.headers.get("x-determinism-replica"))


def reason_of(error: httpx.HTTPError) -> str:
    """Why a request has no answer, in a few words."""
    if isinstance(error, httpx.TimeoutException):
        return "no answer in time"
    if isinstance(error, httpx.ConnectError):
        return "connection refused or host unknown"
    return f"the connection broke ({type(error).__name__})"
