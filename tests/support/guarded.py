"""A scripted vLLM with the real guard around it: for faults and races, never for a claim about an engine.

    python -m tests.support.guarded --port PORT --log FILE [--stock] [--abort-ms MS] [--ms MS]

It is a process of its own that can be killed and started again, or (`serving`) a server on the running loop. What a
generating request does is told by its own member ``x_script``, see `Script`.

Its engine writes down by itself, past the guard, when it begins and ends each piece of work, in the form that
`tests.support.intervals` reads. Like vLLM's it goes on for a while with a request whose client has left.
"""

import argparse
import asyncio
import json
import os
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import uvicorn

from app.asgi import App, Receive, Scope, Send
from app.engine.asgi import header, send_json
from app.engine.guard import GENERATING_PATHS, Guard
from app.engine.plugin import EXTENSION
from tests.support.running import start

MODEL = {"id": "m", "object": "model", "owned_by": "vllm", "root": "m", "max_model_len": 64}
WORKER = {"engine_version": "0.32.0", "torch_version": "2.13.0", "device": "cpu", "kv_split": "fixed"}


@dataclass(frozen=True)
class Script:
    """What one request asks of the engine.

    ``ms``: how long it takes, None for as long as its client stays; ``pieces``: the events of a stream, of which
    ``held`` come at the end of the work and the rest at its beginning; ``pad``: bytes in each.
    """

    id: str
    exclusive: bool = False
    ms: float | None = 0.0
    pieces: int = 2
    held: int = 1
    pad: int = 0

    @classmethod
    def of(cls, members: dict[str, Any], request_id: str, ms: float) -> "Script":
        """The script in a body; one that names no id has the request's, one that names no time takes ``ms``."""
        return cls(**{"id": request_id, "ms": ms, **(members.get("x_script") or {})})


@dataclass
class Watch:
    """Tells who waits for it that a request's work has begun, and when its server learned that the client had left."""

    begun: asyncio.Event = field(default_factory=asyncio.Event)
    left: asyncio.Event = field(default_factory=asyncio.Event)
    left_at: int = 0


@dataclass(eq=False)
class Execution:
    """One piece of the engine's work. ``peak``: the most that ran at once while it did."""

    key: str
    script: Script
    peak: int = 0
    over: asyncio.Event = field(default_factory=asyncio.Event)
    timer: asyncio.TimerHandle | None = None


class Engine:
    """Imitates vLLM's engine client, as far as the guard and its observer look at it.

    ``note`` takes the lines of the log; an abort takes ``abort_seconds``. ``phantoms`` are requests that it says it has
    beside those that run.
    """

    errored = False

    def __init__(self, note: Callable[[str], object], abort_seconds: float) -> None:
        self.phantoms = 0
        self.watches: dict[str, Watch] = {}
        self._note = note
        self._abort_seconds = abort_seconds
        self._running: dict[str, Execution] = {}
        self._numbers = count()

    def get_num_unfinished_requests(self) -> int:
        """As vLLM's."""
        return len(self._running) + self.phantoms

    async def collective_rpc(self, method: str, timeout: float | None = None) -> list[dict[str, Any]]:  # noqa: ARG002, ASYNC109 - vLLM's signature
        """As vLLM's: what the one worker tells of its posture."""
        return [WORKER]

    def watch(self, request: str) -> Watch:
        """Ask to be told of a request that has not been sent yet."""
        return self.watches.setdefault(request, Watch())

    def begin(self, script: Script) -> Execution:
        """Take up one piece of work."""
        execution = Execution(f"{os.getpid()}.{next(self._numbers)}", script)
        self._write("b", execution)
        self._running[execution.key] = execution
        for other in self._running.values():
            other.peak = max(other.peak, len(self._running))
        if script.ms == 0:
            self._end(execution, "e")
        elif script.ms is not None:
            execution.timer = asyncio.get_running_loop().call_later(script.ms / 1e3, self._end, execution, "e")
        if script.id in self.watches:
            self.watches[script.id].begun.set()
        return execution

    def abort(self, execution: Execution) -> None:
        """The client has left; the work goes on until the abort has arrived."""
        if execution.over.is_set():
            return
        self._write("c", execution)
        if execution.script.id in self.watches:
            watch = self.watches[execution.script.id]
            watch.left_at = time.monotonic_ns()
            watch.left.set()
        asyncio.get_running_loop().call_later(self._abort_seconds, self._end, execution, "a")

    def _end(self, execution: Execution, how: str) -> None:
        if execution.over.is_set():
            return
        if execution.timer is not None:
            execution.timer.cancel()
        del self._running[execution.key]
        self._write(how, execution)
        execution.over.set()

    def _write(self, kind: str, execution: Execution) -> None:
        admission = "x" if execution.script.exclusive else "s"
        self._note(f"{kind} {time.monotonic_ns()} {execution.key} {admission} {execution.script.id}\n")


class GuardedVllm:
    """The ASGI application; ``stock`` leaves the guard away, which reads its key and options from ``environ``."""

    def __init__(
        self,
        note: Callable[[str], object],
        *,
        stock: bool = False,
        abort_seconds: float = 0.005,
        ms: float = 0.0,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self._ms = ms
        self._steps = 0
        self.engine = Engine(note, abort_seconds)
        parallel = SimpleNamespace(_api_process_count=1, worker_extension_cls=EXTENSION)
        self.state = SimpleNamespace(
            args=SimpleNamespace(api_key=None),
            engine_client=self.engine,
            vllm_config=SimpleNamespace(parallel_config=parallel),
            openai_serving_chat=SimpleNamespace(system_fingerprint="vllm-0.32.0-12345678"),
        )
        self._outermost: App = self._answer if stock else Guard(self._answer, environ=environ)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI; like FastAPI it puts itself into the scope before any middleware runs."""
        await self._outermost({**scope, "app": self}, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        match scope["type"], scope.get("method"), scope.get("path"):
            case "lifespan", _, _:
                for phase in ("startup", "shutdown"):
                    await receive()
                    await send({"type": f"lifespan.{phase}.complete"})
            case "http", "POST", path if path in GENERATING_PATHS:
                await self._generate(scope, receive, send)
            case _, "GET", "/health":
                await send_json(send, 200, {})
            case _, "GET", "/version":
                await send_json(send, 200, {"version": "0.32.0"})
            case _, "GET", "/v1/models":
                await send_json(send, 200, {"object": "list", "data": [MODEL]})
            case _, "GET", "/metrics":
                await _begin(send, b"text/plain")
                await _write(send, self._metrics().encode(), more=False)
            case _:
                await send_json(send, 404, {"detail": "Not Found"})

    def _metrics(self) -> str:
        """What vLLM's metrics show of its batch; an engine that runs has made a step since anybody looked."""
        running = self.engine.get_num_unfinished_requests()
        self._steps += running > 0
        kinds = "# TYPE vllm:num_requests_running gauge\n# TYPE vllm:generation_tokens_total counter\n"
        return f"{kinds}vllm:num_requests_running {running}.0\nvllm:generation_tokens_total {self._steps}.0\n"

    async def _generate(self, scope: Scope, receive: Receive, send: Send) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body += message.get("body", b"")
            more = message.get("more_body", False)
        members = json.loads(body)
        script = Script.of(members, (header(scope, b"x-request-id") or b"unnamed").decode(), self._ms)
        execution = self.engine.begin(script)
        gone = start(_disconnected(receive))
        try:
            await (self._stream if members.get("stream") else self._unary)(execution, gone, send)
        finally:
            # Also where the guard or the server ends this handler: vLLM's generator aborts when it is closed.
            gone.cancel()
            self.engine.abort(execution)

    async def _unary(self, execution: Execution, gone: "asyncio.Task[None]", send: Send) -> None:
        if await _over(execution, gone):
            await send_json(send, 200, answer(_text(execution)))

    async def _stream(self, execution: Execution, gone: "asyncio.Task[None]", send: Send) -> None:
        script = execution.script
        await _begin(send, b"text/event-stream; charset=utf-8")
        for number in range(script.pieces):
            last = number == script.pieces - 1
            if number == script.pieces - script.held and not await _over(execution, gone):
                return
            text = _text(execution) if last else "." * script.pad
            await _write(send, b"data: " + json.dumps(delta(text, last=last)).encode() + b"\n\n", more=True)
            if gone.done():
                return
        await _write(send, b"data: [DONE]\n\n", more=False)


async def _over(execution: Execution, gone: "asyncio.Task[None]") -> bool:
    """Whether the work came to its end; False if the client left before."""
    if not execution.over.is_set():
        ending = start(execution.over.wait())
        try:
            await asyncio.wait((ending, gone), return_when=asyncio.FIRST_COMPLETED)
        finally:
            ending.cancel()
    return execution.over.is_set()


def _text(execution: Execution) -> str:
    """A second witness: who was promised to be alone can read here whether it was."""
    return "alone" if execution.peak == 1 else f"with {execution.peak - 1}"


def answer(text: str) -> dict[str, Any]:
    """A chat answer."""
    message = {"role": "assistant", "content": text}
    usage = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
    choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
    return {"id": "chatcmpl-1", "object": "chat.completion", "model": "m", "choices": choices, "usage": usage}


def delta(text: str, *, last: bool) -> dict[str, Any]:
    """One chunk of a streamed chat answer."""
    choices = [{"index": 0, "delta": {"content": text}, "finish_reason": "stop" if last else None}]
    return {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": choices}


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _begin(send: Send, kind: bytes) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", kind)]})


async def _write(send: Send, body: bytes, *, more: bool) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": more})


class _Server(uvicorn.Server):
    """A server that leaves the process's signals to whoever runs the loop."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture nothing."""
        yield


@dataclass(frozen=True)
class Serving:
    """A scripted upstream that listens."""

    vllm: GuardedVllm
    url: str
    server: uvicorn.Server

    @property
    def connections(self) -> int:
        """The sockets that clients hold open to it."""
        return len(self.server.server_state.connections)


def _config(vllm: GuardedVllm, port: int) -> uvicorn.Config:
    # Its logging is left to whoever runs the loop.
    return uvicorn.Config(
        vllm,
        port=port,
        http="httptools",
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=1,
    )


@asynccontextmanager
async def serving(vllm: GuardedVllm) -> AsyncIterator[Serving]:
    """Serve it on a free port of the running loop."""
    config = _config(vllm, 0)
    # The protocol is named because asyncio turns Nagle's delay off for sockets that know that they are TCP's.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    listener.listen(1024)
    server = _Server(config)
    task = start(server.serve(sockets=[listener]))
    try:
        yield Serving(vllm, f"http://127.0.0.1:{listener.getsockname()[1]}", server)
    finally:
        server.should_exit = True
        await task


def main() -> None:
    """Serve until a signal."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--stock", action="store_true")
    parser.add_argument("--abort-ms", type=float, default=5.0)
    parser.add_argument("--ms", type=float, default=0.0, help="how long requests without a script take")
    arguments = parser.parse_args()
    # One write per line, at once: a process that is killed has told everything up to then.
    log = os.open(arguments.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    vllm = GuardedVllm(
        lambda line: os.write(log, line.encode()),
        stock=arguments.stock,
        abort_seconds=arguments.abort_ms / 1e3,
        ms=arguments.ms,
    )
    uvicorn.Server(_config(vllm, arguments.port)).run()


if __name__ == "__main__":
    main()
