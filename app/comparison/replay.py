"""Sends the requests of a file again, and gives each one's line for the new file, in the order of the old one."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import anyio
import httpx
import orjson

from app.comparison.entry import NotComparable
from app.comparison.jsonl import Record
from app.comparison.pairing import served_model
from app.comparison.server import message_of, reason_of
from app.determinism.evidence import Evidence, ask
from app.determinism.mode import Mode
from app.determinism.plan import MODE_HEADER
from app.determinism.reading import read_unary
from app.determinism.request import InferenceRequest, edit
from app.errors import InvalidRequest
from app.headers import RUN
from app.probe.server import open_client

_OURS: Final = "x-determinism-"
_OK: Final = 200
_UNAUTHORIZED: Final = frozenset({401, 403})
_CHECK_SECONDS: Final = 10.0
_UNBROKEN: Final = bytes.maketrans(b"\r\n", b"  ")
"""Outside of its strings, JSON may be broken into lines, and inside them it may not: so nothing is lost."""


@dataclass(frozen=True, slots=True)
class Replay:
    """How requests are sent. ``mode`` is None where each keeps what it says itself; ``timeout`` is in seconds.

    ``model`` replaces each request's own, and ``evidence`` is what is asked for besides.
    """

    url: str
    mode: Mode | None = None
    run: str | None = None
    model: str | None = None
    concurrency: int = 4
    api_key: str | None = None
    timeout: float = 300.0
    evidence: Evidence = Evidence.LOGPROBS


@dataclass(frozen=True, slots=True)
class Resent:
    """One request that was sent again: its line, without an end, and why there is no answer in it, if there is none."""

    line: bytes
    problem: str | None


class Replayer:
    """One replay of the requests of a file called ``name``. ``transport`` replaces the network.

    Every request is made ready first. Raises NotComparable naming file and line of one that cannot be sent.
    """

    def __init__(
        self,
        replay: Replay,
        records: Sequence[Record],
        name: str,
        *,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._replay = replay
        self._transport = transport
        self._requests = [_ready(replay, record, name) for record in records]
        self._ids = [record.custom_id for record in records]
        self._done: dict[int, Resent] = {}
        self._next = 0

    async def run(self, emit: Callable[[Resent], None]) -> None:
        """Send them. ``emit`` gets every line in order; what was answered before a cancellation is not lost.

        Raises NotComparable when the server cannot be reached, or refuses the key.
        """
        replay = self._replay
        async with open_client(
            replay.url,
            api_key=replay.api_key,
            timeout=replay.timeout,
            connections=replay.concurrency,
            transport=self._transport,
        ) as client:
            await _check(client, replay.url)
            places = iter(range(len(self._requests)))
            try:
                async with anyio.create_task_group() as group:
                    for _ in range(min(replay.concurrency, len(self._requests))):
                        group.start_soon(self._work, client, places, emit)
            finally:
                for place in sorted(self._done):
                    emit(self._done.pop(place))

    async def _work(self, client: httpx.AsyncClient, places: Iterator[int], emit: Callable[[Resent], None]) -> None:
        for place in places:
            self._done[place] = await self._send(client, place)
            while self._next in self._done:
                emit(self._done.pop(self._next))
                self._next += 1

    async def _send(self, client: httpx.AsyncClient, place: int) -> Resent:
        request = self._requests[place]
        headers = {"content-type": "application/json"}
        if self._replay.mode is not None:
            headers[MODE_HEADER] = self._replay.mode
        if self._replay.run is not None:
            headers[RUN.decode()] = self._replay.run
        try:
            response = await client.post(request.path, content=request.body, headers=headers)
        except httpx.HTTPError as exc:
            return _line(request, self._ids[place], {}, None, reason_of(exc))
        facts = {k.removeprefix(_OURS): v for k, v in response.headers.items() if k.startswith(_OURS)}
        answer: bytes | None = response.content
        problem = None
        if response.status_code != _OK:
            answer, problem = None, f"HTTP {response.status_code}: {message_of(response.content)}"
        elif read_unary(request.path, response.content) is None:
            answer, problem = None, "the answer is not in OpenAI's shape"
        return _line(request, self._ids[place], facts, answer, problem)


def _ready(replay: Replay, record: Record, name: str) -> InferenceRequest:
    """The request as it is sent: never a stream, and with no word on its mode but the header's, if there is one."""
    request = record.request
    if request is None:
        raise NotComparable(f"{name}:{record.line}: there is no request to send")
    changes: dict[str, Any] = {"stream": None, "stream_options": None}
    if replay.mode is not None:
        changes |= {"determinism": None, "model": served_model(request)}
    if replay.model is not None:
        changes["model"] = replay.model
    changes |= ask(request.path, request.members, replay.evidence).changes
    try:
        body = edit(request.body, changes)
    except InvalidRequest as exc:
        raise NotComparable(f"{name}:{record.line}: {exc.message}") from exc
    return InferenceRequest(request.path, body, orjson.loads(body))


async def _check(client: httpx.AsyncClient, url: str) -> None:
    try:
        response = await client.get("/v1/models", timeout=_CHECK_SECONDS)
    except httpx.HTTPError as exc:
        raise NotComparable(f"cannot reach {url}: {reason_of(exc)}") from exc
    if response.status_code in _UNAUTHORIZED:
        raise NotComparable(f"{url} refuses the API key (HTTP {response.status_code}); give --api-key")


def _line(
    request: InferenceRequest,
    custom_id: str | None,
    facts: Mapping[str, str],
    answer: bytes | None,
    problem: str | None,
) -> Resent:
    members = [b'"path":' + orjson.dumps(request.path)]
    if custom_id is not None:
        members.append(b'"custom_id":' + orjson.dumps(custom_id))
    members.append(b'"request":' + request.body)
    if answer is not None:
        members.append(b'"answer":' + answer.strip())
    if problem is not None:
        members.append(b'"error":' + orjson.dumps(problem))
    members.append(b'"determinism":' + orjson.dumps(facts))
    return Resent((b"{" + b",".join(members) + b"}").translate(_UNBROKEN), problem)
