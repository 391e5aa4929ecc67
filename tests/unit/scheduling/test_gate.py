"""The gate's async shell and its edges."""

import asyncio

import anyio
import pytest
from anyio import wait_all_tasks_blocked

from app.scheduling.gate import Admission, Gate, GateStatistics
from tests.support.running import start

pytestmark = pytest.mark.anyio

IDLE = GateStatistics(shared=0, exclusive=0, waiting_shared=0, waiting_exclusive=0)


async def test_exclusive_waits_for_the_drain_and_holds_newcomers() -> None:
    """An exclusive lease begins when the shared ones have ended; shared ones that come later wait for its end."""
    gate = Gate()
    order: list[str] = []
    first = await gate.acquire(Admission.SHARED)

    async def run(name: str, admission: Admission) -> None:
        async with gate.lease(admission):
            order.append(name)

    async with anyio.create_task_group() as group:
        group.start_soon(run, "exclusive", Admission.EXCLUSIVE)
        await wait_all_tasks_blocked()
        group.start_soon(run, "shared", Admission.SHARED)
        await wait_all_tasks_blocked()
        assert order == []
        gate.release(first)

    assert order == ["exclusive", "shared"]
    assert gate.statistics() == IDLE


async def test_cancelled_while_waiting_leaves_nothing() -> None:
    """A ticket whose owner is cancelled in the queue is gone, and those behind it move up."""
    gate = Gate()
    holder = await gate.acquire(Admission.EXCLUSIVE)
    waiter = start(gate.acquire(Admission.EXCLUSIVE))
    await wait_all_tasks_blocked()

    waiter.cancel()
    await asyncio.gather(waiter, return_exceptions=True)
    gate.release(holder)

    assert gate.statistics() == IDLE


async def test_granted_then_cancelled_hands_on() -> None:
    """Cancelled between grant and wake-up, the turn goes to the next in line."""
    gate = Gate()
    holder = await gate.acquire(Admission.EXCLUSIVE)
    unlucky = start(gate.acquire(Admission.EXCLUSIVE))
    lucky = start(gate.acquire(Admission.EXCLUSIVE))
    await wait_all_tasks_blocked()

    gate.release(holder)
    unlucky.cancel()
    ticket = await lucky

    assert ticket.granted
    assert unlucky.cancelled()
    gate.release(ticket)
    assert gate.statistics() == IDLE


async def test_a_cancelled_exclusive_opens_the_door() -> None:
    """Shared tickets held back by a waiting exclusive one run when it leaves the queue."""
    gate = Gate()
    running = await gate.acquire(Admission.SHARED)
    exclusive = start(gate.acquire(Admission.EXCLUSIVE))
    await wait_all_tasks_blocked()
    shared = start(gate.acquire(Admission.SHARED))
    await wait_all_tasks_blocked()
    assert not shared.done()

    exclusive.cancel()
    ticket = await shared

    assert ticket.peak == 2
    gate.release(ticket)
    gate.release(running)
    assert gate.statistics() == IDLE


async def test_one_drain_serves_a_run_of_exclusive_tickets() -> None:
    """Exclusive tickets that wait together run back to back up to `exclusive_run`, then shared ones have their turn."""
    gate = Gate(exclusive_run=2)
    order: list[str] = []
    holder = await gate.acquire(Admission.SHARED)

    async def run(name: str, admission: Admission) -> None:
        async with gate.lease(admission):
            order.append(name)

    async with anyio.create_task_group() as group:
        for name in ("x1", "x2", "x3"):
            group.start_soon(run, name, Admission.EXCLUSIVE)
            await wait_all_tasks_blocked()
        group.start_soon(run, "s1", Admission.SHARED)
        await wait_all_tasks_blocked()
        gate.release(holder)

    assert order == ["x1", "x2", "s1", "x3"]


async def test_an_exception_in_the_block_ends_the_lease() -> None:
    """The lease ends with its block, however that ends."""
    gate = Gate()

    with pytest.raises(ValueError, match="inside"):
        async with gate.lease(Admission.EXCLUSIVE):
            raise ValueError("inside")

    assert gate.statistics() == IDLE


def test_a_run_of_none_is_refused() -> None:
    """A gate that would never admit exclusive tickets cannot be made."""
    with pytest.raises(ValueError, match="exclusive_run"):
        Gate(exclusive_run=0)
