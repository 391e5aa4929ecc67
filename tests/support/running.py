"""A gateway on a loopback port, and a client that sees bytes, not an HTTP library's view of them."""

import asyncio
import json
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import uvicorn

from app.api.protocol import CorkedProtocol
from app.main import create_app
from app.settings import Settings

T = TypeVar("T")

CHAT = "/v1/chat/completions"


@dataclass(frozen=True)
class Answer:
    """One HTTP answer. ``complete`` says whether the body's own framing says so."""

    status: int
    headers: dict[str, str]
    body: bytes
    complete: bool

    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        """The OpenAI error object."""
        error = self.json()["error"]
        assert {"message", "type", "param", "code"} == error.keys()
        return dict(error)


@dataclass(frozen=True)
class RunningGateway:
    """A served gateway."""

    port: int

    async def post(self, members: dict[str, Any] | bytes, path: str = CHAT, **headers: str) -> Answer:
        """POST a body and read the whole answer."""
        body = members if isinstance(members, bytes) else json.dumps(members).encode()
        return await self.raw("POST", path, body, {"content-type": "application/json", **headers})

    async def get(self, path: str, **headers: str) -> Answer:
        """GET a path."""
        return await self.raw("GET", path, b"", headers)

    async def raw(self, method: str, path: str, body: bytes, headers: dict[str, str]) -> Answer:
        """Send one request and read to the end of the connection or of the answer."""
        async with self.connection() as (reader, writer):
            writer.write(request_bytes(method, path, body, headers))
            return await read_answer(reader)

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        """A plain connection."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            yield reader, writer
        finally:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()

    async def metric(self, line: str) -> float:
        """The value of one exposed series, named as it is exposed."""
        page = (await self.get("/metrics")).body.decode()
        return next(float(row.rpartition(" ")[2]) for row in page.splitlines() if row.rpartition(" ")[0] == line)


def start(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Run something beside the test; the test awaits it."""
    return asyncio.get_running_loop().create_task(work)


def request_bytes(method: str, path: str, body: bytes, headers: dict[str, str]) -> bytes:
    """One HTTP/1.1 request. Underscores in header names stand for dashes."""
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    return f"{method} {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n{lines}\r\n".encode() + body


async def read_answer(reader: asyncio.StreamReader) -> Answer:
    """Read one answer by its framing; a connection that ends early gives an incomplete one."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
    body, complete = b"", True
    try:
        if "content-length" in headers:
            body = await reader.readexactly(int(headers["content-length"]))
        else:
            while size := int((await reader.readuntil(b"\r\n")).strip(), 16):
                body += (await reader.readexactly(size + 2))[:-2]
            await reader.readexactly(2)
    except (asyncio.IncompleteReadError, ConnectionError) as exc:
        body += getattr(exc, "partial", b"")
        complete = False
    return Answer(int(head[0].split(" ")[1]), headers, body, complete)


class _Server(uvicorn.Server):
    """A server that leaves the process's signals to the test run."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture nothing."""
        yield


@asynccontextmanager
async def running_gateway(
    state_dir: Path,
    *upstreams: str,
    protocol: type[asyncio.Protocol] = CorkedProtocol,
    wait: bool = True,
    **settings: Any,
) -> AsyncIterator[RunningGateway]:
    """Serve a gateway before the upstreams, on the running loop; ready when the block begins if it is to ``wait``."""
    chosen: dict[str, Any] = {"ledger": False, "probe_interval": 0.05, **settings}
    app = create_app(Settings(state_dir=state_dir, upstreams=upstreams, **chosen))
    config = uvicorn.Config(
        app,
        port=0,
        http=protocol,
        ws="none",
        lifespan="on",
        timeout_graceful_shutdown=1,
        log_config=None,
        access_log=False,
    )
    server = _Server(config)
    listener = config.bind_socket()
    listener.listen()
    serving = start(server.serve(sockets=[listener]))
    gateway = RunningGateway(listener.getsockname()[1])
    try:
        while wait and (await gateway.get("/readyz")).status != 200:
            assert not serving.done(), "the gateway did not start"
        yield gateway
    finally:
        server.should_exit = True
        await serving
