"""The upstream requests that one verified answer is made of: each under a lease of its own, each read to its end.

They differ from a caller's request in one thing: a pass is a pure function of the tokens in it, so one that a lost
replica left unanswered may be sent again elsewhere. Nothing here retries by itself.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Final

import orjson

from app.determinism.plan import Plan
from app.errors import (
    DeterminismUnavailable,
    InvalidRequest,
    NotReady,
    QueueFull,
    UpstreamError,
    UpstreamReset,
    UpstreamUnavailable,
)
from app.reply import Header
from app.scheduling.lease import ERRORS, Lease
from app.scheduling.scheduler import Asking, Scheduler
from app.upstream.client import UpstreamClient, UpstreamResponse
from app.upstream.replica import Replica
from app.upstream.word import GuardsWord

_LONGEST: Final = 512 * 2**20
"""Bytes of one answer; the rows of a pass are some hundred for each token and alternative."""

_CONFLICT, _SERVER = 400, 500
_TOO_MANY, _UNAVAILABLE = 429, 503


@dataclass(frozen=True, slots=True)
class Told:
    """What a replica answered. ``lease`` is the guard's word on it; its ``waited`` is all of the wait, in seconds."""

    said: Any
    lease: Lease
    peak: int | None


@dataclass(frozen=True, slots=True)
class Sender:
    """What every errand of one request needs.

    ``headers`` makes the head of a request to a lease under an id. ``holding`` shows a lease on a replica for as long
    as it is entered. ``suspect`` is told of replicas that could not be reached or broke off.
    """

    scheduler: Scheduler
    client: UpstreamClient
    asking: Asking
    request_id: str
    headers: Callable[[Lease | None, str], list[Header]]
    holding: Callable[[str, str], AbstractContextManager[None]]
    suspect: Callable[[Replica], None]

    async def leased(
        self, plan: Plan, path: str, name: str, content: object, *, without: Replica | None = None
    ) -> Told:
        """Send JSON under a lease of the plan. ``name`` tells this errand's request id from the others.

        Raises what a lease and the client raise, and as `answer_of`; see `Lost` for a replica that broke off.
        """
        body = orjson.dumps(content)
        leasing = self.scheduler.lease(plan, self.asking, without=without)
        async with leasing as granted:
            with self.holding(granted.replica.name, granted.admission):
                headers = self.headers(granted, f"{self.request_id}.{name}")
                try:
                    async with self.client.send(granted.replica, path, headers, body) as response:
                        data = await response.read(_LONGEST)
                except (UpstreamUnavailable, UpstreamReset) as error:
                    self.suspect(granted.replica)
                    raise Lost(granted.replica, error) from error
        word = GuardsWord.of(response.headers)
        lease = granted.confirmed(plan, word, response.status)
        said = answer_of(response, data)
        lease.insist(plan, response.status)
        return Told(said, lease, word.peak if word.peak is not None else lease.peak)

    async def aside(self, replica: Replica, path: str, name: str, content: object) -> Any:  # noqa: ANN401 - any JSON
        """Send JSON to a replica without a lease: what needs no work of its engine. Raises as `leased`."""
        headers = self.headers(None, f"{self.request_id}.{name}")
        try:
            async with self.client.send(replica, path, headers, orjson.dumps(content)) as response:
                data = await response.read(_LONGEST)
        except (UpstreamUnavailable, UpstreamReset) as error:
            self.suspect(replica)
            raise Lost(replica, error) from error
        return answer_of(response, data)


class Lost(UpstreamError):
    """A replica could not be reached, or broke off. ``cause`` is what happened."""

    def __init__(self, replica: Replica, cause: UpstreamError) -> None:
        super().__init__(cause.message, code=cause.error_code, retry_after=cause.retry_after)
        self.replica = replica
        self.cause = cause


def answer_of(response: UpstreamResponse, data: bytes) -> Any:  # noqa: ANN401 - any JSON
    """The JSON of an answer. Raises what stands for its status: the engine's refusals keep their words."""
    try:
        said = orjson.loads(data)
    except orjson.JSONDecodeError as exc:
        raise UpstreamError(f"A replica answered HTTP {response.status} with no JSON.") from exc
    if response.status < ERRORS:
        return said
    error = said.get("error") if isinstance(said, dict) else None
    text = error.get("message") if isinstance(error, dict) else None
    message = text if isinstance(text, str) else f"A replica answered HTTP {response.status}."
    code, param = (error.get("code"), error.get("param")) if isinstance(error, dict) else (None, None)
    if response.status == _TOO_MANY:
        raise QueueFull(message, retry_after=_seconds(response))
    if response.status == _UNAVAILABLE:
        kind = DeterminismUnavailable if code == DeterminismUnavailable.code else NotReady
        raise kind(message, retry_after=_seconds(response))
    if _CONFLICT <= response.status < _SERVER:
        raise InvalidRequest(message, param=param if isinstance(param, str) else None)
    raise UpstreamError(message)


def _seconds(response: UpstreamResponse) -> float | None:
    value = response.header(b"retry-after") or b""
    return float(value) if value.isdigit() else None
