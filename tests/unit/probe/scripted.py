"""A server whose answers are scripted: an ASGI application that behaves as a gateway before a batching engine does."""

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import httpx
from anyio.lowlevel import checkpoint

from app.asgi import Receive, Scope, Send
from app.scheduling.gate import Gate
from app.scheduling.ticket import Admission

TURNS = 12
"""Turns of the event loop that a request takes, so that requests overlap without a clock."""

FORK = 5
"""Where the answer of a request that shared its batch leaves the answer of one that was alone."""

REFUSED = {"hardened": (503, "determinism_unavailable"), "verified": (400, "not_verifiable")}


@dataclass(frozen=True, slots=True)
class Seen:
    """One request as the server saw it. ``peak`` is the most requests that shared the engine with it."""

    path: str
    mode: str
    authorization: str | None
    body: dict[str, Any]
    peak: int
    background: bool


@dataclass
class Server:
    """Batch-dependent unless told otherwise. A request in a deterministic mode runs alone, the others share.

    ``broken`` decides per request (mode, whether it is background) the HTTP status of a failure, or None.
    """

    batch_dependent: bool = True
    token_ids: bool = True
    confirms: bool = True
    broken: Callable[[str, bool], int | None] = lambda _mode, _background: None
    models: tuple[int, Any] = (200, {"data": [{"id": "first"}, {"id": "second"}]})
    hold: Callable[[Seen], Awaitable[None]] | None = None
    seen: list[Seen] = field(default_factory=list)
    probed_at_once: int = 0
    background_at_once: int = 0
    _gate: Gate = field(default_factory=Gate)
    _probed: int = 0
    _background: int = 0

    @property
    def transport(self) -> httpx.ASGITransport:
        """The way to this server that needs no socket."""
        return httpx.ASGITransport(app=self)

    def probed(self, mode: str) -> list[Seen]:
        """The requests of a mode that were no background load."""
        return [seen for seen in self.seen if seen.mode == mode and not seen.background]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one HTTP request."""
        if scope["path"] == "/v1/models":
            status, document = self.models
            await _reply(send, status, document)
            return
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        message = await receive()
        body = json.loads(message["body"])
        mode = headers["x-determinism-mode"]
        background = "Note" in json.dumps(body)
        status, document, peak = await self._answer(scope["path"], headers, body, mode, background=background)
        facts = {"x-determinism-mode": mode, "x-determinism-coresident-peak": str(peak)} if self.confirms else {}
        await _reply(send, status, document, facts)

    async def _answer(
        self, path: str, headers: dict[str, str], body: dict[str, Any], mode: str, *, background: bool
    ) -> tuple[int, Any, int]:
        def saw(peak: int) -> Seen:
            self.seen.append(Seen(path, mode, headers.get("authorization"), body, peak, background))
            return self.seen[-1]

        if mode in REFUSED:
            saw(0)
            status, code = REFUSED[mode]
            return status, {"error": {"message": f"'{mode}' is not here.", "type": "server_error", "code": code}}, 0
        if (failure := self.broken(mode, background)) is not None:
            saw(0)
            return failure, {"error": {"message": "out of order", "type": "server_error", "code": "internal"}}, 0
        admission = Admission.EXCLUSIVE if mode == "isolated" else Admission.SHARED
        with _Counted(self, background=background):
            async with self._gate.lease(admission) as ticket:
                for _ in range(TURNS):
                    await checkpoint()
            seen = saw(ticket.peak)
            if self.hold is not None:
                await self.hold(seen)
        shared = self.batch_dependent and ticket.peak > 1
        return 200, completion(path, body, shared=shared, token_ids=self.token_ids), ticket.peak


class _Counted:
    """Counts what is in flight at once."""

    def __init__(self, server: Server, *, background: bool) -> None:
        self._server = server
        self._background = background

    def __enter__(self) -> None:
        self._add(1)

    def __exit__(self, *_: object) -> None:
        self._add(-1)

    def _add(self, one: int) -> None:
        server = self._server
        if self._background:
            server._background += one
            server.background_at_once = max(server.background_at_once, server._background)
        else:
            server._probed += one
            server.probed_at_once = max(server.probed_at_once, server._probed)


def completion(path: str, body: dict[str, Any], *, shared: bool, token_ids: bool = True) -> dict[str, Any]:
    """An answer in OpenAI's shape; what is shared in a list of prompts changes the last choice alone."""
    chat = path == "/v1/chat/completions"
    count = 1 if chat or isinstance(body["prompt"], str) else len(body["prompt"])
    choices: list[dict[str, Any]] = []
    for index in range(count):
        ids = [100 * index + place for place in range(body["max_tokens"])]
        if shared and index == count - 1:
            ids[FORK:] = [7000 + place for place in range(len(ids) - FORK)]
        text = " ".join(map(str, ids))
        content = {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
        choices.append(
            {"index": index, "finish_reason": "length", **content, **({"token_ids": ids} if token_ids else {})}
        )
    return {"choices": choices, "usage": {"completion_tokens": count * body["max_tokens"]}}


async def _reply(send: Send, status: int, document: object, headers: dict[str, str] | None = None) -> None:
    named = {"content-type": "application/json", **(headers or {})}
    raw = [(name.encode(), value.encode()) for name, value in named.items()]
    await send({"type": "http.response.start", "status": status, "headers": raw})
    await send({"type": "http.response.body", "body": json.dumps(document).encode(), "more_body": False})
