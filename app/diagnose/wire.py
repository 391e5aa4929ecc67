"""The server that is diagnosed, as far as the ladder needs it: several prompts in one request, and what came back.

httpx carries it, as it carries the probe: nothing of it is cancelled but when the whole run is, or when neighbours
have done their work.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any, Final, cast

import anyio
import httpx
import orjson

from app.determinism.output import CHAT_PATH, TEXT_PATH, Choice
from app.determinism.plan import MITIGATIONS_HEADER, MODE_HEADER
from app.determinism.reading import read_unary
from app.probe.answer import error_of, whole_of
from app.probe.server import Clock, reason_of

Prompt = tuple[int, ...] | str
"""Token ids, or a text where the server does not tell ids."""

TOP_LOGPROBS: Final = 2
"""Enough for a margin."""

_OK, _LIMITED = 200, 429


class Trouble(Exception):
    """A request came back without a usable answer; the message is the reason, in one line. ``code`` is OpenAI's."""

    def __init__(self, reason: str, status: int | None = None, code: str | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.status = status
        self.code = code


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer to all prompts of one request, with the server's word on it (None where it said nothing)."""

    choices: tuple[Choice, ...]
    prompt_ids: tuple[tuple[int, ...] | None, ...]
    seconds: float
    mode: str | None = None
    peak: int | None = None
    cached: int | None = None
    replica: str | None = None
    posture: str | None = None
    """The digest of the posture: the gateway's header, else the engine's ``system_fingerprint``."""


@dataclass(frozen=True, slots=True)
class Asking:
    """How every request is sent: what the server turned out to take. Frozen; a changed one is a new one."""

    model: str
    temperature: float = 0.0
    seed: int | None = None
    logprobs: bool = True
    isolated: bool = True
    """Ask a gateway to run a request alone. Any other server ignores the header."""


class Wire:
    """Sends requests of one `Asking` to one server. ``timeout`` (seconds) covers one whole answer."""

    def __init__(self, client: httpx.AsyncClient, asking: Asking, timeout: float, clock: Clock) -> None:
        self._client = client
        self._timeout = timeout
        self._clock = clock
        self.asking = asking

    async def chat(self, text: str, tokens: int, salt: str) -> Reply:
        """One answer to a chat message, asked alone. Raises Trouble."""
        logprobs = {"logprobs": True, "top_logprobs": TOP_LOGPROBS} if self.asking.logprobs else {}
        body = {"messages": [{"role": "user", "content": text}], **logprobs, **self._body(tokens, salt)}
        return await self._send(CHAT_PATH, body, 1, isolated=True)

    async def complete(
        self, prompts: Sequence[Prompt], tokens: int, salt: str, *, isolated: bool = True, seeded: bool = True
    ) -> Reply:
        """One answer to each prompt, all in one request and so in one batch. Raises Trouble."""
        one = len(prompts) == 1
        prompt = _plain(prompts[0]) if one else [_plain(prompt) for prompt in prompts]
        body = {"prompt": prompt, **self._logprobs(), **self._body(tokens, salt, seeded=seeded)}
        return await self._send(TEXT_PATH, body, len(prompts), isolated=isolated)

    @asynccontextmanager
    async def running(self, prompts: Sequence[Prompt], tokens: int, salt: str) -> AsyncIterator[None]:
        """Have so many requests being answered for the length of the block. Raises Trouble.

        They begin one after the other, each when the one before has its first token, so that the order in which they
        joined the batch is the same each time. The block must end before any of them has its last token.
        """
        async with AsyncExitStack() as stack:
            for place, prompt in enumerate(prompts):
                body = {"prompt": _plain(prompt), "stream": True, **self._body(tokens, f"{salt}-{place}")}
                with self._bounded():
                    stream = self._client.stream("POST", TEXT_PATH, **self._sent(body))
                    pieces = await _begun(await stack.enter_async_context(stream))
                # An iterator that nobody holds is closed, and its connection with it: the neighbour would be gone.
                stack.push_async_callback(pieces.aclose)
            yield

    async def _send(self, path: str, body: Mapping[str, Any], choices: int, *, isolated: bool) -> Reply:
        started = self._clock()
        with self._bounded():
            response = await self._client.post(path, **self._sent(body, isolated=isolated))
        seconds = self._clock() - started
        if response.status_code != _OK:
            raise _trouble(response.status_code, response.content)
        return _reply(path, response, choices, seconds)

    @contextmanager
    def _bounded(self) -> Iterator[None]:
        """The patience of one answer; what goes wrong in it becomes Trouble."""
        try:
            with anyio.fail_after(self._timeout):
                yield
        except TimeoutError as exc:
            raise Trouble(f"no answer within {self._timeout:g} s") from exc
        except httpx.HTTPError as exc:
            raise Trouble(reason_of(exc)) from exc

    def _sent(self, body: Mapping[str, Any], *, isolated: bool = False) -> dict[str, Any]:
        headers = {"content-type": "application/json"}
        if isolated and self.asking.isolated:
            headers[MITIGATIONS_HEADER] = "batch_isolation"
        else:
            headers[MODE_HEADER] = "standard"
        return {"content": orjson.dumps({"model": self.asking.model, **body}), "headers": headers}

    def _body(self, tokens: int, salt: str, *, seeded: bool = True) -> dict[str, Any]:
        seed = {"seed": self.asking.seed} if seeded and self.asking.seed is not None else {}
        return {
            "max_tokens": tokens,
            "temperature": self.asking.temperature,
            "ignore_eos": True,
            "return_token_ids": True,
            "cache_salt": salt,
            **seed,
        }

    def _logprobs(self) -> dict[str, Any]:
        return {"logprobs": TOP_LOGPROBS} if self.asking.logprobs else {}


async def _begun(response: httpx.Response) -> AsyncGenerator[bytes, None]:
    """The rest of a stream that has brought its first piece."""
    if response.status_code != _OK:
        raise _trouble(response.status_code, await response.aread())
    pieces = cast("AsyncGenerator[bytes, None]", response.aiter_raw())
    if not await anext(pieces, b""):
        raise Trouble("a neighbour's stream held nothing")
    return pieces


def _plain(prompt: Prompt) -> str | list[int]:
    return prompt if isinstance(prompt, str) else list(prompt)


def _reply(path: str, response: httpx.Response, choices: int, seconds: float) -> Reply:
    output = read_unary(path, response.content)
    if output is None or len(output.choices) != choices:
        raise Trouble(f"the answer is not {choices} choice(s) in OpenAI's shape")
    if not output.complete:
        raise Trouble("the answer was cut short")
    document = orjson.loads(response.content)
    headers = response.headers
    posture = headers.get("x-determinism-posture") or document.get("system_fingerprint")
    return Reply(
        choices=output.choices,
        prompt_ids=_prompt_ids(document),
        seconds=seconds,
        mode=headers.get(MODE_HEADER),
        peak=whole_of(headers.get("x-determinism-coresident-peak")),
        cached=output.cached_tokens,
        replica=headers.get("x-determinism-replica"),
        posture=posture if isinstance(posture, str) else None,
    )


def _prompt_ids(document: Mapping[str, Any]) -> tuple[tuple[int, ...] | None, ...]:
    """Where vLLM puts them: in each choice of a completion, beside the choices of a chat."""
    whole = document.get("prompt_token_ids")
    ids = [choice.get("prompt_token_ids", whole) for choice in document["choices"]]
    return tuple(tuple(each) if isinstance(each, list) else None for each in ids)


def _trouble(status: int, body: bytes) -> Trouble:
    code, message = error_of(body)
    limited = "rate limited, " if status == _LIMITED else ""
    return Trouble(f"{limited}HTTP {status}: {message}", status, code)
