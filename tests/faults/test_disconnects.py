"""Clients that leave in every phase, small; at full size it is `tests/benchmarks/disconnects.py`."""

import asyncio
from contextlib import suppress
from pathlib import Path

import pytest

from app.upstream.client import UpstreamClient
from app.upstream.drain import DrainProof
from app.upstream.replica import Replica
from tests.support.departures import until
from tests.support.exodus import exodus
from tests.support.guarded import GuardedVllm, serving
from tests.support.running import start

pytestmark = pytest.mark.anyio


async def test_clients_that_leave_leave_nothing_behind(tmp_path: Path) -> None:
    """No lease, no descriptor, no work for nobody, in either admission and before either kind of upstream."""
    result = await exodus(600, seed=3, folder=tmp_path, say=lambda _: None, warming=50)

    assert result.broken == []
    assert result.left.total == 600
    assert len(result.left.phases) == 11
    assert all(cost.after.sockets <= cost.before.sockets for cost in result.costs.values())
    # Generous, because the machine may be busy; the benchmark holds the figures.
    assert result.noticed(0.99) < 5


async def test_a_drain_proof_that_is_given_up_costs_no_connection() -> None:
    """Clients that leave while a stock replica is to run empty do not use up what the gateway reaches it by."""
    vllm = GuardedVllm(lambda _: None, stock=True)
    async with serving(vllm) as replica, UpstreamClient(connect=5, first_byte=5, idle=5) as client:
        proof = DrainProof(client, timeout=5, api_key=None)
        vllm.engine.phantoms = 1
        for number in range(1000):
            proving = start(proof.drained(Replica.at(replica.url), deadline=30, interval=0.02))
            await asyncio.sleep(number % 40 / 10_000)
            proving.cancel()
            with suppress(asyncio.CancelledError):
                await proving

        async def none_is_open() -> bool:
            return replica.connections == 0

        await until(none_is_open, seconds=20)  # idle ones are closed after 4 s
