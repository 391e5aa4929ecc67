"""The guard: ASGI middleware inside vLLM's API server, loaded by ``--middleware app.engine.guard.Guard``.

It holds the gate of its replica, so that any number of gateways, and clients that bypass them, meet at one point.

What happens to a request that puts work on the engine:

1. The engine's own API key is checked here, before anything queues: this middleware is outside vLLM's own check. On
   generating paths that is stricter than vLLM, which leaves some open (``/invocations``, ``/score``, ``/pooling`` ...).
2. Its whole body is read, so that a client that falls silent half-way keeps nobody waiting.
3. The gate admits it, shared or exclusive, or refuses it where the queue is full. Exclusive needs the guard key, and
   exactly one API-server process. Priority, caller and patience are the gateway's word, and count with its key alone.
4. While it waits, its client is listened to: one that leaves gives up its place at once.
5. Before an exclusive request runs, and before its lease ends, the engine itself must report nothing unfinished: the
   gate cannot see an abort that is still on its way to the engine.
6. A client that takes nothing of its answer for a while (a gateway that was frozen) is given up: the application is
   told that it has left, so that vLLM aborts its work as for any client that leaves.
7. The lease ends when vLLM's own handler has returned, not when the client has gone: isolation outlives the client.

On an engine that runs one sequence at a time (``--max-num-seqs 1``) every request is alone by construction: all are
admitted one after the other, no drain is needed, and no key.

Work that begins after its handler has returned would run beside an exclusive request and be counted by nobody, so a
response in the background (``"background"`` on ``/v1/responses``, the one such feature of vLLM 0.32) is refused. A look
at the engine's count could not find it: that count is of sequences, and n > 1 or a list of prompts is several. A
realtime session is refused for the opposite: it may last for days, and no exclusive request could ever run.

What remains: the gate knows what comes by the paths below. It does not see what other code puts on the engine, such as
vLLM's development endpoints or another plugin, nor a middleware of the operator's, loaded after this one, that changes
a body. And peaks count requests, not the sequences of one.

A gateway's own verification passes (``POST /reprise/score``, `app.engine.scoring`) go the same way, with the guard's
scorer in the place of vLLM's application; where the engine has failed its self-test they are refused before they wait.
``POST /reprise/text`` (`app.engine.texts`) and ``POST /reprise/render`` (`app.engine.rendering`) put no work on the
engine and wait for nobody; what a caller wrote is rendered only for who also has the engine's own API key.

Who presents the guard key gets the co-resident peak, the wait and the posture's digest in headers, and on a stream the
peak in one SSE comment. Against the same key ``GET /reprise/posture`` tells what the engine really runs and how the
gate is, and ``GET /reprise/admissions`` who was admitted from when to when (`app.engine.admissions`).
"""

import asyncio
import logging
import os
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, replace
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final, Protocol
from urllib.parse import parse_qsl

from app.asgi import App, Message, PatientSend, Receive, Scope, Send
from app.determinism.mode import Mitigation
from app.determinism.posture import Posture, Provision
from app.engine.admissions import MOST_LISTED, AdmissionLog
from app.engine.asgi import (
    Inbox,
    Refusal,
    Reporter,
    send_json,
)
from app.engine.body import ClientLeftError, take_in
from app.engine.door import KEY_HEADER, NO_ENGINE_KEY, OURS, Asked, Door, unavailable
from app.engine.observer import Observer, api_servers, most_logprobs
from app.engine.options import GuardOptions
from app.engine.rendering import RENDER_PATH, renders
from app.engine.scoring import SCORE_PATH, Scorer
from app.engine.texts import TEXT_PATH, texts
from app.errors import QueueFull, QueueTimeout
from app.scheduling.gate import Gate
from app.scheduling.ticket import Admission, Ticket

POSTURE_PATH: Final = "/reprise/posture"
ADMISSIONS_PATH: Final = "/reprise/admissions"

GENERATING_PATHS: Final = frozenset(
    {
        *("/v1/chat/completions", "/v1/chat/completions/batch", "/v1/completions", "/v1/responses", "/v1/messages"),
        *("/inference/v1/generate", "/generate", "/generative_scoring", "/v1/systemone", "/cohere/v2/chat"),
        *("/v1/embeddings", "/v2/embed", "/pooling", "/classify", "/score", "/v1/score"),
        *("/rerank", "/v1/rerank", "/v2/rerank", "/v1/audio/transcriptions", "/v1/audio/translations", "/invocations"),
    }
)
"""The POST paths of vLLM 0.32 that put work on the engine."""

REALTIME_PATH: Final = "/v1/realtime"
_NO_REALTIME: Final = "this replica is guarded, and a session of any length would keep exclusive requests out"

DRAIN_POLL: Final = 0.002
"""Seconds between two looks at the engine's number of unfinished requests, a local attribute."""

_DIGITS: Final = 18

_STRANGER: Final = Refusal(403, "forbidden", f"the guard key is missing or wrong ({KEY_HEADER.decode()})")
_UNOBSERVED: Final = Refusal(503, "not_ready", "the posture has not been observed yet", retry_after=b"1")
_TOO_MUCH: Final = Refusal(429, "queue_full", "the bodies of the requests that wait are too large", retry_after=b"1")

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

    ``options`` are read from ``environ`` where they are not given. Raises ValueError for a variable that makes no
    sense.
    """

    def __init__(
        self, app: App, *, environ: Mapping[str, str] = os.environ, options: GuardOptions | None = None
    ) -> None:
        self._app = app
        self._options = options or GuardOptions.read(environ)
        self._door = Door(environ)
        self._gate = Gate(self._options.policy)
        self._log = AdmissionLog(self._options.admissions, clock=time.monotonic, today=lambda: datetime.now(UTC))
        self._observer = Observer(environ, guard_key=self._door.has_key)
        self._scorer = Scorer()
        self._bytes = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        path = _path(scope)
        match scope["type"], scope.get("method"):
            case "lifespan", _:
                await self._lifespan(scope, receive, send)
            case ("http", "GET") if path == POSTURE_PATH:
                await self._tell(self._posture_page, scope, send)
            case ("http", "GET") if path == ADMISSIONS_PATH:
                await self._tell(self._admissions_page, scope, send)
            case ("http", "POST") if path == TEXT_PATH:
                await self._beside(texts, scope, receive, send)
            case ("http", "POST") if path == RENDER_PATH:
                await self._beside(renders, scope, receive, send)
            case ("http", "POST") if path in GENERATING_PATHS or path == SCORE_PATH:
                await self._generate(scope, receive, send)
            case ("websocket", _) if path == REALTIME_PATH:
                await send({"type": "websocket.close", "code": 1008, "reason": _NO_REALTIME})
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

    # What gateways may ask.

    async def _tell(self, page: Callable[[Scope], dict[str, Any] | Refusal], scope: Scope, send: Send) -> None:
        if not self._door.trusts(scope):
            await _STRANGER.send(send)
            return
        answer = page(scope)
        if isinstance(answer, Refusal):
            await answer.send(send)
        else:
            await send_json(send, 200, answer)

    def _posture_page(self, scope: Scope) -> dict[str, Any] | Refusal:
        self._observer.start(scope["app"].state)
        posture = self._observer.posture
        if posture is None:
            return _UNOBSERVED
        provides = {mitigation: posture.provides(mitigation) for mitigation in Mitigation}
        provides[Mitigation.VERIFICATION] = self._verification(posture)
        return {
            "posture": posture.to_mapping(),
            "digest": posture.digest,
            "provides": {mitigation.value: asdict(provision) for mitigation, provision in provides.items()},
            "gate": asdict(self._gate.statistics()),
            "epoch": self._log.epoch,
            "guard_version": _guard_version(),
            "max_logprobs": most_logprobs(scope["app"].state),
            "model": self._observer.model,
            "self_test": asdict(self._scorer.verdict),
        }

    def _admissions_page(self, scope: Scope) -> dict[str, Any] | Refusal:
        query = dict(parse_qsl(scope.get("query_string", b"").decode("latin-1"), keep_blank_values=True))
        for name in query.keys() - {"request", "after", "limit"}:
            return Refusal(400, "invalid_request", f"'{name[:40]}' is unknown", param=name[:40])
        numbers = {"after": 0, "limit": MOST_LISTED}
        for name in numbers.keys() & query.keys():
            if not (query[name].isascii() and query[name].isdigit() and len(query[name]) <= _DIGITS):
                return Refusal(400, "invalid_request", f"'{name}' must be a whole number", param=name)
            numbers[name] = int(query[name])
        limit = min(numbers["limit"], MOST_LISTED)
        return self._log.page(request=query.get("request"), after=numbers["after"], limit=limit)

    async def _beside(self, serve: App, scope: Scope, receive: Receive, send: Send) -> None:
        if not self._door.trusts(scope):
            await _STRANGER.send(send)
            return
        if serve is renders and not self._door.opens(scope, scope["app"].state):
            await NO_ENGINE_KEY.send(send)
            return
        inbox = Inbox(receive, self._options.buffer_limit)
        try:
            refusal = await take_in(inbox, _path(scope), self._options.body_timeout)
            await (serve(scope, inbox.receive, send) if refusal is None else refusal.send(send))
        except ClientLeftError:
            pass
        finally:
            inbox.close()

    def _verification(self, posture: Posture) -> Provision:
        """What the posture says, unless the engine has shown that it is otherwise."""
        verdict = self._scorer.verdict
        if verdict.held is False:
            return Provision(held=False, reason=f"the self-test of this engine failed: {verdict.reason}")
        return posture.provides(Mitigation.VERIFICATION)

    def _unfit(self, wish: Asked, state: object) -> Refusal | None:
        """Why a pass may not decide anything here, before it waits for its turn."""
        if not wish.trusted:
            return _STRANGER
        posture = self._observer.posture
        if posture is None:
            self._observer.start(state)
            return _UNOBSERVED
        provision = self._verification(posture)
        reason = provision.reason
        if provision.held and wish.admission is not Admission.EXCLUSIVE:
            provision = posture.provides(Mitigation.BATCH_INVARIANCE)
            reason = f"a pass must be exclusive here: {provision.reason}"
        return None if provision.held else unavailable(reason, Mitigation.VERIFICATION)

    # The way of a request.

    async def _generate(self, scope: Scope, receive: Receive, send: Send) -> None:
        state = scope["app"].state
        wish = self._door.decide(scope, state)
        if isinstance(wish, Asked) and _path(scope) == SCORE_PATH:
            wish = self._unfit(wish, state) or wish
        if isinstance(wish, Refusal):
            await wish.send(send)
            return
        scope = _below(scope)
        inbox = Inbox(receive, self._options.buffer_limit)
        outbox = PatientSend(send, self._options.write_timeout, inbox.give_up)
        try:
            refusal = await take_in(inbox, _path(scope), self._options.body_timeout)
            if refusal is None:
                self._bytes += inbox.size
                try:
                    fits = self._bytes <= self._options.queue_bytes
                    refusal = await self._queue(scope, inbox, outbox, state.engine_client, wish) if fits else _TOO_MUCH
                finally:
                    self._bytes -= inbox.size
            if refusal is not None:
                await refusal.send(outbox)
        except ClientLeftError:
            pass
        finally:
            if outbox.stalled:
                logger.warning("a client took nothing of its answer for %g s; given up", self._options.write_timeout)
            outbox.close()
            inbox.close()

    async def _queue(
        self, scope: Scope, inbox: Inbox, outbox: PatientSend, client: EngineClient, wish: Asked
    ) -> Refusal | None:
        """Hold a ticket for as long as the request waits and runs; returns why it did not run, if so."""
        turn = asyncio.Event()
        try:
            ticket = self._gate.enqueue(wish.admission, turn.set, key=wish.key, priority=wish.priority)
        except QueueFull as full:
            return Refusal.of(full)
        try:
            patience = self._options.queue_timeout if wish.patience is None else wish.patience
            try:
                async with asyncio.timeout(None if ticket.granted else patience):
                    if not ticket.granted and not await inbox.until(turn):
                        raise ClientLeftError
            except TimeoutError:
                if not ticket.granted:
                    self._gate.release(ticket)  # so that the estimate does not count it
                    wait = self._gate.expected_wait(wish.admission)
                    text = f"the request waited {patience:g} s for its {wish.admission} turn on this replica"
                    return Refusal.of(QueueTimeout(text, retry_after=wait))
            return await self._run(scope, inbox, outbox, client, wish, ticket)
        finally:
            self._gate.release(ticket)

    async def _run(
        self, scope: Scope, inbox: Inbox, outbox: PatientSend, client: EngineClient, wish: Asked, ticket: Ticket
    ) -> Refusal | None:
        """Let vLLM serve a request that was granted; returns why it may not."""
        interval = self._log.admitted(ticket, wish.request)
        if wish.alone and not await self._emptied(client, inbox.pause):
            text = f"the engine was not empty within {self._options.drain_deadline:g} s"
            return replace(unavailable(text), retry_after=b"1")
        wait = self._log.started(interval) - ticket.asked
        reporter = Reporter(outbox, ticket, wait, self._observer.digest)
        serve = self._app
        if _path(scope) == SCORE_PATH:
            # Where there are several API servers, others run that this gate does not know of.
            serve = self._scorer.serving(lambda: ticket.peak == 1 and api_servers(scope["app"].state) == 1)
        try:
            await serve(scope, inbox.receive, reporter.send if wish.trusted else outbox)
        finally:
            if wish.alone and not await self._emptied(client, _sleep):
                logger.warning("an exclusive request still runs %g s after its answer", self._options.drain_deadline)
        return None

    async def _emptied(self, client: EngineClient, pause: Callable[[float], Awaitable[bool]]) -> bool:
        """Whether the engine had nothing unfinished within the deadline.

        ``pause`` waits, and says whether the client is still there: raises ClientLeftError where it is not.

        vLLM forgets an aborted request as soon as the abort is on its way to the engine core, which takes messages in
        order: the abort is carried out before whatever is sent after this.
        """
        deadline = time.monotonic() + self._options.drain_deadline
        # A dead engine finishes nothing any more, and vLLM ends its server then.
        while client.get_num_unfinished_requests() > 0 and not client.errored:
            if time.monotonic() >= deadline:
                return False
            if not await pause(DRAIN_POLL):
                raise ClientLeftError
        return True


def _path(scope: Scope) -> str:
    """The path below the prefix under which the operator serves vLLM, as Starlette's routing takes it."""
    path, prefix = str(scope.get("path", "")), str(scope.get("root_path", ""))
    below = path.removeprefix(prefix)
    return below if below.startswith("/") else path


def _below(scope: Scope) -> Scope:
    """The scope for the engine: without our headers, and in ASGI 2.3, where a client that left is told by ``receive``.

    From 2.4 on the application waits for an error of ``send``, which would leave vLLM's generator to the collector.
    """
    headers = [pair for pair in scope["headers"] if pair[0].lower() not in OURS]
    return {**scope, "headers": headers, "asgi": {**scope.get("asgi", {}), "spec_version": "2.3"}}


async def _sleep(seconds: float) -> bool:
    await asyncio.sleep(seconds)
    return True


def _guard_version() -> str:
    try:
        return version("reprise-gateway")
    except PackageNotFoundError:
        return "unknown"
