"""``POST /v1/determinism/plan``: what would happen to a request, without sending it. FastAPI, off the hot path."""

from typing import Any, Final

import anyio
from fastapi import APIRouter, Request
from pydantic import BaseModel, Field
from starlette.requests import ClientDisconnect

from app.api.documentation import REQUEST_PARAMETERS
from app.api.inference import check_body_head, read_wish
from app.determinism.mode import Mitigation
from app.errors import QueueFull, RequestTimeout, RequestTooLarge
from app.preview import Preview, Previewer

PATH: Final = "/v1/determinism/plan"
_AT_ONCE: Final = 8
"""Bodies that are read at the same time."""
_RETRY: Final = 1.0
_ANY_OBJECT: Final = {"type": "object", "description": "A body as it would be sent to a generating path."}


class PlannedMitigation(BaseModel):
    """One mitigation of the plan on the replica that would take the request."""

    mitigation: str = Field(examples=["batch_isolation"])
    available: bool
    reason: str | None = Field(None, description="Why it is not available, or what it rests on.")


class PlannedReplica(BaseModel):
    """What one replica would be for the request."""

    replica: str
    posture: str
    healthy: bool
    in_pool: bool = Field(description="Whether it is of the pool that serves such requests.")
    missing: dict[str, str] = Field(description="Mitigations that it lacks, each with the reason.")
    expected_wait_seconds: float = Field(description="An estimate, from what ran there lately.")


class PlannedEdits(BaseModel):
    """Members of the body that would be changed before the engine gets it; absent means that the caller's stay."""

    changed: list[str] = Field(examples=[["cache_salt", "seed"]])
    asked: list[str] = Field(
        examples=[["logprobs", "return_token_ids"]],
        description="Members that the gateway adds on its own account; what they yield, it takes out again.",
    )
    temperature_requested: float | None = Field(description="null: the engine's own default rules.")
    temperature_effective: float | None
    seed: int | None


class PlannedPasses(BaseModel):
    """What the passes of a verified answer would need."""

    admission: str | None = Field(
        description="shared where the verifier's kernels are batch-invariant, else exclusive; null: not known."
    )
    grid: str = Field(examples=["chain"], description="The grid that would rule: chain, prompt or unknown.")


class PlanAnswer(BaseModel):
    """The plan of a request that was not sent."""

    path: str = Field(examples=["/v1/chat/completions"])
    model: str | None
    mode: str
    admission: str = Field(examples=["exclusive"])
    on_unavailable: str
    window: int | None = Field(description="Tokens of a window; null for an answer that is not verified.")
    passes: PlannedPasses | None = Field(description="Null for an answer that is not verified.")
    mitigations: list[PlannedMitigation]
    edits: PlannedEdits
    posture: str | None = Field(description="The posture of the pool that would serve it.")
    pool_epoch: int | None = Field(description="How many postures served such requests so far; null: none yet.")
    replica: str | None = Field(description="The replica that would take it now.")
    expected_wait_seconds: float | None
    would_be_served: bool
    error: dict[str, Any] | None = Field(description="What the caller would get instead, in OpenAI's shape.")
    replicas: list[PlannedReplica]


def build_plan_router(previewer: Previewer, max_body_bytes: int, body_timeout: float) -> APIRouter:
    """The endpoint. ``max_body_bytes`` and ``body_timeout`` (seconds) bound a body as on the generating paths."""
    router = APIRouter(tags=["determinism"])

    at_once = anyio.Semaphore(_AT_ONCE)

    @router.post(
        PATH,
        summary="What would happen to this request: the plan, the pool, the expected wait. Nothing is sent.",
        description="What the gateway decides; the engine may still refuse a body that it cannot serve. The body is "
        "taken for a chat completion if it has messages, else for a completion.",
        responses={
            400: {"description": "The body, the mode or a mitigation is wrong; the message names the field."},
            404: {"description": "No replica serves the model."},
            429: {"description": "Too many bodies are arriving."},
        },
        openapi_extra={
            "parameters": REQUEST_PARAMETERS,
            "requestBody": {"required": True, "content": {"application/json": {"schema": _ANY_OBJECT}}},
        },
    )
    async def plan(request: Request) -> PlanAnswer:
        headers = tuple(request.scope["headers"])
        wish = read_wish(request.scope, headers)
        check_body_head(headers, max_body_bytes)
        if not await _place(at_once, body_timeout):
            raise QueueFull(f"{_AT_ONCE} other bodies are still arriving.", retry_after=_RETRY)
        try:
            body = await _read(request, max_body_bytes, body_timeout)
        finally:
            at_once.release()
        return _answer(previewer.look(body, wish))

    return router


async def _place(among: anyio.Semaphore, patience: float) -> bool:
    """Take a place, to be released; False where none is free in time."""
    with anyio.move_on_after(patience):
        await among.acquire()
        return True
    return False


async def _read(request: Request, most: int, patience: float) -> bytes:
    body = bytearray()
    try:
        with anyio.fail_after(patience):
            async for piece in request.stream():
                body += piece
                if len(body) > most:
                    raise RequestTooLarge(f"The body is over {most} bytes.")
    except TimeoutError as exc:
        raise RequestTimeout(f"The body did not arrive within {patience:g} s.") from exc
    except ClientDisconnect as exc:
        # Nobody is left to tell, but it is no fault of ours either.
        raise RequestTimeout("The client left before its body was complete.") from exc
    return bytes(body)


def _answer(preview: Preview) -> PlanAnswer:
    plan, chosen = preview.plan, preview.chosen
    missing = preview.missing
    exclusive = (preview.passes or plan).exclusive and Mitigation.BATCH_ISOLATION not in missing
    admission = "exclusive" if exclusive else "shared"
    nobody = None if preview.prospects else "no replica is ready"
    return PlanAnswer(
        path=preview.path,
        model=plan.model,
        mode=plan.mode,
        admission=admission,
        on_unavailable=plan.on_unavailable,
        window=plan.window,
        passes=PlannedPasses(
            admission=admission if preview.passes is not None else None,
            grid=preview.grid if preview.grid is not None else "unknown",
        )
        if plan.window is not None
        else None,
        mitigations=[
            PlannedMitigation(
                mitigation=mitigation,
                available=bool(preview.prospects) and mitigation not in missing,
                reason=missing.get(mitigation) or preview.reasons.get(mitigation) or nobody,
            )
            for mitigation in Mitigation
            if mitigation in plan.mitigations
        ],
        edits=PlannedEdits(
            changed=sorted(preview.changed),
            asked=sorted(preview.asked),
            temperature_requested=preview.sampling.requested_temperature,
            temperature_effective=preview.sampling.effective_temperature,
            seed=preview.sampling.seed,
        ),
        posture=chosen.posture if chosen is not None else None,
        pool_epoch=preview.pool_epoch,
        replica=chosen.replica.name if chosen is not None else None,
        expected_wait_seconds=round(chosen.expected_wait, 3) if chosen is not None else None,
        would_be_served=preview.error is None,
        error=preview.error.body()["error"] if preview.error is not None else None,
        replicas=[
            PlannedReplica(
                replica=prospect.replica.name,
                posture=prospect.posture,
                healthy=prospect.healthy,
                in_pool=prospect.in_pool,
                missing={mitigation.value: reason for mitigation, reason in prospect.missing.items()},
                expected_wait_seconds=round(prospect.expected_wait, 3),
            )
            for prospect in preview.prospects
        ],
    )
