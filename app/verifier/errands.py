"""The upstream requests that one verified answer is made of: each under a lease of its own, each read to its end.

They differ from a caller's request in one thing: a pass is a pure function of the tokens in it, so one that a replica
left unanswered may be sent again elsewhere. Nothing here retries by itself: `Lost` says whom not to ask again.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

import orjson

from app.determinism.plan import Plan
from app.errors import (
    DeterminismUnavailable,
    InvalidRequest,
    NotFound,
    NotReady,
    QueueFull,
    RepriseError,
    Unauthorized,
    UpstreamError,
    UpstreamReset,
    UpstreamTimeout,
    UpstreamUnavailable,
)
from app.reply import Header
from app.scheduling.lease import Lease
from app.scheduling.scheduler import Asking, Scheduler
from app.upstream.client import UpstreamClient, UpstreamResponse
from app.upstream.replica import Replica
from app.upstream.word import GuardsWord

_LONGEST: Final = 512 * 2**20
"""Bytes of one answer; the rows of a pass are some hundred for each token and alternative."""

_OK: Final = 200
_REFUSED, _SERVER = 400, 500
_OURS: Final = frozenset({403, 404})
"""No fault of the caller's: a wrong guard key, and a path that an older guard does not know.

Of an unknown model, the other 404, vLLM names the member.
"""


@dataclass(frozen=True, slots=True)
class Told:
    """What a replica answered. ``lease`` is the guard's word on it; its ``waited`` is all of the wait, in seconds."""

    said: Any
    lease: Lease
    peak: int | None


class Lost(UpstreamError):
    """A replica gave no usable answer: it could not be reached, broke off, or refused. ``cause`` is what to tell."""

    def __init__(self, replica: Replica, cause: RepriseError) -> None:
        super().__init__(cause.message, code=cause.error_code, retry_after=cause.retry_after)
        self.replica = replica
        self.cause = cause


class EngineRefusal(InvalidRequest):
    """What an engine refused of the caller's own, with the status that the engine gave it."""

    def __init__(self, message: str, *, param: str | None, status: int) -> None:
        super().__init__(message, param=param)
        self.status = status  # type: ignore[misc]  # everywhere else a class has one; this one repeats the engine's


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
        self,
        plan: Plan,
        path: str,
        name: str,
        content: object,
        *,
        posture: str | None = None,
        without: Replica | None = None,
        prefer: Replica | None = None,
        patience: float | None = None,
    ) -> Told:
        """Send JSON of our own under a lease of the plan. ``name`` tells this errand's request id from the others.

        Nothing is sent to a replica of another ``posture``: NotReady. ``without`` and ``prefer`` are as the scheduler
        has them. After ``patience`` seconds, its queue included, the replica is given up. Raises what a lease raises,
        and `Lost`.
        """
        body = orjson.dumps(content)
        leasing = self.scheduler.lease(plan, self.asking, without=without, prefer=prefer)
        try:
            async with asyncio.timeout(patience), leasing as granted:
                if posture is not None and granted.posture != posture:
                    raise other_posture(granted.replica, granted.posture, posture)
                with self.holding(granted.replica.name, granted.admission):
                    headers = self.headers(granted, f"{self.request_id}.{name}")
                    response, data = await self._exchanged(granted.replica, path, headers, body)
        except TimeoutError as exc:
            slow = leasing.replica
            raise Lost(slow, UpstreamTimeout(f"Replica {slow.name} took more than {patience} s.")) from exc
        word = GuardsWord.of(response.headers)
        lease = granted.confirmed(plan, word, response.status)
        with blaming(granted.replica):
            said = answer_of(response, data, callers=False)
            lease.insist(plan, response.status)
        waited = replace(lease, waited=granted.waited + word.waited)
        return Told(said, waited, word.peak if word.peak is not None else lease.peak)

    async def aside(self, replica: Replica, path: str, name: str, content: object, *, callers: bool = False) -> Any:  # noqa: ANN401 - any JSON
        """Send JSON to a replica without a lease: what needs no work of its engine.

        ``callers``: the content is the caller's own, so a refusal of it is InvalidRequest. Raises `Lost` otherwise.
        """
        headers = self.headers(None, f"{self.request_id}.{name}")
        response, data = await self._exchanged(replica, path, headers, orjson.dumps(content))
        with blaming(replica):
            return answer_of(response, data, callers=callers)

    async def _exchanged(
        self, replica: Replica, path: str, headers: list[Header], body: bytes
    ) -> tuple[UpstreamResponse, bytes]:
        with blaming(replica):
            try:
                async with self.client.send(replica, path, headers, body) as response:
                    return response, await response.read(_LONGEST)
            except (UpstreamUnavailable, UpstreamReset):
                self.suspect(replica)
                raise


@contextmanager
def blaming(replica: Replica) -> Iterator[None]:
    """Make of what goes wrong in the block a `Lost` of the replica, but for what the caller did wrong."""
    try:
        yield
    except (InvalidRequest, Lost):
        raise
    except RepriseError as error:
        raise Lost(replica, error) from error


def other_posture(replica: Replica, found: str, wanted: str) -> NotReady:
    """The error for a verifier that is another one now."""
    return NotReady(f"The verifier was lost: replica {replica.name} has another posture, {found} and not {wanted}.")


def answer_of(response: UpstreamResponse, data: bytes, *, callers: bool) -> Any:  # noqa: ANN401 - any JSON
    """The JSON of an answer. Raises what stands for its status: the engine's refusals keep their words.

    Where what was refused was not the ``callers`` own, he cannot mend it: that is an UpstreamError.
    """
    try:
        said = orjson.loads(data)
    except orjson.JSONDecodeError as exc:
        if response.status == _OK:
            raise UpstreamError("A replica's answer is no JSON.") from exc
        said = None
    if response.status != _OK:
        raise _refusal(response, said, callers=callers)
    return said


def _refusal(response: UpstreamResponse, said: object, *, callers: bool) -> RepriseError:
    error = said.get("error") if isinstance(said, dict) else None
    told = error if isinstance(error, dict) else {}
    text, param = told.get("message"), told.get("param")
    named = param if isinstance(param, str) else None
    message = text if isinstance(text, str) else f"A replica answered HTTP {response.status}."
    match response.status:
        case 401:
            return Unauthorized(message, realm="vLLM")
        case 404 if callers and named is not None:
            return NotFound(message, param=named)
        case 429:
            return QueueFull(message, retry_after=_seconds(response))
        case 503:
            mitigation = told.get("code") == DeterminismUnavailable.code
            return (DeterminismUnavailable if mitigation else NotReady)(message, retry_after=_seconds(response))
        case status if callers and _REFUSED <= status < _SERVER and status not in _OURS:
            return EngineRefusal(message, param=named, status=status)
        case _:
            return UpstreamError(message)


def _seconds(response: UpstreamResponse) -> float | None:
    value = response.header(b"retry-after") or b""
    return float(value) if value.isdigit() else None
