"""Stand-ins for what surrounds the guard: vLLM's server, its engine client, and a client on the wire."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from types import SimpleNamespace
from typing import Any

import anyio

from app.asgi import App, Message
from app.engine.guard import Guard
from app.engine.options import GuardOptions
from app.engine.plugin import EXTENSION

KEY = "the-guard-key"
EXCLUSIVE = {"x-determinism-admission": "exclusive", "x-determinism-guard-key": KEY}
SHARED = {"x-determinism-admission": "shared", "x-determinism-guard-key": KEY}
DISCONNECT: Message = {"type": "http.disconnect"}


async def quiet() -> None:
    """Wait until every task waits for something that this test controls."""
    for _ in range(4):
        # A task that ends wakes its waiters by a callback; until that has run, they all look blocked.
        await anyio.wait_all_tasks_blocked()
        await anyio.lowlevel.checkpoint()


def body(data: bytes, *, more: bool = False) -> Message:
    """A part of a request's body."""
    return {"type": "http.request", "body": data, "more_body": more}


class FakeEngine:
    """vLLM's engine client: a number of unfinished requests, and workers that answer or raise."""

    def __init__(self, workers: list[dict[str, Any]] | None = None) -> None:
        self.unfinished = 0
        self.errored = False
        self.workers = workers
        self.calls: list[str] = []

    def get_num_unfinished_requests(self) -> int:
        """As vLLM's."""
        return self.unfinished

    async def collective_rpc(self, method: str, timeout: float | None = None) -> list[dict[str, Any]]:  # noqa: ASYNC109 - vLLM's signature
        """As vLLM's: every worker's answer to ``method``."""
        assert timeout is not None
        self.calls.append(method)
        if self.workers is None:
            raise RuntimeError("the worker has no such method")
        return self.workers


class FakeServer:
    """vLLM's application below the guard: reads a body, then computes until it is told to finish."""

    def __init__(self) -> None:
        self.started: list[Call] = []
        self.bodies: list[bytes] = []
        self.scopes: list[MutableMapping[str, Any]] = []
        self.work: Callable[[Any, Any, Any], Awaitable[None]] | None = None

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        """ASGI."""
        self.scopes.append(scope)
        if scope["type"] == "lifespan":
            await send({"type": "lifespan.startup.complete"})
            await receive()
            return
        call: Call | None = scope.get("call")
        if call is None:
            await send({"type": "http.response.start", "status": 204, "headers": []})
            return
        self.started.append(call)
        if self.work is not None:
            await self.work(scope, receive, send)
            return
        if scope["type"] == "http":
            self.bodies.append(await read(receive))
        await call.finish.wait()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]})
        await send({"type": "http.response.body", "body": b"{}", "more_body": False})


async def read(receive: Callable[[], Awaitable[Message]]) -> bytes:
    """A whole request body."""
    data = bytearray()
    while True:
        message = await receive()
        data += message["body"]
        if not message["more_body"]:
            return bytes(data)


class Call:
    """One request of one client, and what came back for it."""

    def __init__(self, replica: "Replica", path: str, headers: Mapping[str, str], method: str, kind: str) -> None:
        self.finish = asyncio.Event()
        self.sent: list[Message] = []
        self.takes: int | None = None
        self.wire: asyncio.Queue[Message] = asyncio.Queue()
        self.scope: dict[str, Any] = {
            "type": kind,
            "method": method,
            "path": path,
            "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
            "app": SimpleNamespace(state=replica.state),
            "call": self,
        }

    async def keep(self, message: Message) -> None:
        """ASGI's send; of the messages the client takes as many as ``takes`` says, None being all."""
        if len(self.sent) == self.takes:
            await asyncio.Event().wait()
        self.sent.append(message)

    @property
    def status(self) -> int | None:
        """The status of the answer; None while there is none."""
        return next((message["status"] for message in self.sent if message["type"] == "http.response.start"), None)

    @property
    def headers(self) -> dict[str, str]:
        """The headers of the answer."""
        start = next(message for message in self.sent if message["type"] == "http.response.start")
        return {name.decode(): value.decode() for name, value in start["headers"]}

    @property
    def content(self) -> bytes:
        """The body of the answer."""
        return b"".join(message["body"] for message in self.sent if message["type"] == "http.response.body")


class Replica:
    """A guard over a fake server, with one way to call it."""

    def __init__(
        self,
        environ: Mapping[str, str] | None = None,
        engine: FakeEngine | None = None,
        **options: Any,
    ) -> None:
        self.engine = engine or FakeEngine([{}])
        self.server = FakeServer()
        self.parallel = SimpleNamespace(_api_process_count=1)
        self.state = SimpleNamespace(
            args=SimpleNamespace(api_key=None),
            engine_client=self.engine,
            vllm_config=SimpleNamespace(parallel_config=self.parallel),
        )
        self.app: App = Guard(
            self.server,
            environ={"REPRISE_GUARD_KEY": KEY} if environ is None else environ,
            options=GuardOptions(**{"drain_deadline": 5.0, **options}),
        )

    def one_sequence_at_a_time(self) -> None:
        """As launched with ``--max-num-seqs 1``."""
        self.state.vllm_config.scheduler_config = SimpleNamespace(max_num_seqs=1)

    async def ask(self, path: str, headers: Mapping[str, str]) -> tuple[int | None, Any]:
        """GET a page of the guard: its status and content."""
        path, _, query = path.partition("?")
        call = self.call(headers, path, method="GET")
        call.scope["query_string"] = query.encode()
        await self.serve(call)
        return call.status, json.loads(call.content)

    def call(
        self,
        headers: Mapping[str, str],
        path: str = "/v1/completions",
        *,
        method: str = "POST",
        kind: str = "http",
        data: bytes | None = b"{}",
    ) -> Call:
        """A request that is ready to be sent; its body is on the wire unless ``data`` is None."""
        call = Call(self, path, headers, method, kind)
        if data is not None:
            call.wire.put_nowait(body(data))
        return call

    async def serve(self, call: Call) -> None:
        """Let the guard handle it to its end."""
        await self.app(call.scope, call.wire.get, call.keep)


class Started:
    """A replica whose server has started; ask it for its posture."""

    def __init__(self, engine: FakeEngine, environ: dict[str, str] | None = None) -> None:
        self.replica = Replica(environ, engine)
        self.serving = SimpleNamespace(system_fingerprint="vllm-0.32.0-12345678")
        self.replica.state.openai_serving_chat = self.serving
        self.replica.state.vllm_config = SimpleNamespace(
            parallel_config=SimpleNamespace(_api_process_count=1, worker_extension_cls=EXTENSION),
            model_config=SimpleNamespace(enforce_eager=True),
        )

    async def posture(self, headers: dict[str, str] = SHARED) -> Call:
        """GET /reprise/posture."""
        call = self.replica.call(headers, "/reprise/posture", method="GET")
        await self.replica.serve(call)
        return call

    async def run(self, test: Any) -> None:
        """Run ``test`` between the server's start and its end."""
        lifespan = self.replica.call({}, kind="lifespan", data=None)
        async with anyio.create_task_group() as group:
            group.start_soon(self.replica.serve, lifespan)
            await quiet()
            await test(self)
            lifespan.wire.put_nowait({"type": "lifespan.shutdown"})
        assert lifespan.sent == [{"type": "lifespan.startup.complete"}]


async def observed(started: Started) -> dict[str, Any]:
    """The posture page once it is there; the file digests are made in a thread."""
    with anyio.fail_after(5):
        while (page := await started.posture()).status == 503:
            await quiet()
    answer: dict[str, Any] = json.loads(page.content)
    return answer
