"""Isolation under faults, small; at full size it is `tests/benchmarks/isolation.py`."""

import asyncio
import json
import signal
from pathlib import Path

import pytest

from tests.support.engine_storm import engine_storm
from tests.support.fleet import gateway, running, upstream
from tests.support.running import CHAT, RunningGateway, request_bytes
from tests.support.storm import Weather, storm

pytestmark = pytest.mark.anyio


async def test_nothing_runs_beside_an_exclusive_request(tmp_path: Path) -> None:
    """Whatever is killed, frozen, stopped or cut; and nothing is lost, executed twice or left behind."""
    weather = Weather(exclusive=300, calm=(0.1, 0.4), frozen=(0.05, 0.4))
    after = await storm(weather, tmp_path, lambda _: None)

    assert after.broken == {}
    assert after.exclusive >= 300
    assert after.most_at_once > 1
    assert len(after.faults) == 5
    assert min(after.faults.values()) >= 1


async def test_without_the_guard_it_is_found_to_break(tmp_path: Path) -> None:
    """The same storm over stock upstreams, where each gateway has its own gate: what the guard prevents is seen."""
    weather = Weather(exclusive=100, rounds=0, passers_by=0, upstreams=1, stock=True)
    after = await storm(weather, tmp_path, lambda _: None)

    assert after.overlaps
    assert after.broken.keys() == {"overlaps"}


async def test_the_witnesses_of_a_real_engine(tmp_path: Path) -> None:
    """The run for a real vLLM, over a scripted one: the guard's log is read whole, and the gauge confirms it."""
    replica = upstream(0, tmp_path, "key", {}, ms=100.0)
    async with running([replica]):
        weather = Weather(exclusive=12, rounds=1, visitors=6, passers_by=2, calm=(0.1, 0.5), frozen=(0.1, 0.5))
        after = await engine_storm(weather, replica.url, "key", "m", tmp_path, lambda _: None)

    assert after.broken == {}
    assert after.exclusive >= 12
    assert after.shared >= 1
    assert after.counted >= 1
    assert after.most_at_once > 1


async def test_a_gateway_that_is_frozen_for_good(tmp_path: Path) -> None:
    """In the middle of a large isolated stream it holds its replica no longer than the guard's patience."""
    replica = upstream(0, tmp_path, "key", {"REPRISE_WRITE_TIMEOUT": "0.5"})
    gateways = [gateway(number, [replica.url], tmp_path, "key", {}) for number in range(2)]
    script = {"id": "stalled", "exclusive": True, "pieces": 256, "pad": 2**18}
    body = {"model": "m", "stream": True, "determinism": "isolated", "x_script": script}
    async with running([replica, *gateways]):
        reader, writer = await asyncio.open_connection("127.0.0.1", gateways[0].port)
        writer.write(request_bytes("POST", CHAT, json.dumps(body).encode(), {}))
        await reader.readuntil(b"data: ")
        gateways[0].send(signal.SIGSTOP)
        async with asyncio.timeout(30):  # the guard's default patience is twice that
            answer = await RunningGateway(gateways[1].port).post({"model": "m", "determinism": "isolated"})
        writer.transport.abort()

    assert (answer.status, answer.headers["x-determinism-coresident-peak"]) == (200, "1")
