"""The composition root: the only place that constructs. Everything lives in one lifespan."""

import hmac
import logging
import random
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import anyio
from fastapi import FastAPI
from fastapi_offline import FastAPIOffline
from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector

from app import __version__
from app.api.documentation import describe_inference
from app.api.inference import PATHS, InferenceApp
from app.api.observatory import Gatekeeper, Page, build_observatory_router
from app.api.operations import build_router, install_errors
from app.api.plan import build_plan_router
from app.api.receipts import build_receipts_router
from app.asgi import Receive, Scope, Send
from app.determinism.output import Output
from app.determinism.semantic import SemanticUnavailable, load_embedder
from app.gateway import Gateway, Policy
from app.measuring.canaries import Canary, CanaryError, bundled, parse
from app.measuring.schedule import Schedule
from app.measuring.sender import Sender
from app.measuring.shadows import Shadows
from app.observation.exchange import Observatory
from app.observation.history import ComparisonHistory, GateHistory
from app.observation.judge import nobody_likens
from app.observation.likeness import Likeness
from app.observation.metrics import Metrics
from app.observation.recorder import Limits, Recorder
from app.observation.sqlite import SqliteStore
from app.observation.store import Store
from app.observation.summary import compared
from app.observation.texts import Redact, Texts
from app.observatory import read_assets
from app.preview import Previewer
from app.receipts.signing import Signer
from app.receipts.store import Receipts
from app.scheduling.scheduler import Scheduler
from app.settings import Settings
from app.state import StateDirectory
from app.upstream.client import UpstreamClient
from app.upstream.drain import DrainProof
from app.upstream.prober import Prober
from app.upstream.replica import Replica, ReplicaStatus
from app.upstream.watchdog import Watchdog
from app.verifier.answering import Verification

_log = logging.getLogger(__name__)


class Application:
    """The ASGI application: generating paths go straight to the hot path, everything else to FastAPI.

    ``retire`` turns readiness off and changes nothing else: the first step of going away.
    """

    def __init__(self, inference: InferenceApp, operations: FastAPI, *, retire: Callable[[], None]) -> None:
        self._inference = inference
        self._operations = operations
        self.retire = retire

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection event."""
        if scope["type"] == "http" and scope["path"] in PATHS:
            await self._inference(scope, receive, send)
        else:
            await self._operations(scope, receive, send)


def check_app(settings: Settings) -> None:
    """Look at everything that the settings name, as `create_app` would, and make nothing.

    Raises OSError and CanaryError as it does. The state directory is left alone: only a gateway that serves has one.
    """
    _texts(settings)
    _canaries(settings.canaries)
    _redis(settings)
    settings.read_upstream_api_key()
    if settings.installation_key_file is not None:
        settings.installation_key_file.read_bytes()
    _likeness(settings, Metrics(CollectorRegistry()))


def create_app(settings: Settings) -> Application:
    """Build the gateway; its lifespan starts and stops everything in it.

    Raises OSError where the state directory, a file or a hook cannot be used, and CanaryError.
    """
    keep_text, canaries, redis = _texts(settings), _canaries(settings.canaries), _redis(settings)
    api_key, guard_key = settings.read_upstream_api_key(), settings.read_guard_key()
    registry = CollectorRegistry()
    for collector in (ProcessCollector, PlatformCollector, GCCollector):
        collector(registry=registry)
    metrics = Metrics(registry)
    likeness = _likeness(settings, metrics)
    state = StateDirectory(settings.state_dir, settings.installation_key_file)
    ledger, open_store = _ledger(settings, state, redis)
    if open_store is None:
        metrics.ledger_up.set(1)  # nothing is away that was never wanted
    recorder = Recorder(
        metrics,
        open_store,
        Limits(queue_observations=settings.ledger_queue),
        keep_text=keep_text,
        liken=likeness.offer if likeness is not None else nobody_likens,
    )
    receipts = Receipts(settings.receipts, wall=time.time)  # noqa: TID251 - a receipt shows when its request finished
    observatory = Observatory(
        metrics, recorder, receipts, installation_key=state.key, clock=time.monotonic, recording=settings.recording
    )
    prober = Prober(timeout=settings.probe_timeout, guard_key=guard_key, api_key=api_key)
    client = UpstreamClient(
        connect=settings.connect_timeout, first_byte=settings.first_byte_timeout, idle=settings.idle_timeout
    )
    scheduler = Scheduler(
        settings.replicas,
        DrainProof(client, timeout=settings.probe_timeout, api_key=api_key),
        clock=time.monotonic,
        policy=settings.gate_policy,
        queueing=settings.queueing,
    )
    history = GateHistory(time.time)  # noqa: TID251 - the page shows when it was
    comparisons = ComparisonHistory(time.time)  # noqa: TID251 - as above
    watchdog = _watchdog(settings, prober, scheduler, metrics, history)
    policy = _policy(settings, state.key)
    verification = Verification(
        state.key,
        comment=settings.stream_comment,
        clock=time.monotonic,
        wall=time.time,  # noqa: TID251 - an answer shows when it was created
    )
    gateway = Gateway(scheduler, client, observatory, policy, verification, suspect=watchdog.suspect)
    sender = Sender(gateway, retired=lambda: scheduler.retired)
    shadows = Shadows(sender, rate=settings.shadow_rate, chance=random.random, dropped=metrics.shadow_dropped)
    schedule = Schedule(
        sender,
        canaries,
        settings.canary_modes,
        interval=settings.canary_interval,
        served=lambda: sorted(scheduler.served),
    )

    async def admissions(replica: str, **query: str | int) -> Mapping[str, Any] | None:
        named = next((each for each in settings.replicas if each.name == replica), None)
        return await prober.admissions(named, **query) if named is not None else None

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            stack.callback(state.close)
            if likeness is not None:
                stack.enter_context(likeness)
            await stack.enter_async_context(prober)
            await stack.enter_async_context(recorder)
            await stack.enter_async_context(client)
            group = await stack.enter_async_context(anyio.create_task_group())
            group.start_soon(watchdog.run)
            group.start_soon(shadows.run)
            group.start_soon(comparisons.run, lambda: compared(metrics))
            if settings.canary_interval:
                group.start_soon(schedule.run)
            yield
            group.cancel_scope.cancel()

    page = Page(
        metrics,
        recorder,
        scheduler,
        history,
        comparisons,
        schedule if settings.canary_interval else None,
        receipts,
        admissions,
        _facts(settings, ledger),
    )
    operations = FastAPIOffline(
        title="Reprise",
        version=__version__,
        summary="Deterministic LLM serving at the gateway.",
        lifespan=lifespan,
    )
    for router in (
        build_router(scheduler, metrics.render, recorder, ledger),
        build_observatory_router(Gatekeeper(settings.read_observatory_key(), settings.host), read_assets(), page),
        build_plan_router(Previewer(scheduler, policy), settings.max_body_bytes, settings.body_timeout),
        build_receipts_router(receipts, Signer(state.key), admissions),
    ):
        operations.include_router(router)
    install_errors(operations)
    describe_inference(operations)
    inference = InferenceApp(
        gateway,
        max_body_bytes=settings.max_body_bytes,
        body_timeout=settings.body_timeout,
        write_timeout=settings.write_timeout,
        shadows=shadows,
    )
    return Application(inference, operations, retire=scheduler.retire)


def _texts(settings: Settings) -> Callable[[Output], str | None]:
    return Texts(settings.text_bytes, _hook(settings.redactor)) if settings.keep_texts else _nothing


def _canaries(path: Path | None) -> tuple[Canary, ...]:
    if path is None:
        return bundled()
    try:
        return parse(path.read_text(), str(path))
    except UnicodeDecodeError as exc:
        raise CanaryError(f"{path} is not UTF-8: {exc.reason} at byte {exc.start}") from exc
    except OSError as exc:
        raise CanaryError(f"the canaries cannot be read: {path}: {exc.strerror}") from exc


def _facts(settings: Settings, ledger: str) -> Mapping[str, Any]:
    """What the observatory shows of the gateway itself."""
    return {
        "version": __version__,
        "ledger_kind": ledger,
        "texts": settings.keep_texts,
        "shadow_rate": settings.shadow_rate,
    }


def _likeness(settings: Settings, metrics: Metrics) -> Likeness | None:
    """What looks at the meaning of diverged answers, where it is asked for. Raises OSError where it cannot."""
    if not settings.semantic:
        return None
    try:
        return Likeness(load_embedder(), metrics.similarity["semantic"])
    except SemanticUnavailable as exc:
        raise OSError(f"REPRISE_SEMANTIC: {exc}") from exc


def _redis(settings: Settings) -> Callable[[str], Store] | None:
    """What opens the Redis of the ledger, given the prefix of its keys; None for another ledger, or none at all.

    Raises OSError where its URL, or its client, is not usable.
    """
    url = settings.read_ledger_url()
    if url is None or not settings.ledger:
        return None
    try:
        from app.observation.redis import Address, RedisStore  # noqa: PLC0415 - its client comes with an extra

        address = Address.parse(url)
    except ImportError as exc:
        raise OSError("REPRISE_LEDGER_URL needs a Redis client: pip install 'reprise-gateway[redis]'") from exc
    except ValueError as exc:
        raise OSError(f"REPRISE_LEDGER_URL: {exc}") from exc
    return lambda prefix: RedisStore(address, settings.retention, prefix=prefix)


def _ledger(
    settings: Settings, state: StateDirectory, redis: Callable[[str], Store] | None
) -> tuple[str, Callable[[], Store] | None]:
    """The kind of the ledger's store, and what opens it."""
    if not settings.ledger:
        return "memory", None
    if redis is None:
        return "sqlite", partial(SqliteStore, state.ledger, settings.retention)
    # Gateways with another key share no cohorts, so they share no keys either.
    name = hmac.digest(state.key, b"ledger", "sha256").hex()[:12]
    return "redis", partial(redis, f"reprise:{name}")


def _policy(settings: Settings, caller_key: bytes) -> Policy:
    api_key, guard_key = settings.read_upstream_api_key(), settings.read_guard_key()
    return Policy(
        default_mode=settings.default_mode,
        tiny_temperature=settings.tiny_temperature,
        max_answer_bytes=settings.max_answer_bytes,
        stream_comment=settings.stream_comment,
        api_key=api_key.encode() if api_key is not None else None,
        guard_key=guard_key.encode() if guard_key is not None else None,
        caller_key=caller_key,
        evidence=settings.evidence,
        window=settings.window,
        max_window=settings.max_window,
        draft_timeout=settings.draft_timeout,
    )


def _watchdog(
    settings: Settings, prober: Prober, scheduler: Scheduler, metrics: Metrics, history: GateHistory
) -> Watchdog:
    def seen(replica: Replica, status: ReplicaStatus) -> None:
        scheduler.update(replica, status)
        if status.healthy and status.guard_problem is None:
            gate = scheduler.slots[replica].gate_view()
            metrics.observe_gate(replica.name, gate)
            history.add(replica.name, gate)

    def changed(replica: Replica, status: ReplicaStatus) -> None:
        metrics.observe_health(replica.name, healthy=status.healthy)
        for model in sorted(status.served):
            metrics.declare(model)
        if status.healthy:
            level = logging.INFO if status.guard_problem is None else logging.WARNING
            aside = _aside(status.guard_problem)
            _log.log(level, "replica %s is healthy, posture %s%s", replica.name, status.digest, aside)
        else:
            _log.warning("replica %s is out: %s", replica.name, status.problem)
        metrics.observe_replica(replica.name, status.posture.to_mapping() | {"posture": status.digest})

    return Watchdog(
        settings.replicas,
        prober,
        interval=settings.probe_interval,
        failures=settings.probe_failures,
        successes=settings.probe_successes,
        seen=seen,
        changed=changed,
        chance=random.random,
    )


def _hook(name: str) -> Redact:
    """The function that ``module:function`` names. Raises OSError saying what is wrong, as a file that is not there."""
    module, _, attribute = name.partition(":")
    try:
        found = getattr(import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as exc:
        raise OSError(f"the redactor {name!r} cannot be loaded: {exc}") from exc
    if not callable(found):
        raise OSError(f"the redactor {name!r} is no function")
    return cast(Redact, found)


def _nothing(_: Output) -> None:
    return None


def _aside(text: str | None) -> str:
    return f" ({text})" if text else ""
