"""The straight line of one request: parse, plan, pin, lease, send, observe, relay.

Everything that a request acquires is released by the nested blocks of `Gateway.handle`, innermost first: the
upstream connection closes (which makes vLLM abort the request) before the lease ends, and the exchange is recorded
last. A client that leaves cancels the task that runs `handle`; there is no other path for it.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

import anyio.to_thread
import orjson

from app.determinism.evidence import NOTHING_ASKED, Asked, Evidence, ask
from app.determinism.mode import DETERMINISTIC_MODES, Mode
from app.determinism.plan import DEFAULT_WINDOW, MOST_WINDOW, Plan, Wish, resolve
from app.determinism.request import InferenceRequest, edit, parse
from app.determinism.sampling import Pinned, Sampling, pin
from app.errors import UpstreamReset, UpstreamUnavailable
from app.headers import (
    ADMISSION,
    CALLER,
    COMMENT_PREFIX,
    GUARD_KEY,
    PRIORITY,
    QUEUE_TIMEOUT,
    of_fact,
    to_caller,
    to_engine,
)
from app.observation.exchange import Done, Exchange, Observatory
from app.observation.store import Origin
from app.reply import Header, Reply
from app.scheduling.lease import ERRORS, Lease
from app.scheduling.scheduler import ANYBODY, Asking, Scheduler
from app.upstream.client import UpstreamClient, UpstreamResponse
from app.upstream.replica import Replica
from app.upstream.splice import StreamSplice
from app.upstream.word import GuardsWord
from app.verifier.answering import LARGE, Verification
from app.verifier.errands import Sender
from app.verifier.making import Offer

_EVIDENCE_GROWTH: Final = 4
_ABOUT_THE_BODY: Final = frozenset({b"accept", b"content-type"})
"""What a caller says of his body and his answer, and not of those of our own errands."""


@dataclass(frozen=True, slots=True)
class Call:
    """One request whose body has been read. ``wish`` is what its headers say of determinism."""

    path: str
    body: bytes
    headers: tuple[Header, ...]
    wish: Wish
    request_id: str
    origin: Origin = Origin.CLIENT


@dataclass(frozen=True, slots=True)
class Policy:
    """What the operator decided about requests."""

    default_mode: Mode = Mode.STANDARD
    tiny_temperature: float = 1e-5
    max_answer_bytes: int = 64 * 1024 * 1024
    stream_comment: bool = True
    api_key: bytes | None = None
    guard_key: bytes | None = None
    caller_key: bytes = b""
    evidence: Evidence = Evidence.LOGPROBS
    window: int = DEFAULT_WINDOW
    max_window: int = MOST_WINDOW
    draft_timeout: float = 120.0

    def plan(self, request: InferenceRequest, wish: Wish, served: Collection[str]) -> Plan:
        """The plan of a request to the models ``served``. Raises InvalidRequest."""
        return resolve(request, wish, self.default_mode, served, self.window, self.max_window)


@dataclass(frozen=True, slots=True)
class _Ready:
    """A request about which everything is decided but the replica."""

    call: Call
    plan: Plan
    request: InferenceRequest
    pinned: Pinned
    asking: Asking


@dataclass(frozen=True, slots=True)
class _Answer:
    """What goes with an answer: our headers, the peak by the gateway's own count, and what of it is ours alone."""

    facts: list[Header]
    peak: int | None
    asked: Asked


class Gateway:
    """Takes calls to replies. ``suspect`` is told of replicas that could not be reached, or that broke off."""

    def __init__(
        self,
        scheduler: Scheduler,
        client: UpstreamClient,
        observatory: Observatory,
        policy: Policy,
        verification: Verification,
        *,
        suspect: Callable[[Replica], None],
    ) -> None:
        self._scheduler = scheduler
        self._suspect = suspect
        self._patience = b"%.3f" % scheduler.queueing.patience
        self._client = client
        self._observatory = observatory
        self._policy = policy
        self._verification = verification

    def exchange(self, request_id: str, origin: Origin = Origin.CLIENT) -> Exchange:
        """What observation keeps of a request that arrives now; a context manager around `handle`."""
        return self._observatory.exchange(request_id, origin)

    async def handle(self, call: Call, reply: Reply, exchange: Exchange) -> None:
        """Answer one call. Raises RepriseError for the caller to tell; see `Reply.fail`."""
        request = parse(call.path, call.body)
        plan = self._policy.plan(request, call.wish, self._scheduler.served)
        pinned = self._pin(request, plan, call.request_id)
        exchange.planned(request, plan, pinned.sampling)
        ready = _Ready(call, plan, request, pinned, self._asking(call, request, plan))
        if plan.window is not None:
            await self._verify(ready, reply, exchange)
            return
        unreachable = await self._attempt(ready, reply, exchange)
        if unreachable is not None:
            # Nothing was sent, so this is not a second execution. Whatever happens now is told to the caller.
            await self._attempt(ready, reply, exchange, without=unreachable)

    async def _verify(self, ready: "_Ready", reply: Reply, exchange: Exchange) -> None:
        """Answer a request by the verifier's word instead of relaying an answer."""
        sender = Sender(
            self._scheduler,
            self._client,
            ready.asking,
            ready.call.request_id,
            lambda lease, name: self._errand_headers(ready, lease, name),
            self._observatory.holding,
            self._suspect,
        )
        plan, sampling = ready.plan, ready.pinned.sampling
        offer = Offer(ready.request, plan, sender, self._policy.draft_timeout)
        await self._verification.answer(offer, lambda lease: _facts(plan, sampling, lease, guard=True), reply, exchange)

    async def _attempt(
        self, ready: "_Ready", reply: Reply, exchange: Exchange, without: Replica | None = None
    ) -> Replica | None:
        """Serve the request on one replica; returns a replica that could not be reached while there is another one."""
        leasing = self._scheduler.lease(ready.plan, ready.asking, without=without)
        try:
            async with leasing as granted:
                exchange.leased(granted.replica.name, granted.admission, granted.waited, granted.ticket)
                headers = self._request_headers(ready, granted, ready.call.request_id)
                asked = self._evidence(ready, granted)
                body = edit(ready.pinned.body, asked.changes)
                async with self._client.send(granted.replica, ready.call.path, headers, body) as response:
                    await self._relay(response, granted, ready, asked, reply, exchange)
        except UpstreamUnavailable:
            self._suspect(leasing.replica)
            if without is None and self._scheduler.another(ready.plan, leasing.replica):
                exchange.unreached()
                return leasing.replica
            raise
        except UpstreamReset:
            self._suspect(leasing.replica)
            raise
        return None

    async def _relay(
        self,
        response: UpstreamResponse,
        granted: Lease,
        ready: "_Ready",
        asked: Asked,
        reply: Reply,
        exchange: Exchange,
    ) -> None:
        plan = ready.plan
        lease = granted.confirmed(plan, word := GuardsWord.of(response.headers), response.status)
        counts = (plan.mode, "") if response.status >= ERRORS else lease.counts_as(plan)
        exchange.answered(response.status, word, Done(lease.posture, *counts, lease.applied, lease.missing))
        lease.insist(plan, response.status)
        facts = _facts(plan, ready.pinned.sampling, lease, guard=word.peak is not None)
        relay = self._relay_stream if response.event_stream else self._relay_unary
        await relay(response, _Answer(facts, lease.peak, asked), reply, exchange)

    async def _relay_unary(
        self, response: UpstreamResponse, answer: "_Answer", reply: Reply, exchange: Exchange
    ) -> None:
        exchange.watch(stream=False)
        # Logprobs make an answer some fifty times as long, which the caller did not ask for.
        limit = self._policy.max_answer_bytes * (_EVIDENCE_GROWTH if answer.asked else 1)
        body = await response.read(limit)
        exchange.feed(body)
        if len(body) > LARGE:
            body = await anyio.to_thread.run_sync(_apart, answer.asked, body, exchange)
        else:
            body = answer.asked.unary(body)
        facts = [*answer.facts, *map(of_fact, exchange.conclude(answer.peak)), (b"content-length", b"%d" % len(body))]
        await reply.start(response.status, to_caller(response.headers, facts))
        await reply.finish(body)

    async def _relay_stream(
        self, response: UpstreamResponse, answer: "_Answer", reply: Reply, exchange: Exchange
    ) -> None:
        exchange.watch(stream=True)
        splice = StreamSplice()
        last = b""
        await reply.start(response.status, to_caller(response.headers, answer.facts))
        while not splice.done:
            chunk = await response.chunk()
            if not chunk:
                raise UpstreamReset("The upstream ended the stream before it was complete.")
            now, last = splice.feed(chunk)
            if now:
                await reply.write(answer.asked.events(now))
                exchange.feed(now)
        exchange.feed(last)
        facts_at_end = exchange.conclude(splice.peak if splice.peak is not None else answer.peak)
        exchange.keep_receipt()  # before the client has the end of its answer, and may ask for it
        comment = COMMENT_PREFIX + orjson.dumps(dict(facts_at_end)) + b"\n\n" if self._policy.stream_comment else b""
        await reply.finish(comment + last)
        await response.drain()

    def _pin(self, request: InferenceRequest, plan: Plan, request_id: str) -> Pinned:
        tiny, keep = self._policy.tiny_temperature, self._scheduler.by_priority
        return pin(request, plan, salt=request_id, tiny=tiny, keep_priority=keep)

    def _evidence(self, ready: "_Ready", lease: Lease) -> Asked:
        """What is asked of the engine besides the answer."""
        call, members = ready.call, ready.request.members
        if ready.plan.mode not in DETERMINISTIC_MODES and call.origin is Origin.CLIENT:
            return NOTHING_ASKED
        asked = ask(call.path, members, self._policy.evidence, lease.status.max_logprobs)
        # A member that is there twice is not ours to choose from, nor to complain of.
        twice = any(call.body.count(b'"%b"' % name.encode()) > 1 for name in asked.changes if name in members)
        return NOTHING_ASKED if twice else asked

    def _asking(self, call: Call, request: InferenceRequest, plan: Plan) -> Asking:
        """Who asks. Only exclusive requests stand in a line in which that counts.

        Where the gateway's own key replaces the caller's, nobody checks that one: whoever asks is then one caller.
        """
        if not plan.exclusive and plan.window is None:
            return ANYBODY
        checked = self._policy.api_key is None
        credentials = next((value for name, value in call.headers if checked and name == b"authorization"), b"")
        key = blake2b(credentials, key=self._policy.caller_key, digest_size=8).hexdigest() if credentials else ""
        return Asking(key, request.priority)

    def _errand_headers(self, ready: "_Ready", lease: Lease | None, request_id: str) -> list[Header]:
        """The head of a request of our own for an answer, with a lease or, where it needs no engine, without one."""
        ours = [(b"content-type", b"application/json")]
        if lease is not None:
            return [*self._request_headers(ready, lease, request_id, _ABOUT_THE_BODY), *ours]
        if self._policy.guard_key is not None:
            ours.append((GUARD_KEY, self._policy.guard_key))
        return self._passed(ready, request_id, ours, _ABOUT_THE_BODY)

    def _request_headers(
        self, ready: "_Ready", lease: Lease, request_id: str, without: frozenset[bytes] = frozenset()
    ) -> list[Header]:
        ours = [(ADMISSION, lease.admission.encode())]
        if lease.status.guarded and self._policy.guard_key is not None:
            ours += ((GUARD_KEY, self._policy.guard_key), (QUEUE_TIMEOUT, self._patience))
            if ready.asking is not ANYBODY:
                ours += (
                    (CALLER, ready.asking.key.encode()),
                    (PRIORITY, b"%d" % ready.asking.priority),
                )
        return self._passed(ready, request_id, ours, without)

    def _passed(self, ready: "_Ready", request_id: str, ours: list[Header], without: frozenset[bytes]) -> list[Header]:
        caller = ready.call.headers
        if without:
            caller = tuple(header for header in caller if header[0] not in without)
        return to_engine(caller, request_id=request_id.encode(), api_key=self._policy.api_key, ours=ours)


def _apart(asked: Asked, body: bytes, exchange: Exchange) -> bytes:
    """What takes long about a large answer, for a thread beside the loop: it is read, and made the caller's."""
    exchange.read()
    return asked.unary(body)


def _facts(plan: Plan, sampling: Sampling, lease: Lease, *, guard: bool) -> list[Header]:
    """What was decided and done for the request, as headers of the answer."""
    facts = [
        (b"x-determinism-mode", plan.mode.encode()),
        (b"x-determinism-applied", ",".join(lease.applied).encode()),
        (b"x-determinism-replica", lease.replica.name.encode()),
        (b"x-determinism-posture", lease.posture.encode()),
        (b"x-determinism-gate", b"guard" if guard else b"gateway"),
    ]
    if lease.missing:
        text = "; ".join(f"{mitigation}: {' '.join(reason.split())}" for mitigation, reason in lease.missing.items())
        facts.append((b"x-determinism-unavailable", text.encode("ascii", "replace")))
    if plan.mitigations:
        facts += [
            (b"x-determinism-temperature-requested", _number(sampling.requested_temperature)),
            (b"x-determinism-temperature-effective", _number(sampling.effective_temperature)),
        ]
    return facts


def _number(value: float | None) -> bytes:
    """None is where the engine's own default rules (the model's generation config, or vLLM's)."""
    return b"engine-default" if value is None else f"{value:.10g}".encode()
