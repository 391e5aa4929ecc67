"""The composition root: the only place that constructs. Everything lives in one lifespan."""

import logging
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

import anyio
from fastapi import FastAPI
from fastapi_offline import FastAPIOffline
from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector

from app import __version__
from app.api.documentation import describe_inference
from app.api.inference import PATHS, InferenceApp
from app.api.operations import build_router, install_errors
from app.gateway import Gateway, Policy
from app.observation.exchange import Observatory
from app.observation.metrics import Metrics
from app.observation.recorder import Limits, Recorder
from app.observation.sqlite import SqliteStore
from app.reply import Receive, Scope, Send
from app.scheduling.scheduler import Scheduler
from app.settings import Settings
from app.state import StateDirectory
from app.upstream.client import UpstreamClient
from app.upstream.prober import Prober, Watchdog
from app.upstream.replica import Replica, ReplicaStatus

_log = logging.getLogger(__name__)


class Application:
    """The ASGI application: generating paths go straight to the hot path, everything else to FastAPI."""

    def __init__(self, inference: InferenceApp, operations: FastAPI) -> None:
        self._inference = inference
        self._operations = operations

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection event."""
        if scope["type"] == "http" and scope["path"] in PATHS:
            await self._inference(scope, receive, send)
        else:
            await self._operations(scope, receive, send)


def create_app(settings: Settings) -> Application:
    """Build the gateway; its lifespan starts and stops everything in it.

    Raises OSError where the state directory or a key file cannot be used.
    """
    guard_key = settings.read_guard_key()
    api_key = settings.read_upstream_api_key()
    registry = CollectorRegistry()
    for collector in (ProcessCollector, PlatformCollector, GCCollector):
        collector(registry=registry)
    metrics = Metrics(registry)
    state = StateDirectory(settings.state_dir)
    open_store = partial(SqliteStore, state.ledger) if settings.ledger else None
    recorder = Recorder(metrics, open_store, Limits(queue_observations=settings.ledger_queue))
    observatory = Observatory(metrics, recorder, installation_key=state.key, clock=time.monotonic)
    prober = Prober(timeout=settings.probe_timeout, guard_key=guard_key, api_key=api_key)
    scheduler = Scheduler(
        settings.replicas,
        prober,
        clock=time.monotonic,
        drain_timeout=settings.drain_timeout,
        exclusive_run=settings.exclusive_run,
    )

    def changed(replica: Replica, status: ReplicaStatus) -> None:
        scheduler.update(replica, status)
        for model in sorted(status.served):
            metrics.declare(model)
        if status.healthy:
            _log.info("replica %s is healthy, posture %s%s", replica.name, status.digest, _aside(status.guard_problem))
        else:
            _log.warning("replica %s is out: %s", replica.name, status.problem)
        metrics.observe_replica(replica.name, status.posture.to_mapping() | {"posture": status.digest})

    watchdog = Watchdog(
        settings.replicas,
        prober,
        interval=settings.probe_interval,
        failures=settings.probe_failures,
        changed=changed,
    )
    client = UpstreamClient(
        connect=settings.connect_timeout, first_byte=settings.first_byte_timeout, idle=settings.idle_timeout
    )
    policy = Policy(
        default_mode=settings.default_mode,
        tiny_temperature=settings.tiny_temperature,
        max_answer_bytes=settings.max_answer_bytes,
        stream_comment=settings.stream_comment,
        api_key=api_key.encode() if api_key is not None else None,
        guard_key=guard_key.encode() if guard_key is not None else None,
    )

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            stack.callback(state.close)
            await stack.enter_async_context(prober)
            await stack.enter_async_context(recorder)
            await stack.enter_async_context(client)
            group = await stack.enter_async_context(anyio.create_task_group())
            group.start_soon(watchdog.run)
            yield
            group.cancel_scope.cancel()

    operations = FastAPIOffline(
        title="Reprise",
        version=__version__,
        summary="Deterministic LLM serving at the gateway.",
        lifespan=lifespan,
    )
    operations.include_router(build_router(scheduler, metrics.render))
    install_errors(operations)
    describe_inference(operations)
    gateway = Gateway(scheduler, client, observatory, policy)
    inference = InferenceApp(
        gateway,
        max_body_bytes=settings.max_body_bytes,
        body_timeout=settings.body_timeout,
        write_timeout=settings.write_timeout,
    )
    return Application(inference, operations)


def _aside(text: str | None) -> str:
    return f" ({text})" if text else ""
