"""The one client that carries traffic to replicas: a pool of connections, one request sent once.

Nothing of one caller reaches another: no cookies, no redirects, no environment proxies; a connection returns to the
pool only after an answer that was read to its end. A client that leaves is an ordinary cancel: the connection closes
at once, which is how vLLM learns to abort the request.
"""

import asyncio
import contextlib
import ssl
from collections.abc import Iterable
from types import TracebackType
from typing import Final, Self
from urllib.parse import urlsplit

from app.errors import UpstreamError, UpstreamReset, UpstreamUnavailable
from app.upstream.replica import Replica
from app.upstream.wire import Connection, RawHeader

_KEEP_ALIVE_SECONDS: Final = 4.0
"""Below the 5 s after which vLLM's server closes an idle connection, so that we never write into a closing one."""

_SWEEP_SLACK: Final = 0.05
_UNREACHED_RETRY: Final = 2.0
"""Seconds after which a replica that could not be reached may be there again; nothing was sent to it."""

_DRAIN_SECONDS: Final = 1.0


class UpstreamResponse:
    """An answer whose body is still on its way. Header names are in lower case."""

    __slots__ = ("_connection", "_idle", "headers", "status")

    def __init__(self, connection: Connection, idle: float) -> None:
        self._connection = connection
        self._idle = idle
        self.status = connection.status
        self.headers: list[RawHeader] = connection.headers

    @property
    def event_stream(self) -> bool:
        """Whether the body is a stream of server-sent events."""
        return (self.header(b"content-type") or b"").startswith(b"text/event-stream")

    def header(self, wanted: bytes) -> bytes | None:
        """One header's value."""
        for name, value in self.headers:
            if name == wanted:
                return value
        return None

    async def chunk(self) -> bytes:
        """What arrived of the body; empty at its end.

        Raises UpstreamReset when the body ends early, UpstreamTimeout when it falls silent.
        """
        return await self._connection.piece(self._idle)

    async def read(self, limit: int) -> bytes:
        """The whole body; raises as `chunk` does, and UpstreamReset above ``limit`` bytes."""
        pieces: list[bytes] = []
        size = 0
        while chunk := await self._connection.piece(self._idle):
            size += len(chunk)
            if size > limit:
                raise UpstreamReset(f"The upstream's answer is over {limit} bytes.")
            pieces.append(chunk)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    async def drain(self) -> None:
        """Read what follows the last event that mattered, so that the connection can serve again; takes at most 1 s."""
        with contextlib.suppress(UpstreamError, TimeoutError):
            async with asyncio.timeout(_DRAIN_SECONDS):
                while await self._connection.piece(_DRAIN_SECONDS):
                    pass


class UpstreamClient:
    """Sends requests to replicas; an async context manager that owns the connections.

    Timeouts in seconds: ``connect``; ``first_byte``, from the request to the answer's headers (queueing in the engine
    included); ``idle``, between two pieces of the body.
    """

    def __init__(self, *, connect: float, first_byte: float, idle: float) -> None:
        self.first_byte = first_byte
        self.idle = idle
        self._connect_timeout = connect
        self._pools: dict[Replica, _Pool] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for pool in self._pools.values():
            pool.close()

    def send(
        self, replica: Replica, path: str, headers: Iterable[RawHeader], body: bytes, *, method: bytes = b"POST"
    ) -> "_Exchange":
        """Send a body once, and hold the answer until the block ends; a block left early closes the connection.

        Entering raises UpstreamUnavailable (nothing was sent), UpstreamReset or UpstreamTimeout.
        """
        pool = self._pools.get(replica)
        if pool is None:
            pool = self._pools[replica] = _Pool(replica, self._connect_timeout, asyncio.get_running_loop())
        head = [method, b" ", pool.prefix, path.encode(), b" HTTP/1.1\r\nhost: ", pool.host, b"\r\n"]
        for name, value in headers:
            head += (name, b": ", value, b"\r\n")
        head += (b"content-length: %d\r\n\r\n" % len(body), body)
        return _Exchange(self, pool, b"".join(head))


class _Exchange:
    """One request and its answer, as an async context manager."""

    __slots__ = ("_client", "_connection", "_pool", "_request")

    def __init__(self, client: UpstreamClient, pool: "_Pool", request: bytes) -> None:
        self._client = client
        self._pool = pool
        self._request = request
        self._connection: Connection | None = None

    async def __aenter__(self) -> UpstreamResponse:
        connection = self._pool.take() or await self._pool.connect()
        connection.send(self._request)
        try:
            await connection.begin(self._client.first_byte)
        except BaseException:
            connection.close()
            raise
        self._connection = connection
        return UpstreamResponse(connection, self._client.idle)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._connection is not None:
            self._pool.give_back(self._connection)


class _Pool:
    """The idle connections to one replica, the most recently used first out."""

    def __init__(self, replica: Replica, connect_timeout: float, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        parts = urlsplit(replica.url)
        self.prefix = parts.path.encode()
        self.host = parts.netloc.encode()
        self._name = replica.name
        self._address = (parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80))
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._connect_timeout = connect_timeout
        self._idle: list[Connection] = []
        self._sweeper: asyncio.TimerHandle | None = None

    def take(self) -> Connection | None:
        """An idle connection that the replica has surely not closed, or None."""
        if not self._idle:
            return None
        oldest = self._loop.time() - _KEEP_ALIVE_SECONDS
        while self._idle:
            connection = self._idle.pop()
            if not connection.closed and connection.idle_since > oldest:
                return connection
            connection.close()
        return None

    async def connect(self) -> Connection:
        """A new connection. Raises UpstreamUnavailable."""
        try:
            async with asyncio.timeout(self._connect_timeout):
                _, connection = await self._loop.create_connection(
                    lambda: Connection(self._name, self._loop), *self._address, ssl=self._tls
                )
        except TimeoutError as exc:
            raise UpstreamUnavailable(
                f"Replica {self._name} did not accept a connection within {self._connect_timeout:g} s.",
                retry_after=_UNREACHED_RETRY,
            ) from exc
        except OSError as exc:
            raise UpstreamUnavailable(
                f"Replica {self._name} cannot be reached ({exc.strerror or exc}).", retry_after=_UNREACHED_RETRY
            ) from exc
        return connection

    def give_back(self, connection: Connection) -> None:
        """Keep a connection whose answer was read to its end; close any other."""
        if not connection.reusable:
            connection.close()
            return
        connection.idle_since = self._loop.time()
        self._idle.append(connection)
        if self._sweeper is None:
            self._sweeper = self._loop.call_later(_KEEP_ALIVE_SECONDS, self._sweep)

    def close(self) -> None:
        """Close every idle connection."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        for connection in self._idle:
            connection.close()
        self._idle.clear()

    def _sweep(self) -> None:
        """Close what has been idle too long, and come back while anything is idle."""
        oldest = self._loop.time() - _KEEP_ALIVE_SECONDS
        for connection in self._idle:
            if connection.idle_since <= oldest:
                connection.close()
        self._idle = [connection for connection in self._idle if not connection.closed]
        # The list is in order of idleness. A little late, so that what is due has surely been idle for long enough.
        due = self._idle[0].idle_since + _KEEP_ALIVE_SECONDS + _SWEEP_SLACK if self._idle else 0.0
        self._sweeper = self._loop.call_at(due, self._sweep) if self._idle else None
