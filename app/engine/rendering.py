"""``POST /reprise/render``: the token ids that vLLM makes of a caller's request, or vLLM's own refusal of it.

It puts no work on the engine and runs beside anything. vLLM's request classes, renderer and admission checks are called
in process, in the order in which its endpoints call them. So the ids are those that any other mode runs, a prompt that
is too long ends before its text is tokenized, and what vLLM refuses is refused in its own words.

    {"path": "/v1/chat/completions", "request": {"messages": [{"role": "user", "content": "Hi"}]}}
    {"ids": [1, 2, 3]}

vLLM is imported inside functions: it exists in the engine's environment only.
"""

import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Final

from app.asgi import Receive, Scope, Send
from app.engine.asgi import Refusal, send_json
from app.engine.body import attended, read_whole
from app.engine.members import Members
from app.errors import DeterminismUnavailable, InvalidRequest, RepriseError

RENDER_PATH: Final = "/reprise/render"

_CHAT: Final = "/v1/chat/completions"
_COMPLETIONS: Final = "/v1/completions"

_OK: Final = 200
_REFUSALS: Final = range(400, 500)

# Under vLLM's own logger, since its logging configuration has no handler for others.
logger = logging.getLogger("vllm.reprise.rendering")


@dataclass(frozen=True, slots=True)
class RenderRequest:
    """What a gateway asks: the ``members`` that a caller sent to ``path``, without those of the gateway's own."""

    path: str
    members: Mapping[str, Any]

    @classmethod
    def read(cls, body: bytes) -> "RenderRequest":
        """From JSON; raises InvalidRequest naming the member."""
        members = Members(body)
        asked = cls(path=members.one_of("path", (_CHAT, _COMPLETIONS)), members=members.members("request"))
        members.end()
        return asked


@dataclass(frozen=True, slots=True)
class Rendered:
    """An answer: the ids, or a refusal as vLLM's own endpoint would send it."""

    status: int
    content: Mapping[str, Any]


async def renders(scope: Scope, receive: Receive, send: Send) -> None:
    """ASGI; raises ClientLeftError. A client that leaves meanwhile gets nothing, and no more is done for it."""
    body = await read_whole(receive)
    answer = await attended(receive, _answer(body, scope["app"]))
    if isinstance(answer, Refusal):
        await answer.send(send)
    elif answer is not None:
        await send_json(send, answer.status, answer.content)


async def _answer(body: bytes, app: Any) -> Rendered | Refusal:  # noqa: ANN401 - vLLM's application
    try:
        asked = RenderRequest.read(body)
        return await _Vllm.of(asked.path, app.state).rendered(asked.members, app)
    except RepriseError as error:
        return Refusal.of(error)
    except Exception as exc:
        # Whatever vLLM raises that is no refusal: the gateway must learn that another replica may do better.
        logger.exception("a prompt could not be rendered")
        return _failed(type(exc).__name__)


def _failed(what: str) -> Refusal:
    return Refusal(500, "internal_error", f"the engine failed to render the prompt: {what}")


@dataclass(frozen=True, slots=True)
class _Vllm:
    """What is called of vLLM for one path (0.32, entrypoints/scale_out/render and entrypoints/serve)."""

    kind: Any
    render: Callable[[Any], Awaitable[Any]]
    admit: Callable[[Any], Awaitable[None]]
    refused: type[Any]
    refusal_of: Callable[[Exception], Any]
    invalid: Callable[[Any, Exception], Awaitable[Any]]
    invalid_request: Callable[[list[Any]], Exception]

    @classmethod
    def of(cls, path: str, state: Any) -> "_Vllm":  # noqa: ANN401 - vLLM's app.state
        """Raises DeterminismUnavailable where one of them is not there."""
        try:
            from vllm.entrypoints.openai.chat_completion.protocol import (  # noqa: PLC0415 - in the engine's environment only
                ChatCompletionRequest,
            )
            from vllm.entrypoints.openai.completion.protocol import CompletionRequest  # noqa: PLC0415 - as above
            from vllm.entrypoints.serve.engine.protocol import ErrorResponse  # noqa: PLC0415 - as above
            from vllm.entrypoints.serve.exception_handling import error_response  # noqa: PLC0415 - as above
            from vllm.entrypoints.serve.exception_handling.handlers import validation  # noqa: PLC0415 - as above
            from vllm.inputs import tokens_input  # noqa: PLC0415 - as above

            serving, client = state.serving_render, state.engine_client
            processor = client.input_processor

            async def admit(found: Any) -> None:  # noqa: ANN401 - vLLM's GenerateRequest
                tasks = await client.get_supported_tasks()
                ids = tokens_input(list(found.token_ids))
                # What the engine's client does with every request before it is sent on; nothing is sent here.
                processor.process_inputs(found.request_id, ids, found.sampling_params, supported_tasks=tasks)

            chat = path == _CHAT
            return cls(
                kind=ChatCompletionRequest if chat else CompletionRequest,
                render=serving.render_chat_request if chat else serving.render_completion_request,
                admit=admit,
                refused=ErrorResponse,
                refusal_of=error_response.create_error_response,
                invalid=validation.validation_exception_handler,
                invalid_request=validation.RequestValidationError,
            )
        except (ImportError, AttributeError) as exc:
            raise DeterminismUnavailable(f"this engine's renderer is not where it is expected: {exc}") from exc

    async def rendered(self, members: Mapping[str, Any], app: Any) -> Rendered | Refusal:  # noqa: ANN401 - as above
        """The answer. Raises InvalidRequest for several prompts, and what vLLM raises that is no refusal."""
        try:
            # As FastAPI reads a body, which shows in what is said of one that cannot be read.
            request = self.kind.model_validate(members, from_attributes=True)
        except Exception as exc:  # noqa: BLE001 - vLLM's own handlers say what is a refusal; the rest is raised again
            # Only pydantic's own error has them; what a validator of vLLM's raises may come through bare.
            errors = getattr(exc, "errors", None)
            return self._refusal(exc) if errors is None else await self._invalid(errors(include_url=False), app)
        try:
            found = await self.render(request)
            if isinstance(found, self.refused):
                return self._refused(found)
            prompts = found if isinstance(found, list) else [found]
            if len(prompts) == 1:
                await self.admit(prompts[0])
        except Exception as exc:  # noqa: BLE001 - as above
            return self._refusal(exc)
        if len(prompts) != 1:
            raise InvalidRequest(f"'prompt' must be one prompt, not {len(prompts)}", param="prompt")
        return Rendered(_OK, {"ids": list(prompts[0].token_ids)})

    async def _invalid(self, errors: list[dict[str, Any]], app: Any) -> Rendered:  # noqa: ANN401 - as above
        where = [{**error, "loc": ("body", *error["loc"])} for error in errors]
        head = SimpleNamespace(app=app, state=SimpleNamespace())
        response = await self.invalid(head, self.invalid_request(where))
        return Rendered(response.status_code, json.loads(response.body))

    def _refusal(self, exc: Exception) -> Rendered:
        """What vLLM's own handler makes of what it raised; raises that again where it is no refusal."""
        refusal = self.refusal_of(exc)
        if refusal.error.code not in _REFUSALS:
            raise exc
        return Rendered(refusal.error.code, refusal.model_dump())

    def _refused(self, refusal: Any) -> Rendered | Refusal:  # noqa: ANN401 - vLLM's ErrorResponse
        if refusal.error.code not in _REFUSALS:
            logger.error("a prompt could not be rendered: %s", refusal.error.message)
            return _failed(refusal.error.type)
        return Rendered(refusal.error.code, refusal.model_dump())
