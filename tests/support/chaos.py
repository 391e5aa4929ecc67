"""A TCP proxy that breaks what passes through it, one request in the way that its body asks for.

It stands between a gateway and a replica, forwards bytes, and understands no more of HTTP than where a request ends. A
POST names its fault in its member ``x_fault``; everything else passes unharmed, so that replicas stay healthy. Two
faults happen to connections and not to requests: one is closed as soon as it is accepted (`close_at_once`, a chance),
and none is accepted at all while `refusing`.
"""

import asyncio
import json
import random
import re
import socket
import struct
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from enum import StrEnum
from urllib.parse import urlsplit

from tests.support.fleet import free_port
from tests.support.running import start

_TAIL = 32
_MARK = re.compile(rb'"x_id": ?"([^"]+)"')


class Fault(StrEnum):
    """What happens to one request or its answer."""

    NONE = "none"
    SWALLOWED = "reset once read, not passed on"
    LOST = "passed on, then reset"
    UNHEARD = "reset when the answer came"
    CUT = "reset in the middle of the answer"
    HALF_CLOSED = "closed in the middle of the answer, in one direction"
    LATE = "passed on after the gateway's patience"
    SILENT = "answer held back beyond the gateway's patience"
    TRICKLE = "both ways in small pieces"
    STALE = "the connection's next request is reset"


class _Struck(ConnectionError):
    """The connection ends here, by intention."""


class FaultProxy:
    """Stands before the replica at ``upstream``. ``delay``: seconds, more than the gateway waits for an answer.

    ``struck``: how often what happened. ``seen``: how often each POST has come here, by its id.
    """

    def __init__(self, upstream: str, *, delay: float, close_at_once: float, seed: str) -> None:
        self.struck: Counter[str] = Counter()
        self.seen: Counter[str] = Counter()
        self.url = ""
        self._port = urlsplit(upstream).port
        self._delay = delay
        self._close_at_once = close_at_once
        self._random = random.Random(seed)  # noqa: S311 - faults must repeat, not be secret
        self._server: asyncio.Server | None = None
        self._connections: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    @asynccontextmanager
    async def serve(self) -> AsyncIterator["FaultProxy"]:
        """Listen on a free loopback port."""
        await self._listen(free_port())
        try:
            yield self
        finally:
            if self._server is not None:
                self._server.close()
            for writer in self._connections.values():
                writer.transport.abort()
            await asyncio.gather(*self._connections)

    async def refuse(self, seconds: float) -> None:
        """Accept no connection for a while; those that are open stay."""
        assert self._server is not None
        self._server.close()
        self.struck["connection refused for a while"] += 1
        await asyncio.sleep(seconds)
        await self._listen(urlsplit(self.url).port or 0)

    def somewhere(self, size: int) -> int:
        """A place inside a piece of so many bytes, well before its end: after ``[DONE]`` nothing is missing."""
        return self._random.randrange(max(1, size - _TAIL))

    async def _listen(self, port: int) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", port, limit=2**26)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections[task] = writer
        try:
            if self._random.random() < self._close_at_once:
                self.struck["connection closed as soon as accepted"] += 1
                return
            await _Passage(self, self._delay).run(reader, writer, self._port or 0)
        except (OSError, EOFError):
            pass
        finally:
            del self._connections[task]
            writer.transport.abort()


class _Passage:
    """One connection through the proxy."""

    def __init__(self, proxy: FaultProxy, delay: float) -> None:
        self._proxy = proxy
        self._delay = delay
        self._fault = Fault.NONE
        self._stale = False

    async def run(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int) -> None:
        """Pass requests on and answers back until one side ends it, or a fault does."""
        answers, requests = await asyncio.open_connection("127.0.0.1", port)
        back = start(self._pass_back(answers, writer))
        try:
            while True:
                reading = start(_read_request(reader))
                await asyncio.wait((reading, back), return_when=asyncio.FIRST_COMPLETED)
                if not reading.done():
                    reading.cancel()
                    return
                await self._pass_on(reading.result(), requests, writer)
        finally:
            back.cancel()
            with suppress(asyncio.CancelledError, OSError):
                await back
            requests.transport.abort()

    async def _pass_on(self, request: bytes, requests: asyncio.StreamWriter, writer: asyncio.StreamWriter) -> None:
        mark = _MARK.search(request)
        if mark is None:
            requests.write(request)
            return
        self._proxy.seen[mark[1].decode()] += 1
        if self._stale:
            self._strike(Fault.STALE)
            _reset(writer)
        self._fault = Fault(json.loads(request.partition(b"\r\n\r\n")[2])["x_fault"])
        match self._fault:
            case Fault.SWALLOWED:
                self._strike(self._fault)
                _reset(writer)
            case Fault.LATE:
                self._strike(self._fault)
                await asyncio.sleep(self._delay)
            case Fault.TRICKLE:
                self._strike(self._fault)
                await _trickle(request, requests)
                return
        requests.write(request)
        await requests.drain()
        if self._fault is Fault.LOST:
            self._strike(self._fault)
            _reset(writer)

    async def _pass_back(self, answers: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await answers.read(2**16):
            match self._fault:
                case Fault.UNHEARD:
                    self._strike(self._fault)
                    _reset(writer)
                case Fault.CUT | Fault.HALF_CLOSED:
                    self._strike(self._fault)
                    writer.write(data[: self._proxy.somewhere(len(data))])
                    await writer.drain()
                    if self._fault is Fault.CUT:
                        _reset(writer)
                    writer.write_eof()
                    self._fault = Fault.NONE
                    await asyncio.sleep(self._delay)
                    return
                case Fault.SILENT:
                    self._strike(self._fault)
                    self._fault = Fault.NONE
                    await asyncio.sleep(self._delay)
                case Fault.TRICKLE:
                    await _trickle(data, writer)
                    continue
                case Fault.STALE:
                    self._stale = True
            writer.write(data)
            await writer.drain()

    def _strike(self, fault: Fault) -> None:
        self._proxy.struck[fault] += 1


async def _read_request(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    length = re.search(rb"content-length: *(\d+)", head, re.IGNORECASE)
    return head + (await reader.readexactly(int(length[1])) if length else b"")


async def _trickle(data: bytes, writer: asyncio.StreamWriter) -> None:
    for at in range(0, len(data), 61):
        writer.write(data[at : at + 61])
        await writer.drain()
        await asyncio.sleep(0)


def _reset(writer: asyncio.StreamWriter) -> None:
    """Close with RST, as a crashed server's kernel does. Raises what ends the passage."""
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
    raise _Struck
