"""Gateways and upstreams as processes that are killed, frozen and started again, each always on its own port."""

import asyncio
import json
import os
import random
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.running import Answer, read_answer, request_bytes

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 60.0
"""Seconds in which a process must be ready, or everything idle, on a busy machine."""

_POLL = 0.02
_PORTS = range(12_000, 28_000)
"""Below the ports that the system takes for outgoing connections, so that a process finds its own free again."""


@dataclass(eq=False)
class Member:
    """One process. ``ready`` tells whether it serves; ``ended`` is told the id of each process that is gone."""

    name: str
    port: int
    argv: list[str]
    folder: Path
    environment: Mapping[str, str]
    ready: Callable[["Member"], Awaitable[bool]]
    ended: Callable[[int], object] = lambda _: None
    process: asyncio.subprocess.Process | None = field(default=None, init=False)

    @property
    def url(self) -> str:
        """Its base URL."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """Its process id."""
        assert self.process is not None
        return self.process.pid

    async def start(self) -> None:
        """Start it; `until_ready` waits for it."""
        with (self.folder / f"{self.name}.log").open("ab") as output:
            self.process = await asyncio.create_subprocess_exec(
                *self.argv,
                stdout=output,
                stderr=output,
                env={**os.environ, "PYTHONPATH": str(ROOT), **self.environment},
            )

    async def until_ready(self) -> None:
        """Wait until it serves. Fails when it has died, or does not in time."""
        async with asyncio.timeout(PATIENCE):
            while not await self.ready(self):
                assert self.process is not None
                assert self.process.returncode is None, f"{self.name} died; its log is in {self.folder}"
                await asyncio.sleep(_POLL)

    def send(self, number: signal.Signals) -> None:
        """Send a signal, unless it has died."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)

    async def end(self, number: signal.Signals) -> None:
        """End it with a signal and wait until it is gone. One that takes more than 30 s over SIGTERM is killed."""
        if self.process is None:
            return
        process, pid = self.process, self.pid
        self.send(number)
        self.send(signal.SIGCONT)
        try:
            async with asyncio.timeout(30):
                await process.wait()
        except TimeoutError:
            self.send(signal.SIGKILL)
            await process.wait()
        self.process = None
        self.ended(pid)

    async def get(self, path: str, **headers: str) -> Answer:
        """GET a path of it. Raises OSError or EOFError when it does not answer."""
        async with asyncio.timeout(5):
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
            try:
                writer.write(request_bytes("GET", path, b"", {"connection": "close", **headers}))
                return await read_answer(reader)
            finally:
                writer.close()

    async def page(self, path: str, **headers: str) -> Any:
        """A JSON page of it, whatever the status; None when it does not answer."""
        try:
            return json.loads((await self.get(path, **headers)).body)
        except (OSError, EOFError, ValueError):
            return None


def gateway(
    number: int, upstreams: list[str], folder: Path, key: str, settings: Mapping[str, str], *, isolates: bool = True
) -> Member:
    """A gateway of its own before the upstreams; ready once every one of them honours isolation."""
    name, port = f"gateway-{number}", free_port()
    argv = [sys.executable, "-m", "app.cli", "serve", "--port", str(port), "--state-dir", str(folder / name)]
    for url in upstreams:
        argv += ["--upstream", url]

    async def ready(member: Member) -> bool:
        page = await member.page("/readyz")
        if not page or not page.get("ready"):
            return False
        honoured = [one["mitigations"].get("batch_isolation", "") for one in page["replicas"]]
        return not isolates or all(said.startswith("yes") for said in honoured)

    return Member(name, port, argv, folder, {"REPRISE_GUARD_KEY": key, **settings}, ready)


def upstream(
    number: int, folder: Path, key: str, options: Mapping[str, str], *, stock: bool = False, ms: float = 0.0
) -> Member:
    """A scripted upstream with its log of executions, to which the end of each of its processes is added."""
    name, port = f"upstream-{number}", free_port()
    log = folder / f"{name}.executions"
    argv = [sys.executable, "-m", "tests.support.guarded", "--port", str(port), "--log", str(log), "--ms", str(ms)]

    async def ready(member: Member) -> bool:
        return await member.page("/health") is not None

    def ended(pid: int) -> None:
        with log.open("a") as lines:
            lines.write(f"k {time.monotonic_ns()} {pid} - -\n")

    environment = {"REPRISE_GUARD_KEY": key, **options}
    return Member(name, port, [*argv, *(["--stock"] if stock else [])], folder, environment, ready, ended)


@asynccontextmanager
async def running(members: list[Member]) -> AsyncIterator[None]:
    """Run them for the time of the block; ready, in their order, when it begins."""
    try:
        for member in members:
            await member.start()
        for member in members:
            await member.until_ready()
        yield
    finally:
        # All at once, gateways before what they stand before.
        for member in members:
            if member.process is not None:
                member.send(signal.SIGCONT)
                member.send(signal.SIGKILL)
        for member in members:
            await member.end(signal.SIGKILL)


def free_port() -> int:
    """A loopback port that nobody listens on and that no outgoing connection will get."""
    while True:
        port = random.SystemRandom().choice(_PORTS)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def descriptors(pid: int) -> int:
    """How many file descriptors a process has open."""
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())


def resident_bytes(pid: int) -> int:
    """VmRSS of a process."""
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS:")) * 1024
