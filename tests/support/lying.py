"""A replica that lies: a real vLLM behind it answers, and some tokens of every draft are replaced at random.

    python -m tests.support.lying ENGINE_URL SHARE VOCABULARY PORT

Everything else, passes included, goes through as it is. It listens on the loopback address.
"""

import json
import sys
from dataclasses import dataclass, field
from random import Random

import anyio
import httpx
import uvicorn

from app.asgi import Receive, Scope, Send

_HOP_BY_HOP = {"connection", "content-length", "host", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade"}
_PATIENCE = 900.0


@dataclass
class Lying:
    """An ASGI application before the engine at ``url``. Of the tokens of a draft, ``share`` are wrong."""

    url: str
    share: float
    vocabulary: int
    _random: Random = field(default_factory=lambda: Random(0))  # noqa: S311 - a script, no secret

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass one request on, and its answer back."""
        if scope["type"] != "http":
            return
        body, more = b"", True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        async with anyio.create_task_group() as group:
            group.start_soon(self._leaving, receive, group.cancel_scope)
            await self._relay(scope, body, send)
            group.cancel_scope.cancel()

    @staticmethod
    async def _leaving(receive: Receive, scope: anyio.CancelScope) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        scope.cancel()

    async def _relay(self, scope: Scope, body: bytes, send: Send) -> None:
        headers = [(name, value) for name, value in scope["headers"] if name.decode() not in _HOP_BY_HOP]
        target = scope["raw_path"].decode() + ("?" + scope["query_string"].decode() if scope["query_string"] else "")
        async with httpx.AsyncClient(base_url=self.url, timeout=_PATIENCE, trust_env=False) as client:
            answer = await client.request(scope["method"], target, content=body, headers=headers)
        content = answer.content
        draft = scope["path"] == "/v1/completions" and b'"return_token_ids":true' in body
        if draft and answer.status_code == httpx.codes.OK:
            content = self._lie(content)
        kept = [(name, value) for name, value in answer.headers.raw if name.decode().lower() not in _HOP_BY_HOP]
        kept = [*kept, (b"content-length", b"%d" % len(content))]
        await send({"type": "http.response.start", "status": answer.status_code, "headers": kept})
        await send({"type": "http.response.body", "body": content})

    def _lie(self, content: bytes) -> bytes:
        said = json.loads(content)
        for choice in said["choices"]:
            for index in range(len(choice["token_ids"] or ())):
                if self._random.random() < self.share:
                    choice["token_ids"][index] = self._random.randrange(self.vocabulary)
        return json.dumps(said).encode()


if __name__ == "__main__":
    url, share, vocabulary, port = sys.argv[1:]
    uvicorn.run(
        Lying(url, float(share), int(vocabulary)),
        host="127.0.0.1",
        port=int(port),
        log_level="warning",
        lifespan="off",
    )
