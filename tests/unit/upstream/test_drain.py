"""The proof that an engine is empty, by its own word, whoever loses patience meanwhile."""

import asyncio
import math
from pathlib import Path

import anyio
import pytest
from anyio import wait_all_tasks_blocked

from app.errors import UpstreamUnavailable
from app.upstream.client import UpstreamClient
from app.upstream.drain import DrainProof, requests_in_flight
from app.upstream.replica import Replica
from tests.support.running import running_gateway, start
from tests.support.scripted import ScriptedVllm

pytestmark = pytest.mark.anyio

PAGE = """# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0"} 2.0
vllm:num_requests_running{engine="1"} 1.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0"} 1.0
"""


@pytest.mark.parametrize(
    ("page", "expected"),
    [(PAGE, 4), (PAGE.replace("2.0", "0").replace("1.0", "0"), 0), ("", math.inf), ("{", math.inf)],
)
def test_running_and_waiting_count(page: str, expected: float) -> None:
    """Both, summed over engines; a page that does not say is not an empty engine."""
    assert requests_in_flight(page) == expected


async def test_it_asks_until_the_engine_is_empty(upstream: ScriptedVllm) -> None:
    """Empty now is drained; not empty in time is not, nor one that is lost; one that is not there is an error."""
    replica, nobody = Replica.at(upstream.url), Replica.at("http://127.0.0.1:9")
    async with UpstreamClient(connect=1, first_byte=1, idle=1) as client:
        proof = DrainProof(client, timeout=1, api_key="k")
        assert await proof.drained(replica, deadline=5, interval=0)
        upstream.waiting_elsewhere = 1
        assert not await proof.drained(replica, deadline=0.05, interval=0)
        assert not await proof.drained(replica, deadline=60, interval=0, lost=lambda: True)
        with pytest.raises(UpstreamUnavailable):
            await proof.drained(nobody, deadline=5, interval=0)


async def test_callers_that_leave_cost_it_nothing(upstream: ScriptedVllm) -> None:
    """Cancelled at any moment hundreds of times, the next question is answered and no connection is left over."""
    replica = Replica.at(upstream.url)
    upstream.waiting_elsewhere = 1
    async with UpstreamClient(connect=1, first_byte=1, idle=1) as client:
        proof = DrainProof(client, timeout=1, api_key=None)
        for turns in range(300):
            asking = [start(proof.drained(replica, deadline=60, interval=0)) for _ in range(4)]
            for _ in range(turns % 17):
                await anyio.lowlevel.checkpoint()
            for each in asking:
                each.cancel()
            await asyncio.wait(asking)
        await wait_all_tasks_blocked()
        upstream.waiting_elsewhere = 0
        assert await proof.drained(replica, deadline=5, interval=0)


async def test_the_replica_stays_healthy_however_many_leave(upstream: ScriptedVllm, tmp_path: Path) -> None:
    """The prober's own client is never cancelled by a caller, so probes go on."""
    async with running_gateway(tmp_path, upstream.url, probe_timeout=1) as gateway:
        upstream.waiting_elsewhere = 1
        for _ in range(150):
            async with gateway.connection() as (_, writer):
                body = b'{"model":"m","determinism":"isolated"}'
                writer.write(
                    b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body) + body
                )
                while not (await gateway.get("/readyz")).json()["replicas"][0]["leases"]:
                    pass
                writer.transport.abort()
            while (await gateway.get("/readyz")).json()["replicas"][0]["leases"]:
                pass
        upstream.waiting_elsewhere = 0
        assert (await gateway.post({"model": "m", "determinism": "isolated"})).status == 200
        assert (await gateway.get("/readyz")).json()["replicas"][0]["problem"] is None
