"""The guard: ASGI middleware inside vLLM's API server, loaded by ``--middleware app.engine.guard.Guard``.

It holds the gate of its replica, so that any number of gateways, and clients that bypass them, meet at one point.

What happens to a request that puts work on the engine:

1. The engine's own API key is checked here, before anything queues: this middleware is outside vLLM's own check. On
   generating paths that is stricter than vLLM, which leaves some open (``/invocations``, ``/score``, ``/pooling`` ...).
2. The gate admits it, shared or exclusive. Exclusive needs the guard key, and exactly one API-server process.
3. While it waits, its client is listened to: one that leaves gives up its place at once.
4. Before an exclusive request runs, and before its lease ends, the engine itself must report nothing unfinished: the
   gate cannot see an abort that is still on its way to the engine.
5. The lease ends when vLLM's own handler has returned, not when the client has gone: isolation outlives the client.

Work that begins after its handler has returned would run beside an exclusive request and be counted by nobody, so a
response in the background (``"background"`` on ``/v1/responses``, the one such feature of vLLM 0.32) is refused. A look
at the engine's count could not find it: that count is of sequences, and n > 1 or a list of prompts is several.

What remains: the gate knows what comes by the paths below. It does not see what other code puts on the engine, such as
vLLM's development endpoints or another plugin, nor a middleware of the operator's, loaded after this one, that changes
a body. And peaks count requests, not the sequences of one.

Who presents the guard key gets the co-resident peak, the wait and the posture's digest in headers, and on a stream the
peak in one SSE comment.
``GET /reprise/posture`` tells, against the guard key, what the engine really runs.
"""

import asyncio
import hmac
import json
import logging
import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from time import perf_counter
from typing import Any, Final, Protocol

from app.determinism.mode import Mitigation
from app.engine.asgi import (
    BUFFER_LIMIT,
    App,
    BodyTooLargeError,
    Inbox,
    Message,
    Receive,
    Refusal,
    Reporter,
    Scope,
    Send,
    header,
    send_json,
)
from app.engine.observer import Observer, api_servers
from app.scheduling.gate import Admission, Gate

ADMISSION_HEADER: Final = b"x-determinism-admission"
KEY_HEADER: Final = b"x-determinism-guard-key"
POSTURE_PATH: Final = "/reprise/posture"

GENERATING_PATHS: Final = frozenset(
    {
        *("/v1/chat/completions", "/v1/chat/completions/batch", "/v1/completions", "/v1/responses", "/v1/messages"),
        *("/inference/v1/generate", "/generate", "/generative_scoring", "/v1/systemone", "/cohere/v2/chat"),
        *("/v1/embeddings", "/v2/embed", "/pooling", "/classify", "/score", "/v1/score"),
        *("/rerank", "/v1/rerank", "/v2/rerank", "/v1/audio/transcriptions", "/v1/audio/translations", "/invocations"),
    }
)
"""The POST paths of vLLM 0.32 that put work on the engine."""

RESPONSES_PATH: Final = "/v1/responses"
REALTIME_PATH: Final = "/v1/realtime"

DRAIN_DEADLINE: Final = 30.0

DRAIN_POLL: Final = 0.002
"""Seconds between two looks at the engine's number of unfinished requests, a local attribute."""

# Under vLLM's own logger, since its logging configuration has no handler for others.
logger = logging.getLogger("vllm.reprise.guard")


class EngineClient(Protocol):
    """What the gate needs of vLLM's engine client."""

    @property
    def errored(self) -> bool:
        """Whether the engine is dead."""

    def get_num_unfinished_requests(self) -> int:
        """Requests that the engine has and has not finished."""


class Guard:
    """The middleware. ``app`` is the rest of vLLM's server; vLLM gives no other argument.

    ``drain_deadline``: seconds in which the engine must be empty for an exclusive request; then it is refused.
    ``buffer_limit``: bytes of a body that are kept while it waits, and the most that are read to look into it.
    """

    def __init__(
        self,
        app: App,
        *,
        environ: Mapping[str, str] = os.environ,
        drain_deadline: float = DRAIN_DEADLINE,
        buffer_limit: int = BUFFER_LIMIT,
    ) -> None:
        self._app = app
        self._environ = environ
        self._drain_deadline = drain_deadline
        self._buffer_limit = buffer_limit
        self._gate = Gate()
        key = environ.get("REPRISE_GUARD_KEY")
        self._key = sha256(key.encode()).digest() if key else None
        self._observer = Observer(environ, guard_key=self._key is not None)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        path = _path(scope)
        match scope["type"], scope.get("method"):
            case "lifespan", _:
                await self._lifespan(scope, receive, send)
            case ("http", "GET") if path == POSTURE_PATH:
                await self._tell_posture(scope, send)
            case ("http", "POST") if path in GENERATING_PATHS:
                await self._generate(scope, receive, send)
            case ("websocket", _) if path == REALTIME_PATH:
                await self._generate(scope, receive, send)
            case _:
                await self._app(scope, receive, send)

    async def _lifespan(self, scope: Scope, receive: Receive, send: Send) -> None:
        state = scope["app"].state

        async def started(message: Message) -> None:
            await send(message)
            if message["type"] == "lifespan.startup.complete":
                self._observer.start(state)

        try:
            await self._app(scope, receive, started)
        finally:
            await self._observer.stop()

    async def _tell_posture(self, scope: Scope, send: Send) -> None:
        if not self._trusted(header(scope, KEY_HEADER)):
            await Refusal(403, "forbidden", f"the guard key is missing or wrong ({KEY_HEADER.decode()})").send(send)
            return
        self._observer.start(scope["app"].state)
        posture = self._observer.posture
        if posture is None:
            await Refusal(503, "not_ready", "the posture has not been observed yet").send(send)
            return
        answer = {
            "posture": posture.to_mapping(),
            "digest": posture.digest,
            "provides": {mitigation.value: asdict(posture.provides(mitigation)) for mitigation in Mitigation},
            "gate": asdict(self._gate.statistics()),
            "guard_version": _guard_version(),
        }
        await send_json(send, 200, answer)

    async def _generate(self, scope: Scope, receive: Receive, send: Send) -> None:
        state = scope["app"].state
        decision = self._decide(scope, state)
        if isinstance(decision, Refusal):
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008, "reason": decision.message})
            else:
                await decision.send(send)
            return
        trusted = self._trusted(header(scope, KEY_HEADER))
        ours = {ADMISSION_HEADER, KEY_HEADER}
        scope = {**scope, "headers": [pair for pair in scope["headers"] if pair[0].lower() not in ours]}
        inbox = Inbox(receive, self._buffer_limit)
        try:
            # Before it queues, so that a body which never ends keeps nobody waiting.
            if _path(scope) != RESPONSES_PATH or await _in_foreground(inbox, send):
                await self._run(scope, inbox, send, state.engine_client, decision, trusted=trusted)
        finally:
            inbox.close()

    def _decide(self, scope: Scope, state: Any) -> Admission | Refusal:  # noqa: ANN401, PLR0911 - vLLM's state; a table
        """The admission of a request, or why it is refused before it queues."""
        if not self._has_engine_key(scope, state):
            return Refusal(401, "invalid_api_key", "the engine's API key is missing or wrong")
        wanted, key = header(scope, ADMISSION_HEADER), header(scope, KEY_HEADER)
        if wanted is None or wanted == b"shared" or scope["type"] == "websocket":
            return Admission.SHARED
        if key is None and self._key is not None:
            return Admission.SHARED  # not from a gateway, and nobody else may keep the others out
        if wanted != b"exclusive":
            return Refusal(400, "invalid_request", f"{ADMISSION_HEADER.decode()} must be shared or exclusive")
        if self._key is None:
            return _unavailable("the guard has no key (REPRISE_GUARD_KEY is not set)")
        if not self._trusted(key):
            return Refusal(403, "forbidden", f"exclusive admission needs the right {KEY_HEADER.decode()}")
        servers = api_servers(state)
        if servers != 1:
            return _unavailable(f"the engine has {servers or 'unknown'} API servers, each with its own gate")
        return Admission.EXCLUSIVE

    def _trusted(self, key: bytes | None) -> bool:
        return key is not None and self._key is not None and hmac.compare_digest(sha256(key).digest(), self._key)

    def _has_engine_key(self, scope: Scope, state: object) -> bool:
        keys = getattr(getattr(state, "args", None), "api_key", None) or [self._environ.get("VLLM_API_KEY")]
        digests = [sha256(key.encode()).digest() for key in keys if key]
        if not digests:
            return True
        scheme, _, token = (header(scope, b"authorization") or b"").decode("latin-1").partition(" ")
        given = sha256(token.encode()).digest()
        # Every key is compared, whichever fits, so that the time tells nothing.
        return scheme.lower() == "bearer" and sum(hmac.compare_digest(given, digest) for digest in digests) > 0

    async def _run(
        self, scope: Scope, inbox: Inbox, send: Send, client: EngineClient, admission: Admission, *, trusted: bool
    ) -> None:
        asked, granted = perf_counter(), asyncio.Event()
        ticket = self._gate.enqueue(admission, granted.set)
        try:
            if not ticket.granted and not await inbox.until(granted):
                return
            if admission is Admission.EXCLUSIVE and not await self._emptied(client, inbox.pause):
                await _unavailable(f"the engine was not empty within {self._drain_deadline:g} s").send(send)
                return
            reporter = Reporter(send, ticket, perf_counter() - asked, self._observer.digest)
            try:
                await self._app(scope, inbox.receive, reporter.send if trusted else send)
            finally:
                if admission is Admission.EXCLUSIVE and not await self._emptied(client, _sleep):
                    logger.warning("an exclusive request still runs %g s after its answer", self._drain_deadline)
        finally:
            self._gate.release(ticket)

    async def _emptied(self, client: EngineClient, pause: Callable[[float], Awaitable[bool]]) -> bool:
        """Whether the engine had nothing unfinished within the deadline; False too when ``pause`` says to give up.

        vLLM forgets an aborted request as soon as the abort is on its way to the engine core, which takes messages in
        order: the abort is carried out before whatever is sent after this.
        """
        deadline = perf_counter() + self._drain_deadline
        # A dead engine finishes nothing any more, and vLLM ends its server then.
        while client.get_num_unfinished_requests() > 0 and not client.errored:
            if perf_counter() >= deadline or not await pause(DRAIN_POLL):
                return False
        return True


def _path(scope: Scope) -> str:
    return str(scope.get("path", "")).removeprefix(str(scope.get("root_path", "")))


async def _in_foreground(inbox: Inbox, send: Send) -> bool:
    """Whether a POST to /v1/responses ends with its handler; else it was refused here, or its client has left.

    vLLM reads the body with the same parser, but takes more than true for true ("yes", 1), so only what is surely false
    passes, and nothing that cannot be read here.
    """
    try:
        body = await inbox.body()
        if body is None:
            return False
        content = json.loads(body)
    except BodyTooLargeError:
        refusal = Refusal(413, "request_too_large", "the guard does not look into a body of this size")
    except (ValueError, RecursionError):
        refusal = Refusal(400, "invalid_request", "the body is not JSON, or too deeply nested")
    else:
        # Not `in`: 0 equals False, and what is no object vLLM refuses itself.
        if not isinstance(content, dict) or content.get("background") is None or content["background"] is False:
            return True
        message = (
            "background must be false or absent: this replica is guarded, and work that goes on after its answer would "
            "run unseen beside requests that were promised to be alone"
        )
        refusal = Refusal(400, "invalid_request", message, param="background")
    await refusal.send(send)
    return False


async def _sleep(seconds: float) -> bool:
    await asyncio.sleep(seconds)
    return True


def _unavailable(reason: str) -> Refusal:
    return Refusal(503, "determinism_unavailable", f"batch_isolation cannot be honoured: {reason}")


def _guard_version() -> str:
    try:
        return version("reprise-gateway")
    except PackageNotFoundError:
        return "unknown"
