"""A server for tests of the diagnosis: the scripted engine behind a door that may refuse, hold and change what it says.

Nothing here waits for a real clock: an answer moves the engine's.
"""

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import anyio
import httpx
from anyio.lowlevel import checkpoint

from tests.support.layered import FIRST, LayeredEngine
from tests.unit.probe.virtual import VirtualGateway, VirtualTime

URL: Final = FIRST
LIMITED: Final = 429

_MOST: Final = 5000
"""Requests; whoever sends more asks forever."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A request for an answer, as the server saw it."""

    host: str
    path: str
    headers: Mapping[str, str]
    body: dict[str, Any]

    @property
    def isolated(self) -> bool:
        """Whether a gateway is asked to run it alone."""
        return self.headers.get("x-determinism-mitigations") == "batch_isolation"

    @property
    def prompts(self) -> list[Any]:
        """Each of its prompts: token ids or a text."""
        if "messages" in self.body:
            return [self.body["messages"][0]["content"]]
        prompt = self.body["prompt"]
        return prompt if isinstance(prompt, list) and not isinstance(prompt[0], int) else [prompt]

    @property
    def streamed(self) -> bool:
        """Whether it is a neighbour's, who is being answered while another joins."""
        return bool(self.body.get("stream"))


Refuse = Callable[[int, Asked], httpx.Response | None]
"""The answer to the request of that number (from 1) where it is refused; None lets it in. May raise as httpx does."""


@dataclass
class Server:
    """The engine behind a door; ``asked`` holds what came to it.

    ``refuse`` is asked first and ``hold`` then waited for; ``change`` edits an answer's document and ``headers`` are
    what the answer says beside it.
    """

    engine: LayeredEngine = field(default_factory=lambda: LayeredEngine(frozenset(), 0))
    refuse: Refuse = lambda _number, _asked: None
    hold: Callable[[int, Asked], Awaitable[None]] | None = None
    change: Callable[[Asked, dict[str, Any]], None] = lambda _asked, _document: None
    headers: Callable[[Asked], Mapping[str, str]] = lambda _asked: {}
    models: tuple[int, Any] | None = None
    asked: list[Asked] = field(default_factory=list)

    @property
    def transport(self) -> httpx.MockTransport:
        """The network that it is on."""
        return httpx.MockTransport(self.handle)

    def clock(self) -> float:
        """Its virtual seconds."""
        return self.engine.now

    async def handle(self, request: httpx.Request) -> httpx.Response:
        """One request."""
        if request.method == "GET":
            if self.models is None:
                return await self.engine.handle(request)
            return httpx.Response(self.models[0], json=self.models[1])
        asked = Asked(request.url.host, request.url.path, dict(request.headers), json.loads(request.content))
        self.asked.append(asked)
        number = len(self.asked)
        assert number <= _MOST
        if (refusal := self.refuse(number, asked)) is not None:
            return refusal
        if self.hold is not None:
            await self.hold(number, asked)
        response = await self.engine.handle(_in_ids(request, asked))
        if asked.streamed:
            return response
        document = json.loads(response.content)
        self.change(asked, document)
        return httpx.Response(200, json=document, headers=dict(self.headers(asked)))


def refusal(status: int, message: str, code: str | None = None) -> httpx.Response:
    """An error in OpenAI's shape."""
    return httpx.Response(status, json={"error": {"message": message, "code": code}})


def without_ids(_asked: Asked, document: dict[str, Any]) -> None:
    """A server that tells no token ids, neither of prompts nor of answers."""
    for choice in document["choices"]:
        choice.pop("prompt_token_ids")
        choice.pop("token_ids")


def without_logprobs(_asked: Asked, document: dict[str, Any]) -> None:
    """A server that leaves logprobs out without a word."""
    for choice in document["choices"]:
        choice["logprobs"] = None


@dataclass
class Modes(VirtualGateway):
    """A gateway's modes under load, in virtual time.

    Modes in ``refused`` are answered with that status and code; those in ``forks`` answer so many requests, and from
    then on with another text; those in ``stops`` answer so many, and then are silent.
    """

    refused: Mapping[str, tuple[int, str]] = field(default_factory=dict)
    forks: Mapping[str, int] = field(default_factory=dict)
    stops: Mapping[str, int] = field(default_factory=dict)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Answer."""
        await checkpoint()
        if request.method == "GET":
            return await super().handle_async_request(request)
        mode = request.headers["x-determinism-mode"]
        if mode in self.refused:
            status, code = self.refused[mode]
            return refusal(status, f"{mode} is not offered", code)
        before = sum(asked.mode == mode for asked in self.asked)
        if mode in self.stops and before >= self.stops[mode]:
            await anyio.sleep_forever()
        response = await super().handle_async_request(request)
        if mode in self.forks and before >= self.forks[mode] and not response.is_error:
            document = json.loads(response.content)
            document["choices"][0]["message"]["content"] = "otherwise"
            return httpx.Response(200, json=document, headers=_facts(response))
        return response


@dataclass
class Gateway(httpx.AsyncBaseTransport):
    """One of ours: the engine answers what the ladder asks, and the modes what is asked under load, on one clock."""

    time: VirtualTime
    server: Server
    modes: Modes

    @classmethod
    def of(cls, time: VirtualTime, server: Server, **modes: Any) -> "Gateway":
        """With the word of a gateway on every answer of the engine's."""
        server.headers = lambda asked: {
            "x-determinism-mode": "custom" if asked.isolated else "standard",
            "x-determinism-replica": "one",
            "x-determinism-posture": "p-1",
            "x-determinism-coresident-peak": "1",
        }
        return cls(time, server, Modes(time, **modes))

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Whoever asks with a salt is the ladder."""
        await checkpoint()
        if request.method == "GET" or b'"cache_salt"' in request.content:
            before = self.server.engine.now
            response = await self.server.handle(request)
            await self.time.sleep(self.server.engine.now - before)
            return response
        return await self.modes.handle_async_request(request)


class Piece(httpx.AsyncByteStream):
    """A body that is these pieces."""

    def __init__(self, *pieces: bytes) -> None:
        self._pieces = pieces

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self._pieces:
            yield piece


def _facts(response: httpx.Response) -> dict[str, str]:
    return {name: value for name, value in response.headers.items() if name.startswith("x-")}


def _in_ids(request: httpx.Request, asked: Asked) -> httpx.Request:
    """The engine knows several prompts as token ids only."""
    prompts = asked.body.get("prompt")
    if not isinstance(prompts, list) or not isinstance(prompts[0], str):
        return request
    ids = [[1 + sum(map(ord, word)) for word in prompt.split()] for prompt in prompts]
    return httpx.Request("POST", request.url, json={**asked.body, "prompt": ids})
