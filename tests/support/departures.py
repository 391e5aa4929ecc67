"""Clients that leave, in every phase of their request, each where there is evidence that the phase has been reached.

Two gateways stand as processes before one scripted upstream each: a guarded one, and a stock one whose gate the gateway
holds itself. The upstreams run here, and know when the work for a client began and when its connection ended.
"""

import asyncio
import json
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Final, TypeAlias
from urllib.parse import urlsplit

from tests.support.fleet import Member
from tests.support.guarded import Serving, Watch
from tests.support.running import CHAT, RunningGateway, request_bytes

PATIENCE: Final = 30.0
"""Seconds in which a phase must be reached on a busy machine."""

BESIDE: Final = 16
"""Clients that are in a phase at one time, where its admission allows several."""

_POLL: Final = 0.001
_SOON: Final = 0.002


@dataclass
class Client:
    """One client with its connection."""

    request: str
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    watch: Watch
    left_at: int = 0

    async def begun(self) -> None:
        """Wait until the engine works for it. Raises TimeoutError."""
        async with asyncio.timeout(PATIENCE):
            await self.watch.begun.wait()

    def leave(self) -> None:
        """Cut the connection. Idempotent."""
        if not self.left_at:
            self.left_at = time.monotonic_ns()
            self.writer.transport.abort()


@dataclass
class Stage:
    """One gateway before one upstream. ``key`` is the guard's, empty where there is none."""

    name: str
    upstream: Serving
    gateway: Member
    key: str
    numbers: "count[int]" = field(default_factory=count)

    @asynccontextmanager
    async def client(self, mode: str, *, stream: bool = True, **script: object) -> AsyncIterator[Client]:
        """A client that has sent its request, and is gone when the block ends."""
        request = f"{self.name}-{next(self.numbers)}"
        members = {"id": request, "exclusive": mode == "isolated", **script}
        body = json.dumps({"model": "m", "stream": stream, "determinism": mode, "x_script": members}).encode()
        engine = self.upstream.vllm.engine
        watch = engine.watch(request)
        reader, writer = await asyncio.open_connection("127.0.0.1", self.gateway.port)
        client = Client(request, reader, writer, watch)
        try:
            writer.write(request_bytes("POST", CHAT, body, {"content-type": "application/json"}))
            yield client
        finally:
            client.leave()
            del engine.watches[request]

    async def leases(self) -> int:
        """What the gateway says that it holds."""
        replicas = (await RunningGateway(self.gateway.port).get("/readyz")).json()["replicas"]
        return sum(replica["leases"] for replica in replicas)

    async def gate(self, *names: str) -> int:
        """What the guard counts under these names."""
        guard = RunningGateway(urlsplit(self.upstream.url).port or 0)
        page = (await guard.get("/reprise/posture", x_determinism_guard_key=self.key)).json()
        return sum(page["gate"][name] for name in names)

    async def waiting(self) -> int:
        """How many requests wait in the gate, wherever it is; one that is beside them in a gateway's gate runs."""
        if self.key:
            return await self.gate("waiting_shared", "waiting_exclusive")
        return await self.leases() - 1

    async def idle(self) -> None:
        """Wait until nothing is held any more."""
        await until(self._is_idle)

    async def _is_idle(self) -> bool:
        guards = ("shared", "exclusive", "waiting_shared", "waiting_exclusive")
        return not await self.leases() and not (self.key and await self.gate(*guards))


@dataclass
class Departures:
    """Those that left.

    ``seconds``: from leaving to the upstream's notice. ``for_nobody``: executed although they had left before.
    ``unheard``: left at a moment at which the engine may just have finished for them.
    """

    phases: dict[str, int] = field(default_factory=dict)
    seconds: list[float] = field(default_factory=list)
    for_nobody: list[str] = field(default_factory=list)
    unheard: set[str] = field(default_factory=set)

    @property
    def total(self) -> int:
        """How many have left."""
        return sum(self.phases.values())

    def note(self, phase: str, mode: str, clients: int = 1) -> None:
        """So many clients have left in a phase."""
        self.phases[f"{phase}, {mode}"] = self.phases.get(f"{phase}, {mode}", 0) + clients


async def until(look: Callable[[], Awaitable[bool]], seconds: float = PATIENCE) -> None:
    """Ask until it is so. Raises TimeoutError."""
    async with asyncio.timeout(seconds):
        while not await look():  # noqa: ASYNC110 - another process gets there; there is nothing to wait on but its word
            await asyncio.sleep(_POLL)


Phase: TypeAlias = Callable[[Stage, str, int, random.Random, Departures], Awaitable[None]]
"""Lets so many clients of a mode leave in one phase."""


async def queued(stage: Stage, mode: str, clients: int, _: random.Random, left: Departures) -> None:
    """While they wait for their turn behind an exclusive request; what they asked for must never be sent."""
    async with stage.client("isolated", ms=None) as holder:
        await holder.begun()
        async with AsyncExitStack() as stack:
            waiting = [await stack.enter_async_context(stage.client(mode)) for _ in range(clients)]

            async def all_wait() -> bool:
                return await stage.waiting() == clients

            await until(all_wait)
            for client in waiting:
                client.leave()

            async def none_waits() -> bool:
                return await stage.waiting() == 0

            await until(none_waits)
            left.for_nobody += [client.request for client in waiting if client.watch.begun.is_set()]
    left.note("queued", mode, clients)
    await stage.idle()


async def granted(stage: Stage, mode: str, clients: int, _: random.Random, left: Departures) -> None:
    """After the grant, while the engine has yet to run empty for them; nothing must be executed either."""
    if mode == "standard":
        return  # what shares the engine waits for nothing between its grant and its sending
    engine = stage.upstream.vllm.engine
    await stage.idle()
    engine.phantoms = 1
    for _number in range(clients):
        async with stage.client(mode) as client:

            async def is_granted() -> bool:
                return (await stage.gate("exclusive") if stage.key else await stage.leases()) == 1

            await until(is_granted)
            client.leave()
            await stage.idle()
            left.for_nobody += [client.request] if client.watch.begun.is_set() else []
    engine.phantoms = 0
    left.note("granted", mode, clients)


async def sent(stage: Stage, mode: str, clients: int, draw: random.Random, left: Departures) -> None:
    """At any moment just after they have sent their request, wherever it is by then."""

    async def leave(after: float) -> None:
        async with stage.client(mode, ms=1) as client:
            left.unheard.add(client.request)
            await asyncio.sleep(after)

    async with asyncio.TaskGroup() as group:
        for _number in range(clients):
            group.create_task(leave(draw.uniform(0, _SOON)))
    left.note("sent", mode, clients)


async def before_the_headers(stage: Stage, mode: str, clients: int, _: random.Random, left: Departures) -> None:
    """While the engine computes, before a byte of the answer."""

    async def leave() -> None:
        async with stage.client(mode, stream=False, ms=None) as client:
            await client.begun()
            await _noticed(client, left)

    await _each(leave, mode, clients)
    left.note("before headers", mode, clients)


async def in_the_stream(stage: Stage, mode: str, clients: int, _: random.Random, left: Departures) -> None:
    """After two events of a stream, while the engine goes on."""

    async def leave() -> None:
        async with stage.client(mode, ms=None, pieces=3) as client:
            async with asyncio.timeout(PATIENCE):
                for _event in range(2):
                    await client.reader.readuntil(b"data: ")
            await _noticed(client, left)

    await _each(leave, mode, clients)
    left.note("mid-stream", mode, clients)


async def at_the_end(stage: Stage, mode: str, clients: int, draw: random.Random, left: Departures) -> None:
    """When the last event has come but not the end of the body, or the head of an answer but not what follows."""

    async def leave() -> None:
        stream = draw.random() < 0.5
        async with stage.client(mode, stream=stream) as client:
            async with asyncio.timeout(PATIENCE):
                await client.reader.readuntil(b"[DONE]" if stream else b"\r\n\r\n")

    await _each(leave, mode, clients)
    left.note("at the end", mode, clients)


PHASES: Final[tuple[Phase, ...]] = (queued, granted, sent, before_the_headers, in_the_stream, at_the_end)


async def _noticed(client: Client, left: Departures) -> None:
    """Leave, and wait until the upstream's own server has noticed."""
    client.leave()
    async with asyncio.timeout(PATIENCE):
        await client.watch.left.wait()
    left.seconds.append((client.watch.left_at - client.left_at) / 1e9)


async def _each(leave: Callable[[], Awaitable[None]], mode: str, clients: int) -> None:
    """As many beside each other as their admission allows to be in the phase."""
    beside = BESIDE if mode == "standard" else 1

    async def several(number: int) -> None:
        for _ in range(number):
            await leave()

    async with asyncio.TaskGroup() as group:
        for lane in range(beside):
            group.create_task(several(clients // beside + (lane < clients % beside)))
