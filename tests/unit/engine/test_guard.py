"""The guard's gate: who is admitted, when, and that nobody leaves a ticket behind."""

import asyncio
import json
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from fastapi.responses import StreamingResponse

from app.asgi import Message, Receive, Scope, Send
from app.engine.guard import GENERATING_PATHS
from app.scheduling.gate import GatePolicy
from tests.support.clock import ClockLoop
from tests.support.running import start
from tests.unit.engine.fakes import DISCONNECT, EXCLUSIVE, KEY, SHARED, Call, Replica, body, quiet, read

pytestmark = pytest.mark.anyio


def counts(replica: Replica) -> tuple[int, int, int, int]:
    """The gate: shared, exclusive, waiting shared, waiting exclusive."""
    gate = replica.app._gate.statistics()  # type: ignore[attr-defined]  # an App, in truth a Guard
    return gate.shared, gate.exclusive, gate.waiting_shared, gate.waiting_exclusive


def error_of(call: Call) -> tuple[int | None, str]:
    """Status and code of a refusal."""
    return call.status, json.loads(call.content)["error"]["code"]


async def test_exclusive_waits_for_the_others_and_keeps_them_out() -> None:
    """Two shared requests run together, the exclusive one alone after them, the next shared one after that."""
    replica = Replica()
    first, second, alone, last = (replica.call(headers) for headers in (SHARED, SHARED, EXCLUSIVE, SHARED))
    async with anyio.create_task_group() as group:
        for call in (first, second, alone, last):
            group.start_soon(replica.serve, call)
            await quiet()
        assert counts(replica) == (2, 0, 1, 1)
        first.finish.set()
        second.finish.set()
        await quiet()
        assert counts(replica) == (0, 1, 1, 0)
        alone.finish.set()
        last.finish.set()
    assert replica.server.started == [first, second, alone, last]
    peaks = [call.headers["x-determinism-coresident-peak"] for call in (first, second, alone, last)]
    assert peaks == ["2", "2", "1", "1"]
    assert float(alone.headers["x-determinism-admission-wait"]) > 0
    assert counts(replica) == (0, 0, 0, 0)


async def test_a_client_that_leaves_the_queue_is_forgotten() -> None:
    """Its ticket is gone at once, the server never hears of it, and nothing is sent."""
    replica = Replica()
    running, waiting = replica.call(EXCLUSIVE), replica.call(EXCLUSIVE)
    async with anyio.create_task_group() as group:
        group.start_soon(replica.serve, running)
        await quiet()
        group.start_soon(replica.serve, waiting)
        await quiet()
        assert counts(replica) == (0, 1, 0, 1)
        waiting.wire.put_nowait(DISCONNECT)
        await quiet()
        assert counts(replica) == (0, 1, 0, 0)
        running.finish.set()
    assert replica.server.started == [running]
    assert waiting.sent == []


async def test_a_body_that_arrives_in_parts_is_handed_on_whole() -> None:
    """Its parts reach the server in order, each once, after a wait too."""
    replica = Replica()
    running, waiting = replica.call(EXCLUSIVE), replica.call(SHARED, data=None)
    async with anyio.create_task_group() as group:
        group.start_soon(replica.serve, running)
        await quiet()
        group.start_soon(replica.serve, waiting)
        for part in (b"one ", b"two "):
            waiting.wire.put_nowait(body(part, more=True))
            await quiet()
        assert counts(replica) == (0, 1, 0, 0)
        waiting.wire.put_nowait(body(b"three"))
        await quiet()
        assert counts(replica) == (0, 1, 1, 0)
        running.finish.set()
        waiting.finish.set()
    assert replica.server.bodies == [b"{}", b"one two three"]


async def test_the_server_still_hears_that_a_client_left() -> None:
    """A disconnect that comes after the wait reaches whoever listens then, also after a listener was cancelled."""
    replica = Replica()
    heard: list[Message] = []

    async def work(_: object, receive: Any, send: object) -> None:  # noqa: ARG001 - ASGI
        await read(receive)
        with anyio.move_on_after(0):
            await receive()
        heard.append(await receive())

    running, waiting = replica.call(EXCLUSIVE), replica.call(SHARED)
    async with anyio.create_task_group() as group:
        group.start_soon(replica.serve, running)
        await quiet()
        group.start_soon(replica.serve, waiting)
        await quiet()
        replica.server.work = work
        running.finish.set()
        await quiet()
        waiting.wire.put_nowait(DISCONNECT)
    assert heard == [DISCONNECT]


async def test_isolation_outlives_the_client() -> None:
    """A lease ends when the server's handler returns, not when the client leaves."""
    replica = Replica()
    running, waiting = replica.call(EXCLUSIVE), replica.call(EXCLUSIVE)
    async with anyio.create_task_group() as group:
        group.start_soon(replica.serve, running)
        await quiet()
        group.start_soon(replica.serve, waiting)
        running.wire.put_nowait(DISCONNECT)
        await quiet()
        assert counts(replica) == (0, 1, 0, 1)
        running.finish.set()
        waiting.finish.set()
    assert replica.server.started == [running, waiting]


@pytest.mark.parametrize("headers", [SHARED, EXCLUSIVE, {}])
async def test_a_failing_server_frees_the_gate(headers: dict[str, str]) -> None:
    """Its error passes through, and the lease ends."""
    replica = Replica()

    async def work(*_: object) -> None:
        raise RuntimeError("the handler broke")

    replica.server.work = work
    with pytest.raises(RuntimeError, match="the handler broke"):
        await replica.serve(replica.call(headers))
    assert counts(replica) == (0, 0, 0, 0)


async def test_cancellation_at_any_moment_frees_the_gate() -> None:
    """Cancelled while it reads, waits, runs, or waits for an empty engine before or after, it leaves nothing."""
    replica = Replica()
    async with anyio.create_task_group() as group:
        for headers in (EXCLUSIVE, SHARED, EXCLUSIVE):
            group.start_soon(replica.serve, replica.call(headers))
            await quiet()
        assert counts(replica) == (0, 1, 1, 1)
        group.cancel_scope.cancel()
    assert counts(replica) == (0, 0, 0, 0)
    replica.engine.unfinished = 1
    async with anyio.create_task_group() as group:
        group.start_soon(replica.serve, replica.call(EXCLUSIVE))
        with anyio.fail_after(1):
            while counts(replica) != (0, 1, 0, 0):
                await anyio.lowlevel.checkpoint()
        group.cancel_scope.cancel()
    assert counts(replica) == (0, 0, 0, 0)
    replica.engine.unfinished = 0
    after = replica.call(EXCLUSIVE)

    async def work(*_: object) -> None:
        replica.engine.unfinished = 1

    replica.server.work = work
    async with anyio.create_task_group() as group:
        group.start_soon(replica.serve, after)
        with anyio.fail_after(1):
            while after not in replica.server.started or not replica.engine.unfinished:
                await anyio.lowlevel.checkpoint()
        assert counts(replica) == (0, 1, 0, 0)
        group.cancel_scope.cancel()
    assert counts(replica) == (0, 0, 0, 0)
    half = replica.call(SHARED, data=None)
    async with anyio.create_task_group() as group:
        group.start_soon(replica.serve, half)
        await quiet()
        group.cancel_scope.cancel()
    assert counts(replica) == (0, 0, 0, 0)


@pytest.mark.parametrize("headers", [SHARED, EXCLUSIVE])
async def test_a_cancellation_is_passed_on(headers: dict[str, str]) -> None:
    """The server that ends a handler must learn that it ended by it; only a stall of our own finding is swallowed."""
    replica = Replica()
    task = start(replica.serve(replica.call(headers)))
    await quiet()
    task.cancel()
    await asyncio.wait({task})
    assert task.cancelled()


async def test_exclusive_waits_until_the_engine_is_empty() -> None:
    """What the gate cannot see (an abort on its way to the engine) is waited for before it runs."""
    replica = Replica()
    replica.engine.unfinished = 1
    call = replica.call(EXCLUSIVE)
    call.finish.set()
    async with anyio.create_task_group() as group:
        group.start_soon(replica.serve, call)
        with anyio.fail_after(1):
            while counts(replica) != (0, 1, 0, 0):
                await anyio.lowlevel.checkpoint()
        assert replica.server.started == []
        replica.engine.unfinished = 0
    assert call.status == 200


async def test_the_lease_lasts_until_the_engine_is_empty() -> None:
    """A request that goes on in the engine after its answer keeps the others out."""
    replica = Replica()

    async def work(*_: object) -> None:
        replica.engine.unfinished = 1

    replica.server.work = work
    async with anyio.create_task_group() as group:
        group.start_soon(replica.serve, replica.call(EXCLUSIVE))
        with anyio.fail_after(1):
            while not replica.server.started:
                await anyio.lowlevel.checkpoint()
        for _ in range(10):
            await anyio.lowlevel.checkpoint()
        assert counts(replica) == (0, 1, 0, 0)
        replica.engine.unfinished = 0
    assert counts(replica) == (0, 0, 0, 0)


@pytest.mark.parametrize("headers", [SHARED, EXCLUSIVE])
@pytest.mark.parametrize("version", ["2.3", "2.4"])
def test_a_client_that_stops_reading_loses_its_work(headers: dict[str, str], version: str) -> None:
    """As of any client that leaves, vLLM's generator ends at once, whose end is the abort, and so does the lease.

    Over Starlette's own streams in both their forms, which go by the version of ASGI that the server speaks.
    """
    replica = Replica(write_timeout=60.0, drain_deadline=30.0)

    async def tokens() -> AsyncIterator[bytes]:
        replica.engine.unfinished += 1
        try:
            while True:
                await asyncio.sleep(0.01)
                yield b"data: {}\n\n"
        finally:
            replica.engine.unfinished -= 1

    async def server(scope: Scope, receive: Receive, send: Send) -> None:
        await read(receive)
        await StreamingResponse(tokens(), media_type="text/event-stream")(scope, receive, send)

    async def work() -> None:
        replica.server.work = server
        call = replica.call(headers)
        call.scope["asgi"] = {"spec_version": version}
        call.takes = 3
        await replica.serve(call)
        loop = asyncio.get_running_loop()
        assert replica.engine.unfinished == 0
        assert 60.0 <= loop.time() < 61.0
        assert counts(replica) == (0, 0, 0, 0)
        replica.server.work = None
        after = replica.call(EXCLUSIVE)
        after.finish.set()
        await replica.serve(after)
        assert (after.status, after.headers["x-determinism-coresident-peak"]) == (200, "1")

    with asyncio.Runner(loop_factory=ClockLoop) as runner:
        runner.run(work())


async def test_an_engine_that_does_not_empty_refuses_isolation() -> None:
    """After the deadline it is a clear 503, never a run in company; and a client may leave before that."""
    replica = Replica(drain_deadline=0.02)
    replica.engine.unfinished = 1
    refused = replica.call(EXCLUSIVE)
    await replica.serve(refused)
    assert error_of(refused) == (503, "determinism_unavailable")
    assert refused.headers["retry-after"] == "1"
    assert "x-should-retry" not in refused.headers
    gone = replica.call(EXCLUSIVE)
    gone.wire.put_nowait(DISCONNECT)
    await replica.serve(gone)
    assert replica.server.started == []
    assert counts(replica) == (0, 0, 0, 0)


async def test_a_dead_engine_does_not_hold_the_gate() -> None:
    """Its unfinished requests never finish; the server's own error is the answer."""
    replica = Replica(drain_deadline=60)
    replica.engine.unfinished, replica.engine.errored = 3, True
    call = replica.call(EXCLUSIVE)
    call.finish.set()
    with anyio.fail_after(1):
        await replica.serve(call)
    assert replica.server.started == [call]


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, None),
        ({"x-determinism-admission": "exclusive"}, None),
        ({"x-determinism-admission": "nonsense"}, None),
        ({"x-determinism-guard-key": "wrong"}, None),
        ({**SHARED, "x-determinism-guard-key": "wrong"}, None),
        ({**EXCLUSIVE, "x-determinism-guard-key": "wrong"}, (403, "forbidden")),
        ({**EXCLUSIVE, "x-determinism-guard-key": ""}, (403, "forbidden")),
        ({**SHARED, "x-determinism-admission": "private"}, (400, "invalid_request")),
    ],
)
async def test_keys_decide_who_may_be_alone(headers: dict[str, str], expected: tuple[int, str] | None) -> None:
    """Who holds no key is admitted shared and told nothing; who shows a wrong one is refused what needs it."""
    replica = Replica()
    call = replica.call(headers)
    call.finish.set()
    async with anyio.create_task_group() as group:
        other = replica.call(SHARED)
        group.start_soon(replica.serve, other)
        await quiet()
        group.start_soon(replica.serve, call)
        await quiet()
        other.finish.set()
    if expected is None:
        assert call.status == 200
        assert "x-determinism-coresident-peak" not in call.headers
        assert other.headers["x-determinism-coresident-peak"] == "2"
    else:
        assert error_of(call) == expected


@pytest.mark.parametrize(("servers", "environ"), [(2, {"REPRISE_GUARD_KEY": KEY}), (None, None), (1, {})])
async def test_isolation_that_cannot_be_honoured_is_refused(
    servers: int | None, environ: dict[str, str] | None
) -> None:
    """Several API servers, an unknown number of them, or no key: 503 with the code that the gateway knows."""
    replica = Replica(environ)
    replica.state.vllm_config.parallel_config = SimpleNamespace(**({"_api_process_count": servers} if servers else {}))
    call = replica.call(EXCLUSIVE)
    await replica.serve(call)
    assert error_of(call) == (503, "determinism_unavailable")
    assert replica.server.started == []


@pytest.mark.parametrize("path", ["/v1/completions", "/invocations", "/score"])
@pytest.mark.parametrize(
    ("authorization", "status"),
    [
        (None, 401),
        ("Bearer wrong", 401),
        ("Basic one", 401),
        ("one", 401),
        ("Bearer one", 200),
        ("bearer two", 200),
    ],
)
async def test_the_engines_key_is_checked_before_anything_queues(
    authorization: str | None, status: int, path: str
) -> None:
    """Without it nobody takes a place, on no path that generates; each configured key opens."""
    replica = Replica()
    replica.state.args.api_key = ["one", "two"]
    running = replica.call({**EXCLUSIVE, "authorization": "Bearer one"})
    call = replica.call({} if authorization is None else {"Authorization": authorization}, path)
    async with anyio.create_task_group() as group:
        group.start_soon(replica.serve, running)
        await quiet()
        group.start_soon(replica.serve, call)
        await quiet()
        assert counts(replica)[2] == (1 if status == 200 else 0)
        assert call.status == (None if status == 200 else 401)
        running.finish.set()
        call.finish.set()
    assert call.status == status


async def test_the_key_of_the_environment_counts_where_no_flag_is_given() -> None:
    """VLLM_API_KEY is what vLLM itself falls back to."""
    replica = Replica({"VLLM_API_KEY": "sk"})
    call = replica.call({})
    await replica.serve(call)
    assert error_of(call) == (401, "invalid_api_key")


@pytest.mark.parametrize(
    ("kind", "method", "path"),
    [
        ("http", "GET", "/v1/models"),
        ("http", "GET", "/health"),
        ("http", "OPTIONS", "/v1/completions"),
        ("http", "GET", "/v1/completions"),
        ("http", "POST", "/tokenize"),
        ("websocket", "GET", "/elsewhere"),
    ],
)
async def test_whatever_puts_no_work_on_the_engine_passes(kind: str, method: str, path: str) -> None:
    """It does not queue behind an exclusive request, and its headers are as sent."""
    replica = Replica()
    running, passing = replica.call(EXCLUSIVE), replica.call(EXCLUSIVE, path, method=method, kind=kind)
    passing.finish.set()
    async with anyio.create_task_group() as group:
        group.start_soon(replica.serve, running)
        await quiet()
        with anyio.fail_after(1):
            await replica.serve(passing)
        running.finish.set()
    assert replica.server.scopes[-1]["headers"] == passing.scope["headers"]


@pytest.mark.parametrize("path", sorted(GENERATING_PATHS))
async def test_every_generating_path_queues_and_our_headers_stay_here(path: str) -> None:
    """Also below a root path; the key never reaches the server."""
    replica = Replica()
    call = replica.call({**EXCLUSIVE, "x-other": "kept"}, "/prefix" + path)
    call.scope["root_path"] = "/prefix"
    call.finish.set()
    await replica.serve(call)
    assert call.headers["x-determinism-coresident-peak"] == "1"
    assert replica.server.scopes[0]["headers"] == [(b"x-other", b"kept")]


@pytest.mark.parametrize("value", ["true", '"true"', "1", '"yes"', "1.0", "0", "[]"])
@pytest.mark.parametrize("headers", [{}, SHARED, EXCLUSIVE])
async def test_a_background_response_is_refused(headers: dict[str, str], value: str) -> None:
    """Its work would begin when nobody holds a ticket for it: 400 that names the field, however true is written."""
    replica = Replica()
    call = replica.call(headers, "/v1/responses", data=b'{"background":false,"\\u0062ackground":%s}' % value.encode())
    call.finish.set()
    await replica.serve(call)
    assert error_of(call) == (400, "invalid_request")
    error = json.loads(call.content)["error"]
    assert error["param"] == "background"
    assert "background must be false or absent" in error["message"]
    assert replica.server.started == []
    assert counts(replica) == (0, 0, 0, 0)


@pytest.mark.parametrize("data", [b"{}", b'{"background":false}', b'{"background":null}', b"[]", b'"background"'])
async def test_a_response_in_the_foreground_is_a_request_like_any_other(data: bytes) -> None:
    """The server gets the body that was looked at, and judges what is no object itself."""
    replica = Replica()
    call = replica.call(EXCLUSIVE, "/v1/responses", data=data)
    call.finish.set()
    await replica.serve(call)
    assert call.status == 200
    assert replica.server.bodies == [data]


@pytest.mark.parametrize("data", [b"", b'{"background":true', b"\xff", b"[" * 200_000])
async def test_a_response_that_cannot_be_read_is_refused(data: bytes) -> None:
    """What the guard cannot judge does not pass."""
    replica = Replica()
    call = replica.call(EXCLUSIVE, "/v1/responses", data=data)
    call.finish.set()
    await replica.serve(call)
    assert error_of(call) == (400, "invalid_request")
    assert replica.server.started == []


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/completions", "/score"])
async def test_a_body_that_is_too_large_is_refused(path: str) -> None:
    """413 on every path, and nothing of it reaches the server or the gate; the connection ends with it."""
    replica = Replica(buffer_limit=10)
    refused = replica.call({}, path, data=b'{"input":"0123456789"}')
    await replica.serve(refused)
    assert error_of(refused) == (413, "request_too_large")
    assert refused.headers["connection"] == "close"
    assert replica.server.started == []


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/completions", "/score"])
async def test_a_slow_body_holds_no_ticket(path: str) -> None:
    """It is read before it queues, so a client that never ends it keeps nobody waiting; and it may leave."""
    replica = Replica()
    slow = replica.call(EXCLUSIVE, path, data=None)
    slow.finish.set()
    slow.wire.put_nowait(body(b"{", more=True))
    async with anyio.create_task_group() as group:
        group.start_soon(replica.serve, slow)
        await quiet()
        assert counts(replica) == (0, 0, 0, 0)
        slow.wire.put_nowait(DISCONNECT)
    assert slow.sent == []
    assert replica.server.started == []


async def test_a_body_that_never_ends_is_refused_in_time() -> None:
    """408, and nothing reaches the server."""
    replica = Replica(body_timeout=0.01)
    slow = replica.call(EXCLUSIVE, data=None)
    slow.wire.put_nowait(body(b"{", more=True))
    await replica.serve(slow)
    assert error_of(slow) == (408, "request_timeout")
    assert replica.server.started == []


async def test_elsewhere_the_field_is_the_servers_business() -> None:
    """No other path knows it."""
    replica = Replica()
    call = replica.call(EXCLUSIVE, data=b'{"background":true}')
    call.finish.set()
    await replica.serve(call)
    assert call.status == 200


async def test_a_realtime_session_is_refused() -> None:
    """It may last for days, and no exclusive request could ever run; the reason says so."""
    replica = Replica()
    session = replica.call(EXCLUSIVE, "/v1/realtime", kind="websocket", data=None)
    await replica.serve(session)
    assert [(message["type"], message["code"]) for message in session.sent] == [("websocket.close", 1008)]
    assert "keep exclusive requests out" in session.sent[0]["reason"]
    assert replica.server.started == []


async def test_the_bodies_that_wait_are_bounded_together() -> None:
    """One too many is a 429 with a time to come back; when the others are gone there is room again."""
    replica = Replica(queue_bytes=5)
    running, refused, later = (replica.call(SHARED, data=b"123") for _ in range(3))
    async with anyio.create_task_group() as group:
        group.start_soon(replica.serve, running)
        await quiet()
        await replica.serve(refused)
        assert error_of(refused) == (429, "queue_full")
        assert refused.headers["retry-after"] == "1"
        running.finish.set()
    later.finish.set()
    await replica.serve(later)
    assert later.status == 200


async def test_a_full_queue_refuses_with_a_time_to_come_back() -> None:
    """429 in OpenAI's shape with Retry-After; who waits already is served."""
    replica = Replica(policy=GatePolicy(most_exclusive=1))
    running, waiting, refused = (replica.call(EXCLUSIVE) for _ in range(3))
    async with anyio.create_task_group() as group:
        for call in (running, waiting):
            group.start_soon(replica.serve, call)
            await quiet()
        await replica.serve(refused)
        assert error_of(refused) == (429, "queue_full")
        assert json.loads(refused.content)["error"]["type"] == "rate_limit_error"
        assert int(refused.headers["retry-after"]) >= 1
        running.finish.set()
        waiting.finish.set()
    assert replica.server.started == [running, waiting]


@pytest.mark.parametrize(
    ("headers", "default"), [({"x-determinism-queue-timeout": "0.01"}, 60.0), ({}, 0.01)], ids=["asked", "default"]
)
async def test_a_request_waits_as_long_as_its_gateway_says(headers: dict[str, str], default: float) -> None:
    """Then it is a 503 with Retry-After, off the queue, and was never run."""
    replica = Replica(queue_timeout=default)
    running, waiting = replica.call(EXCLUSIVE), replica.call({**SHARED, **headers})
    async with anyio.create_task_group() as group:
        group.start_soon(replica.serve, running)
        await quiet()
        await replica.serve(waiting)
        assert error_of(waiting) == (503, "queue_timeout")
        assert "retry-after" in waiting.headers
        assert counts(replica) == (0, 1, 0, 0)
        running.finish.set()
    assert replica.server.started == [running]


async def test_priority_and_caller_are_the_gateways_word() -> None:
    """With the guard key they order the queue; without it they are nothing but headers to drop."""
    replica = Replica(policy=GatePolicy(most_exclusive=6))
    replica.state.args.api_key = ["engine"]
    known = {"authorization": "Bearer engine"}
    named = {name: {**EXCLUSIVE, **known, "x-determinism-caller": name} for name in "ab"}
    first, second, third, fourth = (replica.call(named["a"]) for _ in range(4))
    other, urgent = replica.call(named["b"]), replica.call({**named["b"], "x-determinism-priority": "-5"})
    calls = (first, second, third, fourth, other, urgent)
    async with anyio.create_task_group() as group:
        for call in calls:
            group.start_soon(replica.serve, call)
            await quiet()
        too_many = replica.call(named["a"])
        await replica.serve(too_many)
        for call in calls:
            call.finish.set()
    assert error_of(too_many) == (429, "queue_full")
    assert replica.server.started == [first, second, third, fourth, urgent, other]
    spoof = replica.call({**known, "x-determinism-priority": "nonsense", "x-determinism-caller": "a"})
    spoof.finish.set()
    await replica.serve(spoof)
    assert spoof.status == 200
    assert replica.server.scopes[-1]["headers"] == [(b"authorization", b"Bearer engine")]


async def test_where_no_key_is_checked_all_callers_are_one() -> None:
    """Names made from keys that anybody can invent must not fill the queue of the others."""
    replica = Replica(policy=GatePolicy(most_exclusive=6))
    calls = [replica.call({**EXCLUSIVE, "x-determinism-caller": f"invented {number}"}) for number in range(5)]
    async with anyio.create_task_group() as group:
        for call in calls[:4]:
            group.start_soon(replica.serve, call)
            await quiet()
        await replica.serve(calls[4])
        for call in calls:
            call.finish.set()
    assert error_of(calls[4]) == (429, "queue_full")
    assert [call.status for call in calls[:4]] == [200] * 4


@pytest.mark.parametrize(
    "headers",
    [
        {"x-determinism-priority": "high"},
        {"x-determinism-priority": "9" * 30},
        {"x-determinism-queue-timeout": "soon"},
        {"x-determinism-queue-timeout": "-1"},
        {"x-determinism-queue-timeout": "nan"},
    ],
)
async def test_a_gateway_that_sends_nonsense_is_told(headers: dict[str, str]) -> None:
    """400, not a guess."""
    replica = Replica()
    call = replica.call({**SHARED, **headers})
    await replica.serve(call)
    assert error_of(call) == (400, "invalid_request")


@pytest.mark.parametrize("headers", [SHARED, EXCLUSIVE, {}])
async def test_a_client_that_stops_reading_is_given_up(headers: dict[str, str]) -> None:
    """A frozen gateway holds the replica no longer than `write_timeout`: its handler is cancelled, the gate freed."""
    replica = Replica(write_timeout=0.01)
    call = replica.call(headers)
    call.finish.set()
    cancelled = anyio.Event()

    async def stuck(_: Message) -> None:
        try:
            await anyio.sleep_forever()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    with anyio.fail_after(5):
        await replica.app(call.scope, call.wire.get, stuck)
    assert cancelled.is_set()
    assert counts(replica) == (0, 0, 0, 0)


async def test_an_engine_of_one_sequence_admits_one_at_a_time() -> None:
    """All are alone by construction, in the order of coming, with no drain; a gateway is told the peak of 1."""
    replica = Replica()
    replica.one_sequence_at_a_time()
    replica.engine.unfinished = 0
    first, second, third = replica.call(SHARED), replica.call({}), replica.call(EXCLUSIVE)
    async with anyio.create_task_group() as group:
        for call in (first, second, third):
            group.start_soon(replica.serve, call)
            await quiet()
        assert counts(replica) == (0, 1, 0, 2)
        for call in (first, second, third):
            call.finish.set()
    assert replica.server.started == [first, second, third]
    assert first.headers["x-determinism-coresident-peak"] == third.headers["x-determinism-coresident-peak"] == "1"


async def test_an_engine_of_one_sequence_needs_no_single_api_server() -> None:
    """With several, each has its own gate, and the engine still runs one sequence at a time."""
    replica = Replica()
    replica.one_sequence_at_a_time()
    replica.state.vllm_config.parallel_config = SimpleNamespace(_api_process_count=4)
    call = replica.call(EXCLUSIVE)
    call.finish.set()
    await replica.serve(call)
    assert call.status == 200


async def test_the_interval_log_tells_who_ran_when() -> None:
    """Trusted requests by their id, others without; times in order; what runs has no end yet."""
    replica = Replica()
    named = replica.call({**EXCLUSIVE, "x-request-id": "r1"})
    spoof = replica.call({"x-request-id": "r1"})
    running = replica.call({**SHARED, "x-request-id": "r2"})
    for call in (named, spoof):
        call.finish.set()
        await replica.serve(call)
    async with anyio.create_task_group() as group:
        group.start_soon(replica.serve, running)
        await quiet()
        status, page = await replica.ask("/reprise/admissions", SHARED)
        running.finish.set()
    assert (status, page["first"], page["next"]) == (200, 1, 4)
    rows = page["admissions"]
    assert [(row["sequence"], row["request"], row["admission"], row["peak"]) for row in rows] == [
        (1, "r1", "exclusive", 1),
        (2, None, "shared", 1),
        (3, "r2", "shared", 1),
    ]
    for row in rows:
        times = [row[name] for name in ("asked_us", "granted_us", "started_us")]
        assert times == sorted(times)
        assert row["epoch"] == page["epoch"]
    assert rows[0]["ended_us"] >= rows[0]["started_us"]
    assert rows[2]["ended_us"] is None
    one = (await replica.ask("/reprise/admissions?request=r1", SHARED))[1]["admissions"]
    assert [row["sequence"] for row in one] == [1]
    rest = (await replica.ask("/reprise/admissions?after=1&limit=1", SHARED))[1]["admissions"]
    assert [row["sequence"] for row in rest] == [2]


async def test_the_interval_log_is_bounded() -> None:
    """The oldest go; the numbers tell that they did."""
    replica = Replica(admissions=2)
    for _ in range(3):
        call = replica.call(SHARED)
        call.finish.set()
        await replica.serve(call)
    page = (await replica.ask("/reprise/admissions", SHARED))[1]
    assert (page["kept"], page["first"], page["next"]) == (2, 2, 4)
    assert [row["sequence"] for row in page["admissions"]] == [2, 3]


@pytest.mark.parametrize(
    ("query", "param"), [("after=x", "after"), ("limit=-1", "limit"), ("after=\u0661", "after"), ("since=1", "since")]
)
async def test_the_interval_log_names_a_bad_parameter(query: str, param: str) -> None:
    """400 in OpenAI's shape; and without the guard key nothing is told at all."""
    replica = Replica()
    status, page = await replica.ask(f"/reprise/admissions?{query}", SHARED)
    assert (status, page["error"]["param"]) == (400, param)
    assert (await replica.ask("/reprise/admissions", {}))[0] == 403
