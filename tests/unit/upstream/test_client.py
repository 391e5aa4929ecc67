"""The client that carries traffic: framing, reuse, truncation, and nothing of one exchange in another."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

from app.errors import UpstreamReset, UpstreamTimeout, UpstreamUnavailable
from app.upstream.client import UpstreamClient
from app.upstream.replica import Replica
from app.upstream.wire import HIGH_WATER

pytestmark = pytest.mark.anyio

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nX-Mixed: Case\r\n\r\n"
Handler = Callable[[bytes, asyncio.StreamWriter], Coroutine[Any, Any, None]]


@asynccontextmanager
async def serving(handle: Handler) -> AsyncIterator[tuple[UpstreamClient, Replica, list[int]]]:
    """A client before a server that calls ``handle`` for each request; the list counts requests by connection."""
    counts: list[int] = []

    async def connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        counts.append(0)
        mine = len(counts) - 1
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                counts[mine] += 1
                length = next(int(x.split(b":")[1]) for x in head.split(b"\r\n") if x.startswith(b"content-length"))
                await handle(head + await reader.readexactly(length), writer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(connection, "127.0.0.1", 0)
    async with server, UpstreamClient(connect=0.5, first_byte=0.3, idle=0.3) as client:
        port = server.sockets[0].getsockname()[1]
        yield client, Replica.at(f"http://127.0.0.1:{port}/base/v1"), counts


def answering(*pieces: bytes, close: bool = False) -> Handler:
    """A handler that writes the pieces one by one."""

    async def handle(_: bytes, writer: asyncio.StreamWriter) -> None:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        if close:
            writer.close()

    return handle


async def test_the_request_is_what_was_given() -> None:
    """Path under the base URL, headers in their order, an exact length and the body's own bytes."""
    seen: list[bytes] = []

    async def handle(request: bytes, writer: asyncio.StreamWriter) -> None:
        seen.append(request)
        writer.write(OK)

    async with serving(handle) as (client, replica, _):
        async with client.send(replica, "/v1/x", [(b"a", b"1"), (b"b", b"2")], b'{"x": 1.0e-7}') as response:
            assert await response.read(10) == b"ok"
        host = replica.url.split("/")[2].encode()

    expected = b"POST /base/v1/x HTTP/1.1\r\nhost: " + host
    assert seen == [expected + b'\r\na: 1\r\nb: 2\r\ncontent-length: 13\r\n\r\n{"x": 1.0e-7}']


async def test_a_connection_serves_again_after_a_complete_answer() -> None:
    """Ten requests in a row use one connection."""
    async with serving(answering(OK)) as (client, replica, counts):
        for _ in range(10):
            async with client.send(replica, "/", [], b"") as response:
                assert await response.read(10) == b"ok"
        assert counts == [10]


@pytest.mark.parametrize("extra", [OK, b"x", b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nsecret"])
async def test_bytes_that_nobody_asked_for_never_reach_the_next_exchange(extra: bytes) -> None:
    """An answer followed by more ends its connection; the next request gets a new one and its own answer."""
    async with serving(answering(OK + extra)) as (client, replica, counts):
        for _ in range(3):
            async with client.send(replica, "/", [], b"") as response:
                assert await response.read(100) == b"ok"
        assert counts == [1, 1, 1]


async def test_chunks_arrive_as_they_come_and_trailers_are_no_headers() -> None:
    """Chunked framing is undone, header names are in lower case, and a trailer does not become a header."""
    body = b"2\r\nab\r\n3\r\ncde\r\n0\r\nlate: 1\r\n\r\n"
    async with (
        serving(answering(CHUNKED, body)) as (client, replica, _),
        client.send(replica, "/", [], b"") as response,
    ):
        assert response.header(b"x-mixed") == b"Case"
        assert await response.read(10) == b"abcde"
        assert response.header(b"late") is None


async def test_an_informational_answer_is_passed_over() -> None:
    """100 Continue before the answer is not the answer."""
    async with serving(answering(b"HTTP/1.1 100 Continue\r\n\r\n" + OK)) as (client, replica, counts):
        for _ in range(2):
            async with client.send(replica, "/", [], b"") as response:
                assert (response.status, await response.read(10)) == (200, b"ok")
        assert counts == [2]


@pytest.mark.parametrize(
    "pieces",
    [
        [b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nabc"],
        [CHUNKED, b"3\r\nabc\r\n"],
        [CHUNKED, b"5\r\nab"],
        [b"HTTP/1.1 200 OK\r\n\r\nno framing at all"],
    ],
)
async def test_an_answer_cut_short_is_never_complete(pieces: list[bytes]) -> None:
    """Whatever came is followed by an error, never by a clean end; a body without framing is never complete."""
    served = serving(answering(*pieces, close=True))
    async with served as (client, replica, _), client.send(replica, "/", [], b"") as response:
        with pytest.raises(UpstreamReset, match="before its answer was complete"):
            await response.read(100)


@pytest.mark.parametrize("pieces", [[b""], [b"HTTP/1.1 200"], [b"NONSENSE\r\n\r\n"]])
async def test_no_answer_at_all(pieces: list[bytes]) -> None:
    """A connection that ends or talks nonsense before the headers is a reset."""
    async with serving(answering(*pieces, close=True)) as (client, replica, _):
        with pytest.raises(UpstreamReset):
            await client.send(replica, "/", [], b"").__aenter__()


async def test_silence_ends_in_a_timeout() -> None:
    """Before the headers and between two pieces the deadlines hold, each from the last sign of life."""
    async with serving(answering(b"")) as (client, replica, _):
        with pytest.raises(UpstreamTimeout):
            await client.send(replica, "/", [], b"").__aenter__()
    served = serving(answering(CHUNKED + b"1\r\na\r\n"))
    async with served as (client, replica, _), client.send(replica, "/", [], b"") as response:
        assert await response.chunk() == b"a"
        with pytest.raises(UpstreamTimeout):
            await response.chunk()


async def test_a_short_patience_after_a_long_one_holds() -> None:
    """An engine that may take long to begin is still given up soon when it falls silent in its answer."""
    served = serving(answering(CHUNKED + b"1\r\na\r\n"))
    async with served as (client, replica, _), asyncio.timeout(10):
        client.first_byte = 600
        async with client.send(replica, "/", [], b"") as response:
            assert await response.chunk() == b"a"
            with pytest.raises(UpstreamTimeout, match=r"0\.3 s"):
                await response.chunk()


async def test_a_refused_connection_means_that_nothing_was_sent() -> None:
    """Nobody listens: the error says so by its class."""
    async with serving(answering(OK)) as (client, replica, _):
        pass
    with pytest.raises(UpstreamUnavailable):
        await client.send(replica, "/", [], b"").__aenter__()


async def test_too_large_an_answer_is_refused() -> None:
    """A unary answer over the limit is an error, and its connection does not serve again."""
    async with serving(answering(OK)) as (client, replica, counts):
        for _ in range(2):
            async with client.send(replica, "/", [], b"") as response:
                with pytest.raises(UpstreamReset, match="over 1 bytes"):
                    await response.read(1)
        assert sum(counts) == 2


async def test_a_block_left_early_closes_the_connection() -> None:
    """Leaving before the end of the answer closes the connection at once, which tells the engine to stop."""
    closed = asyncio.Event()

    async def handle(_: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(CHUNKED + b"1\r\na\r\n")
        await writer.drain()
        try:
            while True:
                writer.write(b"1\r\na\r\n")
                await writer.drain()
        except ConnectionError:
            closed.set()
            raise

    async with serving(handle) as (client, replica, _):
        async with client.send(replica, "/", [], b"") as response:
            assert await response.chunk()
        async with asyncio.timeout(5):
            await closed.wait()


async def test_cancelled_while_it_waits_for_the_headers() -> None:
    """A cancelled request leaves no connection behind, and the next one succeeds on a new one."""
    gone = asyncio.Event()
    hold = True

    async def handle(_: bytes, writer: asyncio.StreamWriter) -> None:
        if not hold:
            writer.write(OK)
            return
        gone.set()

    async with serving(handle) as (client, replica, counts):
        task = asyncio.get_running_loop().create_task(client.send(replica, "/", [], b"").__aenter__())
        await gone.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        hold = False
        async with client.send(replica, "/", [], b"") as response:
            assert await response.read(10) == b"ok"
        assert counts == [1, 1]


async def test_a_slow_reader_holds_the_replica_back() -> None:
    """With nobody reading, no more than the high-water mark and what sockets hold is taken from the replica."""
    written = 0

    async def handle(_: bytes, writer: asyncio.StreamWriter) -> None:
        nonlocal written
        writer.write(CHUNKED)
        for _turn in range(1024):
            writer.write(b"10000\r\n" + b"a" * 0x10000 + b"\r\n")
            await writer.drain()
            written += 0x10000
        writer.write(b"0\r\n\r\n")

    async with serving(handle) as (client, replica, _), client.send(replica, "/", [], b"") as response:
        first = await response.chunk()
        before: int | None = None
        while written != before:
            before = written
            for _ in range(50):
                await asyncio.sleep(0)  # the server writes as long as anybody takes it
        assert written < 64 * 2**20 - HIGH_WATER
        size = len(first)
        while piece := await response.chunk():
            size += len(piece)
        assert size == 64 * 2**20
