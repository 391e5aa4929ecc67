"""Rendering: requests, renderer and refusals are vLLM's; what is asked of them, and what is told, is checked here."""

import json
import sys
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, field_validator

from app.engine.rendering import RENDER_PATH
from tests.unit.engine.fake_passes import FakeCache, model_state
from tests.unit.engine.fakes import DISCONNECT, EXCLUSIVE, SHARED, Replica, body, quiet

pytestmark = pytest.mark.anyio

CHAT: dict[str, Any] = {"path": "/v1/chat/completions", "request": {"messages": [{"role": "user", "content": "Hi"}]}}
TEXT: dict[str, Any] = {"path": "/v1/completions", "request": {"prompt": "Hi", "seed": 1}}


class RefusedError(Exception):
    """VLLM's error for what a caller did wrong, which is no ValueError: pydantic lets it through."""


class ErrorResponse:
    """VLLM's refusal of a request."""

    def __init__(self, code: int, message: str, param: str | None = None) -> None:
        self.error = SimpleNamespace(code=code, message=message, type="BadRequestError", param=param)

    def model_dump(self) -> dict[str, Any]:
        """As pydantic's."""
        return {"error": dict(vars(self.error))}

    @classmethod
    def of(cls, exc: Exception) -> "ErrorResponse":
        """VLLM's create_error_response."""
        return cls(400 if isinstance(exc, RefusedError | ValueError) else 500, str(exc), "its field")


class Chat(BaseModel):
    """VLLM's ChatCompletionRequest."""

    model_config = ConfigDict(extra="allow")

    messages: list[dict[str, Any]]
    cache_salt: str | None = None

    @field_validator("cache_salt")
    @classmethod
    def _salt(cls, value: str | None) -> str | None:
        if value is not None and "/" in value:
            raise RefusedError("no slashes in a salt")
        return value


class Completion(BaseModel):
    """VLLM's CompletionRequest."""

    model_config = ConfigDict(extra="allow")

    prompt: str | list[str]


async def invalid(request: Any, exc: RequestValidationError) -> JSONResponse:
    """VLLM's validation_exception_handler."""
    assert request.app.state.args.log_error_stack is False
    assert not vars(request.state)
    (error,) = exc.errors()
    assert "url" not in error
    told = {"message": error["msg"], "type": "Bad Request", "param": ".".join(error["loc"]), "code": 400}
    return JSONResponse({"error": told}, status_code=400)


class Renderer:
    """VLLM's serving_render, and the part of its engine client that admits a request."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, Any]] = []
        self.admitted: list[tuple[Any, Any, str]] = []
        self.found: Any = SimpleNamespace(request_id="chatcmpl-1", token_ids=[1, 2, 3], sampling_params="the params")
        self.meanwhile: Callable[[], Awaitable[None]] = quiet
        self.admission: Exception | None = None

    async def render_chat_request(self, request: Any) -> Any:
        """As vLLM's."""
        return await self._render("chat", request)

    async def render_completion_request(self, request: Any) -> Any:
        """As vLLM's: a list, but for a refusal."""
        found = await self._render("completion", request)
        return found if isinstance(found, list | ErrorResponse) else [found]

    async def _render(self, kind: str, request: Any) -> Any:
        self.asked.append((kind, request))
        await self.meanwhile()
        if isinstance(self.found, Exception):
            raise self.found
        return self.found

    def process_inputs(self, request_id: str, prompt: Any, params: Any, *, supported_tasks: Any) -> None:
        """As vLLM's input processor's."""
        assert supported_tasks == ("generate",)
        if self.admission is not None:
            raise self.admission
        self.admitted.append((prompt, params, request_id))


@pytest.fixture(autouse=True)
def vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    """VLLM's modules."""
    modules: dict[str, dict[str, Any]] = {
        "openai.chat_completion.protocol": {"ChatCompletionRequest": Chat},
        "openai.completion.protocol": {"CompletionRequest": Completion},
        "serve.engine.protocol": {"ErrorResponse": ErrorResponse},
        "serve.exception_handling": {"error_response": SimpleNamespace(create_error_response=ErrorResponse.of)},
        "serve.exception_handling.handlers": {
            "validation": SimpleNamespace(
                validation_exception_handler=invalid, RequestValidationError=RequestValidationError
            )
        },
    }
    for name, content in modules.items():
        monkeypatch.setitem(sys.modules, f"vllm.entrypoints.{name}", SimpleNamespace(**content))
    monkeypatch.setitem(sys.modules, "vllm.inputs", SimpleNamespace(tokens_input=lambda ids: {"ids": ids}))


@pytest.fixture
def renderer() -> Renderer:
    """What renders."""
    return Renderer()


@pytest.fixture
def replica(renderer: Renderer) -> Replica:
    """An engine that renders."""
    replica = Replica(body_timeout=0.05, buffer_limit=1000)
    replica.state.__dict__.update(model_state(FakeCache()).__dict__)
    replica.state.args = SimpleNamespace(api_key=None, log_error_stack=False)
    replica.state.serving_render = renderer

    async def tasks() -> tuple[str, ...]:
        return ("generate",)

    replica.state.engine_client = SimpleNamespace(
        input_processor=renderer, get_supported_tasks=tasks, get_num_unfinished_requests=lambda: 0, errored=False
    )
    return replica


async def ask(replica: Replica, content: object, headers: dict[str, str] = SHARED) -> tuple[int | None, Any]:
    """Status and content of an answer."""
    call = replica.call(headers, RENDER_PATH, data=json.dumps(content).encode())
    await replica.serve(call)
    return call.status, json.loads(call.content)


async def test_a_chat_is_rendered_as_vllm_would(replica: Replica, renderer: Renderer) -> None:
    """By its own class, with all that the caller sent, and then admitted as its client would."""
    content = {**CHAT, "request": {**CHAT["request"], "reasoning_effort": "low"}}
    assert await ask(replica, content) == (200, {"ids": [1, 2, 3]})
    ((kind, request),) = renderer.asked
    assert kind == "chat"
    assert request == Chat(messages=CHAT["request"]["messages"], reasoning_effort="low")
    assert renderer.admitted == [({"ids": [1, 2, 3]}, "the params", "chatcmpl-1")]


async def test_a_completion_is_rendered_as_vllm_would(replica: Replica, renderer: Renderer) -> None:
    """Its one prompt of a list."""
    assert await ask(replica, TEXT) == (200, {"ids": [1, 2, 3]})
    assert renderer.asked == [("completion", Completion(prompt="Hi", seed=1))]
    assert len(renderer.admitted) == 1


@pytest.mark.parametrize("count", [0, 2])
async def test_there_is_exactly_one_prompt(replica: Replica, renderer: Renderer, count: int) -> None:
    """Several have several answers; none of them is admitted."""
    renderer.found = [renderer.found] * count
    status, answer = await ask(replica, TEXT)
    assert (status, answer["error"]["param"]) == (400, "prompt")
    assert answer["error"]["message"] == f"'prompt' must be one prompt, not {count}"
    assert renderer.admitted == []


async def test_a_request_that_cannot_be_read_is_refused_in_vllms_words(replica: Replica, renderer: Renderer) -> None:
    """Where the body is at fault, as its handler tells it for the endpoint's own body."""
    status, answer = await ask(replica, {**CHAT, "request": {"messages": "Hi"}})
    assert (status, answer["error"]["param"], answer["error"]["type"]) == (400, "body.messages", "Bad Request")
    status, answer = await ask(replica, {**CHAT, "request": {}})
    assert (status, answer["error"]["message"]) == (400, "Field required")
    assert renderer.asked == []


async def test_a_check_that_pydantic_lets_through_is_a_refusal_too(replica: Replica, renderer: Renderer) -> None:
    """An error of vLLM's own, raised by a validator."""
    status, answer = await ask(replica, {**CHAT, "request": {**CHAT["request"], "cache_salt": "a/b"}})
    assert (status, answer["error"]["message"], answer["error"]["param"]) == (400, "no slashes in a salt", "its field")
    assert renderer.asked == []


@pytest.mark.parametrize("content", [CHAT, TEXT])
async def test_what_the_renderer_refuses_is_refused_in_its_words(
    replica: Replica, renderer: Renderer, content: object
) -> None:
    """Returned or raised, with its status."""
    renderer.found = ErrorResponse(404, "no such model", "model")
    expected = {"code": 404, "message": "no such model", "type": "BadRequestError", "param": "model"}
    assert await ask(replica, content) == (404, {"error": expected})
    renderer.found = RefusedError("the prompt is too long")
    status, answer = await ask(replica, content)
    assert (status, answer["error"]["message"]) == (400, "the prompt is too long")
    assert renderer.admitted == []


async def test_what_the_client_would_not_admit_is_refused(replica: Replica, renderer: Renderer) -> None:
    """Such as an id outside the vocabulary."""
    renderer.admission = RefusedError("Token id 99 is out of vocabulary")
    status, answer = await ask(replica, TEXT)
    assert (status, answer["error"]["message"]) == (400, "Token id 99 is out of vocabulary")


@pytest.mark.parametrize("fault", [RuntimeError("of the disk"), ErrorResponse(500, "of the disk")])
async def test_what_is_no_refusal_is_an_error_of_the_engine(
    replica: Replica, renderer: Renderer, fault: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """500 with the kind of it, so that the gateway asks another replica; the log has the rest."""
    renderer.found = fault
    status, answer = await ask(replica, CHAT)
    assert (status, answer["error"]["code"]) == (500, "internal_error")
    kind = "RuntimeError" if isinstance(fault, RuntimeError) else "BadRequestError"
    assert answer["error"]["message"] == f"the engine failed to render the prompt: {kind}"
    assert "of the disk" in caplog.text


@pytest.mark.parametrize(
    ("member", "content"),
    [
        ("path", {**CHAT, "path": "/v1/responses"}),
        ("path", {"request": {}}),
        ("request", {**CHAT, "request": []}),
        ("request", {"path": "/v1/completions"}),
        ("more", {**CHAT, "more": 1}),
        (None, []),
    ],
)
async def test_what_a_gateway_sends_wrongly_is_refused_by_name(
    replica: Replica, member: str | None, content: object
) -> None:
    """Before vLLM sees any of it."""
    status, answer = await ask(replica, content)
    assert (status, answer["error"]["code"], answer["error"]["param"]) == (400, "invalid_request", member)


@pytest.mark.parametrize("gone", ["serving_render", "engine_client", "vllm.entrypoints.serve.engine.protocol"])
async def test_a_vllm_without_it_is_unavailable(replica: Replica, gone: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """503 with what is missing."""
    if gone in sys.modules:
        monkeypatch.setitem(sys.modules, gone, SimpleNamespace())
    else:
        delattr(replica.state, gone)
    status, answer = await ask(replica, CHAT)
    assert (status, answer["error"]["code"]) == (503, "determinism_unavailable")
    assert answer["error"]["message"].startswith("this engine's renderer is not where it is expected")


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 403),
        ({"authorization": "Bearer engine"}, 403),
        (SHARED, 401),
        ({**SHARED, "authorization": "Bearer wrong"}, 401),
        ({**SHARED, "authorization": "Bearer engine"}, 200),
    ],
)
async def test_it_needs_both_keys(replica: Replica, renderer: Renderer, headers: dict[str, str], status: int) -> None:
    """The guard's, and that of the engine, as any path on which a caller's words are taken."""
    replica.state.args.api_key = ["engine"]
    assert (await ask(replica, CHAT, headers))[0] == status
    assert bool(renderer.asked) is (status == 200)


async def test_it_runs_beside_an_exclusive_request(replica: Replica) -> None:
    """It is outside the gate."""
    running = replica.call(EXCLUSIVE)
    async with anyio.create_task_group() as group:
        group.start_soon(replica.serve, running)
        await quiet()
        assert replica.server.started == [running]
        with anyio.fail_after(5):
            assert (await ask(replica, CHAT))[0] == 200
        running.finish.set()


async def test_a_client_that_leaves_ends_it(replica: Replica, renderer: Renderer) -> None:
    """The renderer is cancelled, and nothing is sent."""
    cancelled = anyio.Event()

    async def forever() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            cancelled.set()

    renderer.meanwhile = forever
    call = replica.call(SHARED, RENDER_PATH, data=json.dumps(CHAT).encode())
    async with anyio.create_task_group() as group:
        group.start_soon(replica.serve, call)
        await quiet()
        assert (len(renderer.asked), cancelled.is_set()) == (1, False)
        call.wire.put_nowait(DISCONNECT)
    assert cancelled.is_set()
    assert (call.sent, renderer.admitted) == ([], [])


async def test_a_body_has_a_limit_and_a_time(replica: Replica) -> None:
    """413 for what is too large, 408 for half a body; nothing for nobody."""
    large = replica.call(SHARED, RENDER_PATH, data=b'{"path":"' + b"x" * 1000)
    await replica.serve(large)
    assert large.status == 413
    silent = replica.call(SHARED, RENDER_PATH, data=None)
    silent.wire.put_nowait(body(b"{", more=True))
    await replica.serve(silent)
    assert silent.status == 408
    gone = replica.call(SHARED, RENDER_PATH, data=None)
    gone.wire.put_nowait(DISCONNECT)
    await replica.serve(gone)
    assert gone.sent == []
