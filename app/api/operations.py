"""What is asked of the gateway itself: models, health, metrics, documentation. FastAPI, off the hot path."""

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final

import anyio.to_thread
from fastapi import APIRouter, FastAPI, Header, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException as StarletteHTTPException

from app.errors import InvalidRequest, MethodNotAllowed, ModelNotFound, NotFound, RepriseError, Unauthorized
from app.observation.recorder import Recorder
from app.scheduling.scheduler import Scheduler
from app.scheduling.slot import Slot
from app.scheduling.ticket import Admission
from app.upstream.replica import GateView

_INSTEAD: Final = "; /observatory, /docs and /metrics are for people, and what clients ask is under /v1."
"""Where somebody who typed the address alone may want to go."""

Render = Callable[[str], tuple[bytes, str]]
"""Takes an Accept header to an exposition and its content type."""


class Health(BaseModel):
    """The process runs."""

    status: str = Field("ok", examples=["ok"])


class ReplicaState(BaseModel):
    """One replica as the last probe saw it."""

    replica: str = Field(examples=["127.0.0.1:8001"])
    healthy: bool
    problem: str | None = Field(
        None, description="Why it is not healthy, or why its guard does not serve this gateway."
    )
    guarded: bool = Field(description="Whether the guard runs inside its API server.")
    vllm_version: str
    posture: str = Field(description="The posture digest; 'unknown' where nothing could be observed.")
    models: list[str]
    leases: int = Field(description="Requests that this gateway has on it now.")
    exclusive_leases: int = Field(description="Those of them that are to be alone.")
    waiting: dict[str, int] = Field(
        description="Requests of all its clients that wait for it, by admission, when it was last probed."
    )
    expected_wait_seconds: dict[str, float] = Field(description="An estimate for a request that came now.")
    mitigations: dict[str, str] = Field(description="What it honours: yes, no or unknown, each with the reason.")


class PoolState(BaseModel):
    """Which posture serves one kind of deterministic request."""

    model: str | None
    mitigations: list[str] = Field(description="Those that depend on the replica.")
    posture: str
    epoch: int = Field(description="How many postures served them since the gateway started; cohorts begin anew.")


class LedgerState(BaseModel):
    """The ledger. Whatever it is like, requests are answered."""

    kind: str = Field(examples=["sqlite"])
    problem: str | None = Field(description="Why its store is away; verdicts go on from memory then.")
    queued: int = Field(description="Observations that wait to be written.")


class Readiness(BaseModel):
    """Whether the gateway can serve, and what it knows of its replicas."""

    ready: bool
    retired: bool = Field(description="It was told to go away: it serves on for a while, but is not ready any more.")
    pools: list[PoolState]
    replicas: list[ReplicaState]
    ledger: LedgerState


def build_router(scheduler: Scheduler, render: Render, recorder: Recorder, ledger: str) -> APIRouter:
    """The operations endpoints; ``ledger`` is the kind of its store."""
    router = APIRouter(tags=["operations"])

    @router.get("/healthz", summary="Liveness: the process runs.")
    async def healthz() -> Health:
        return Health(status="ok")

    @router.get(
        "/readyz",
        summary="Readiness: at least one replica is healthy.",
        responses={503: {"model": Readiness, "description": "No replica is healthy."}},
    )
    async def readyz(response: Response) -> Readiness:
        response.status_code = 200 if scheduler.ready else 503
        pools = [
            PoolState(model=model, mitigations=sorted(mitigations), posture=pool.posture, epoch=pool.epoch)
            for (model, mitigations), pool in scheduler.pools.established()
        ]
        return Readiness(
            ready=scheduler.ready,
            retired=scheduler.retired,
            pools=pools,
            replicas=[_state(slot) for slot in scheduler.slots.values()],
            ledger=LedgerState(kind=ledger, problem=recorder.problem, queued=recorder.queued),
        )

    @router.get("/v1/models", summary="The models of all healthy replicas, with every field that they came with.")
    async def models() -> JSONResponse:
        return JSONResponse({"object": "list", "data": list(_models(scheduler).values())})

    @router.get("/v1/models/{model:path}", summary="One model.")
    async def model(model: str) -> JSONResponse:
        found = _models(scheduler).get(model)
        if found is None:
            raise ModelNotFound(f"The model '{model[:80]}' does not exist.", param="model")
        return JSONResponse(found)

    @router.get("/metrics", summary="Prometheus metrics.", response_class=Response)
    async def metrics(accept: Annotated[str, Header()] = "") -> Response:
        # Rendering many series takes milliseconds; the event loop carries traffic meanwhile.
        body, content_type = await anyio.to_thread.run_sync(render, accept)
        return Response(body, headers={"content-type": content_type})

    return router


def replica_states(scheduler: Scheduler) -> list[dict[str, Any]]:
    """Every replica as ``/readyz`` shows it."""
    return [_state(slot).model_dump() for slot in scheduler.slots.values()]


def install_errors(app: FastAPI) -> None:
    """Give every error of the FastAPI side the OpenAI shape."""

    @app.exception_handler(RepriseError)
    async def ours(_: Request, error: RepriseError) -> JSONResponse:
        after = error.retry_after_header
        headers = {} if after is None else {"retry-after": after.decode()}
        if isinstance(error, Unauthorized):
            headers["www-authenticate"] = f'Basic realm="{error.realm}", charset="UTF-8"'
        if not error.worth_retrying:
            headers["x-should-retry"] = "false"
        return JSONResponse(error.body(), error.status, headers=headers)

    @app.exception_handler(StarletteHTTPException)
    async def http(request: Request, error: StarletteHTTPException) -> JSONResponse:
        path = request.scope["path"][:80]
        known: dict[int, RepriseError] = {
            404: NotFound(f"There is no path '{path}' here{_INSTEAD if path == '/' else '.'}"),
            405: MethodNotAllowed(f"'{path}' does not take {request.method[:20]}."),
        }
        body = known.get(error.status_code, InvalidRequest(str(error.detail)[:200])).body()
        return JSONResponse(body, error.status_code, headers=error.headers)

    @app.exception_handler(Exception)
    async def fault(_: Request, __: Exception) -> JSONResponse:
        # Starlette's outermost layer calls this and raises again, so the server's log has the traceback.
        return JSONResponse(RepriseError("The gateway failed; its log has the cause.").body(), RepriseError.status)

    @app.exception_handler(RequestValidationError)
    async def validation(_: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        param = ".".join(str(part) for part in first["loc"][1:])
        problem = InvalidRequest(f"'{param}': {first['msg']}.", param=param)
        return JSONResponse(problem.body(), problem.status)


def _models(scheduler: Scheduler) -> dict[str, Mapping[str, Any]]:
    """Models by name; where several replicas serve one, the first in the operator's order tells its fields."""
    found: dict[str, Mapping[str, Any]] = {}
    for slot in scheduler.slots.values():
        if slot.status.healthy:
            for model in slot.status.models:
                found.setdefault(str(model.get("id")), model)
    return found


def _state(slot: Slot) -> ReplicaState:
    status = slot.status
    view = slot.gate_view() if status.healthy else GateView()
    answer = {True: "yes", False: "no", None: "unknown"}
    return ReplicaState(
        replica=slot.replica.name,
        healthy=status.healthy,
        problem=status.problem or status.guard_problem,
        guarded=status.guarded,
        vllm_version=status.version,
        posture=status.digest,
        models=sorted(status.served),
        leases=slot.leases,
        exclusive_leases=slot.exclusive,
        waiting={"shared": view.waiting_shared, "exclusive": view.waiting_exclusive},
        expected_wait_seconds={admission: round(slot.expected_wait(admission), 3) for admission in Admission},
        mitigations={
            mitigation: f"{answer[provision.held]}: {provision.reason}".removesuffix(": ")
            for mitigation, provision in slot.provisions().items()
        },
    )
