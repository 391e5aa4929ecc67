"""A scripted upstream over real sockets: for faults and races, never for a claim about an engine.

It speaks vLLM's paths. What a generating request does is told by its own member ``x_script``: ``{"do": ACTION, ...}``
with the actions listed in `ScriptedVllm._act`. It answers differently when requests overlap, and it keeps a log of
what it received and of which requests overlapped.
"""

import asyncio
import json
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from app.determinism.mode import Mitigation

_BROKEN = {
    "garbage": b"NONSENSE\r\n\r\n",
    "short": b'HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 500\r\n\r\n{"id":',
    "close": b"",
}

USAGE = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}


@dataclass
class Received:
    """One generating request as it came in, and what became of it."""

    path: str
    headers: dict[str, str]
    body: bytes
    peak: int = 0
    closed_by_client: asyncio.Event = field(default_factory=asyncio.Event)


class ScriptedVllm:
    """The server. ``release`` lets requests that hold go on; ``posture`` set makes it look guarded."""

    def __init__(self) -> None:
        self.received: list[Received] = []
        self.running: list[Received] = []
        self.arrived = asyncio.Condition()
        self.release = asyncio.Event()
        self.healthy = True
        self.models: list[dict[str, Any]] = [
            {
                "id": "m",
                "object": "model",
                "owned_by": "vllm",
                "root": "m",
                "max_model_len": 64,
                "x_extra": {"kept": 1.5},
            }
        ]
        self.guard_answer: tuple[int, dict[str, Any]] | None = None
        self.probe_headers: dict[str, str] = {}
        self.waiting_elsewhere = 0
        self.word: dict[str, str] | None = None
        self.connections = 0
        self.listener: asyncio.Server | None = None
        self.url = ""

    @asynccontextmanager
    async def serve(self) -> AsyncIterator["ScriptedVllm"]:
        """Listen on a free loopback port."""
        server = self.listener = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=2**26)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield self
        finally:
            self.release.set()
            server.close()

    async def until(self, count: int) -> Received:
        """Wait until ``count`` generating requests have come; the last of them is returned."""
        async with self.arrived:
            await self.arrived.wait_for(lambda: len(self.received) >= count)
        return self.received[count - 1]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
                method, path, _ = head[0].split(" ", 2)
                headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in head[1:] if line)}
                body = await reader.readexactly(int(headers.get("content-length", "0")))
                if method == "POST":
                    await self._generate(Received(path, headers, body), reader, writer)
                else:
                    self._control(path, headers, writer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.connections -= 1
            writer.close()

    def _control(self, path: str, headers: dict[str, str], writer: asyncio.StreamWriter) -> None:
        running = len(self.running) + self.waiting_elsewhere
        match path:
            case "/health":
                _unary(writer, b"", 200 if self.healthy else 503)
            case "/version":
                _json(writer, {"version": "0.32.0"})
            case "/v1/models":
                _json(writer, {"object": "list", "data": self.models})
            case "/metrics":
                text = f"# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running {running}.0\n"
                _unary(writer, text.encode(), kind="text/plain")
            case _ if path.startswith("/reprise/admissions?request=") and self.guard_answer is not None:
                _json(writer, self._admissions(path.rpartition("=")[2]))
            case "/reprise/posture" if self.guard_answer is not None:
                self.probe_headers = headers
                _json(writer, self.guard_answer[1], self.guard_answer[0])
            case _:
                _json(writer, {"detail": "Not Found"}, 404)

    async def _generate(self, request: Received, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with self.arrived:
            self.received.append(request)
            self.running.append(request)
            for other in self.running:
                other.peak = max(other.peak, len(self.running))
            self.arrived.notify_all()
        work = asyncio.get_running_loop().create_task(self._act(request, writer))
        gone = asyncio.get_running_loop().create_task(reader.read(1))
        try:
            await asyncio.wait((work, gone), return_when=asyncio.FIRST_COMPLETED)
            if gone.done():
                request.closed_by_client.set()
                raise ConnectionResetError
            work.result()
        finally:
            self.running.remove(request)
            for task in (work, gone):
                task.cancel()
                with suppress(asyncio.CancelledError, ConnectionError):
                    await task

    async def _act(self, request: Received, writer: asyncio.StreamWriter) -> None:
        members = json.loads(request.body)
        script = members.get("x_script") or {}
        text = script.get("text", "alone" if request.peak == 1 else f"with {request.peak - 1}")
        if script.get("hold"):
            await self.release.wait()
        match script.get("do", "answer"):
            case "answer" if members.get("stream"):
                _head(writer, "text/event-stream; charset=utf-8", self._words(request))
                for event in stream_events(text):
                    _chunk(writer, event)
                    await writer.drain()
                writer.write(b"0\r\n\r\n")
            case "answer":
                word = self._words(request)
                _unary(writer, script.get("raw", unary_body(text)).encode(), script.get("status", 200), word=word)
            case "reset":
                _reset(writer)
            case "silent":
                await asyncio.Event().wait()
            case "flood":
                _head(writer, "text/event-stream; charset=utf-8", self._words(request))
                while True:
                    _chunk(writer, b"data: " + b"x" * 2**16 + b"\n\n")
                    await writer.drain()
            case "stream":
                await self._broken_stream(request, script, text, writer)
            case raw:
                # The head of an answer that ends too early, or none at all.
                writer.write(_BROKEN[raw])
                await writer.drain()
                writer.close()
                raise ConnectionResetError

    def _admissions(self, request_id: str) -> dict[str, Any]:
        """A guard's interval log, with made-up times."""
        rows = [
            {"sequence": number, "request": request_id, "asked_us": 1, "granted_us": 2, "started_us": 3, "ended_us": 4}
            | {"admission": request.headers["x-determinism-admission"], "peak": request.peak, "epoch": "e-1"}
            for number, request in enumerate(self.received, 1)
            if request.headers.get("x-request-id") == request_id
        ]
        return {"epoch": "e-1", "started": "2026-01-01T00:00:00+00:00", "kept": 9, "next": 9, "admissions": rows}

    def _words(self, request: Received) -> dict[str, str]:
        """What a guard would add to its answer, unless the test says otherwise."""
        if self.word is not None:
            return self.word
        if self.guard_answer is None or "x-determinism-guard-key" not in request.headers:
            return {}
        digest = str(self.guard_answer[1].get("digest"))
        return {"x-determinism-coresident-peak": str(request.peak), "x-determinism-posture": digest}

    async def _broken_stream(
        self, request: Received, script: dict[str, Any], text: str, writer: asyncio.StreamWriter
    ) -> None:
        """The first ``events`` events of a stream, then what ``then`` says."""
        _head(writer, "text/event-stream; charset=utf-8", self._words(request))
        for event in stream_events(text)[: script["events"]]:
            _chunk(writer, event)
            await writer.drain()
        match script["then"]:
            case "reset":
                _reset(writer)
            case "close":
                writer.close()
                raise ConnectionResetError
            case "end":
                writer.write(b"0\r\n\r\n")
            case "half":
                writer.write(b"40\r\ndata: {")
                await writer.drain()
                writer.close()
                raise ConnectionResetError
            case "silent":
                await asyncio.Event().wait()


def guarded(
    upstream: ScriptedVllm,
    *,
    digest: str = "p-1",
    gate: dict[str, Any] | None = None,
    max_logprobs: int | None = 20,
    **held: bool,
) -> None:
    """Let the upstream look as if the guard ran in it and held every mitigation but those that are said not to be."""
    provides = {
        mitigation.value: {"held": held.get(mitigation.value, True), "reason": f"{mitigation} is off"}
        for mitigation in Mitigation
    }
    posture = {"engine_version": "0.32.0"}
    page = {"posture": posture, "digest": digest, "provides": provides, "gate": gate or {}}
    upstream.guard_answer = (200, page | {"max_logprobs": max_logprobs})


def stream_events(text: str) -> list[bytes]:
    """The events of a streamed chat answer of two deltas."""
    base = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    half = len(text) // 2
    deltas: list[tuple[dict[str, str], str | None]] = [
        ({"role": "assistant", "content": ""}, None),
        ({"content": text[:half]}, None),
        ({"content": text[half:]}, "stop"),
    ]
    chunks = [{**base, "choices": [{"index": 0, "delta": delta, "finish_reason": end}]} for delta, end in deltas]
    return [b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks] + [b"data: [DONE]\n\n"]


def unary_body(text: str) -> str:
    """A chat answer."""
    message = {"role": "assistant", "content": text}
    choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
    return json.dumps(
        {"id": "chatcmpl-1", "object": "chat.completion", "model": "m", "choices": choices, "usage": USAGE}
    )


def _head(writer: asyncio.StreamWriter, kind: str, word: dict[str, str]) -> None:
    lines = "".join(f"{name}: {value}\r\n" for name, value in word.items())
    writer.write(f"HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ntransfer-encoding: chunked\r\n{lines}\r\n".encode())


def _chunk(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(b"%x\r\n%b\r\n" % (len(data), data))


def _json(writer: asyncio.StreamWriter, value: object, status: int = 200) -> None:
    _unary(writer, json.dumps(value).encode(), status)


def _unary(
    writer: asyncio.StreamWriter,
    body: bytes,
    status: int = 200,
    kind: str = "application/json",
    word: dict[str, str] | None = None,
) -> None:
    lines = "".join(f"{name}: {value}\r\n" for name, value in (word or {}).items())
    head = (
        f"HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\nretry-after: 7\r\n{lines}\r\n"
    )
    writer.write(head.encode() + body)


def _reset(writer: asyncio.StreamWriter) -> None:
    """Close with RST, as a crashed server's kernel does."""
    connection = writer.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
    raise ConnectionResetError
