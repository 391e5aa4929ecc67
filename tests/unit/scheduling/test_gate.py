"""The gate's async shell and its edges."""

import asyncio
import math
from typing import Any

import anyio
import pytest
from anyio import wait_all_tasks_blocked

from app.errors import QueueFull, QueueTimeout
from app.scheduling.gate import Gate, GatePolicy
from app.scheduling.ticket import Admission, Levels, Ticket
from tests.support.running import start

pytestmark = pytest.mark.anyio

SHARED, EXCLUSIVE = Admission.SHARED, Admission.EXCLUSIVE


class Clock:
    """Seconds that the test counts."""

    def __init__(self) -> None:
        self.now = 50.0

    def __call__(self) -> float:
        """The time."""
        return self.now


class Stage:
    """A gate, its clock, and the names of those who were granted, in order."""

    def __init__(self, **policy: Any) -> None:
        self.clock = Clock()
        self.gate = Gate(GatePolicy(**policy), clock=self.clock)
        self.order: list[str] = []

    def ask(self, name: str, admission: Admission, key: str = "", priority: int = 0) -> Ticket:
        """Someone comes."""
        return self.gate.enqueue(admission, lambda: self.order.append(name), key=key, priority=priority)

    def end(self, *tickets: Ticket, after: float = 0.0) -> None:
        """Each ends, one after the other, ``after`` seconds later."""
        for ticket in tickets:
            self.clock.now += after
            self.gate.release(ticket)


def is_idle(gate: Gate) -> bool:
    """Whether nobody runs and nobody waits."""
    said = gate.statistics()
    return said.shared == said.exclusive == said.waiting_shared == said.waiting_exclusive == 0


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
    assert is_idle(gate)


async def test_cancelled_while_waiting_leaves_nothing() -> None:
    """A ticket whose owner is cancelled in the queue is gone, and those behind it move up."""
    gate = Gate()
    holder = await gate.acquire(Admission.EXCLUSIVE)
    waiter = start(gate.acquire(Admission.EXCLUSIVE))
    await wait_all_tasks_blocked()

    waiter.cancel()
    await asyncio.gather(waiter, return_exceptions=True)
    gate.release(holder)

    assert is_idle(gate)


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
    assert is_idle(gate)


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
    assert is_idle(gate)


def test_one_drain_serves_all_that_wait_until_the_phase_is_over() -> None:
    """Exclusive tickets run back to back; after `phase_seconds` no further one begins while a shared one waits."""
    stage = Stage(phase_seconds=3.0)
    holder = stage.ask("s0", SHARED)
    exclusive = [stage.ask(name, EXCLUSIVE) for name in ("x1", "x2", "x3", "x4")]
    stage.ask("s1", SHARED)

    stage.end(holder)
    stage.end(*exclusive[:2], after=2.0)

    assert stage.order == ["s0", "x1", "x2", "s1"]


def test_the_phase_goes_on_while_nobody_else_waits() -> None:
    """Its bound is for the sake of shared tickets."""
    stage = Stage(phase_seconds=3.0)
    exclusive = [stage.ask(name, EXCLUSIVE) for name in ("x1", "x2", "x3")]
    stage.end(*exclusive[:2], after=9.0)
    assert stage.order == ["x1", "x2", "x3"]


def test_the_window_of_shared_tickets_is_in_proportion_to_the_phase() -> None:
    """With a share of 1/4, a phase of 2 s is followed by 6 s in which exclusive tickets gather behind shared ones."""
    stage = Stage(exclusive_share=0.25)
    first, shared = stage.ask("x1", EXCLUSIVE), stage.ask("s1", SHARED)
    stage.end(first, after=2.0)
    stage.clock.now += 5.9
    waiting = [stage.ask("x2", EXCLUSIVE), stage.ask("x3", EXCLUSIVE)]
    late = stage.ask("s2", SHARED)
    assert stage.order == ["x1", "s1", "s2"]

    stage.clock.now += 0.1
    too_late = stage.ask("s3", SHARED)
    assert not too_late.granted
    stage.end(shared, late)
    stage.end(*waiting)

    assert stage.order == ["x1", "s1", "s2", "x2", "x3", "s3"]


def test_with_a_whole_share_shared_tickets_still_have_their_turn() -> None:
    """No window, but what waited during a phase runs before the next one."""
    stage = Stage(exclusive_share=1.0, phase_seconds=0.0)
    running, _, shared = stage.ask("x1", EXCLUSIVE), stage.ask("x2", EXCLUSIVE), stage.ask("s1", SHARED)
    stage.end(running)
    assert stage.order == ["x1", "s1"]
    stage.end(shared)
    assert stage.order == ["x1", "s1", "x2"]


def test_what_nobody_waited_behind_is_no_debt() -> None:
    """After hours of isolated work alone, a shared ticket's window is for the time that it waited itself."""
    stage = Stage(exclusive_share=0.25)
    for _ in range(100):
        stage.end(stage.ask("x", EXCLUSIVE), after=60.0)
    last = stage.ask("x", EXCLUSIVE)
    stage.clock.now += 60.0
    shared = stage.ask("s", SHARED)
    stage.end(last, after=2.0)
    stage.ask("next", EXCLUSIVE)
    stage.clock.now += 5.9
    within = stage.ask("within", SHARED)
    stage.clock.now += 0.2
    assert (shared.granted, within.granted, stage.ask("late", SHARED).granted) == (True, True, False)


def test_shared_tickets_that_gave_up_count_for_the_time_that_they_waited() -> None:
    """Contention that ended before the phase did is in the window, and the rest of the phase is not."""
    stage = Stage(exclusive_share=0.5)
    running = stage.ask("x", EXCLUSIVE)
    stage.end(stage.ask("gives up", SHARED), after=3.0)
    stage.end(running, after=20.0)
    shared = stage.ask("s", SHARED)
    stage.ask("next", EXCLUSIVE)
    stage.clock.now += 2.9
    assert stage.ask("within", SHARED).granted
    stage.clock.now += 0.2
    assert not stage.ask("late", SHARED).granted
    assert shared.granted


def test_a_caller_leaves_room_in_the_queue() -> None:
    """Alone he may have half of it; a newcomer always finds a place as long as there is one."""
    stage = Stage(most_exclusive=8)
    stage.ask("runs", EXCLUSIVE)
    for _ in range(4):
        stage.ask("a", EXCLUSIVE, key="a")
    with pytest.raises(QueueFull, match="4 exclusive requests wait for this replica, 4 of them of this caller"):
        stage.ask("a", EXCLUSIVE, key="a")
    for _ in range(2):
        stage.ask("b", EXCLUSIVE, key="b")
    with pytest.raises(QueueFull):
        stage.ask("b", EXCLUSIVE, key="b")
    stage.ask("c", EXCLUSIVE, key="c")


def test_an_idle_engine_is_taken_inside_the_window_on_sufferance() -> None:
    """Such a phase ends with its ticket when a shared one waits, and the window goes on as it was."""
    stage = Stage(exclusive_share=0.5, phase_seconds=100.0)
    first, brief = stage.ask("x1", EXCLUSIVE), stage.ask("s0", SHARED)
    stage.end(first, after=10.0)
    stage.end(brief, after=1.0)
    early, behind = stage.ask("x2", EXCLUSIVE), stage.ask("x3", EXCLUSIVE)
    shared = stage.ask("s1", SHARED)
    stage.end(early, after=4.0)
    assert stage.order == ["x1", "s0", "x2", "s1"]

    # The window of x1 ends 10 s after it; what x2 owes, 4 s, is over before.
    stage.clock.now += 4.9
    stage.ask("s2", SHARED)
    assert stage.order[-1] == "s2"
    stage.clock.now += 0.2
    assert not stage.ask("s3", SHARED).granted
    assert not behind.granted
    stage.gate.release(shared)


def test_what_a_phase_on_sufferance_owes_is_no_debt_without_end() -> None:
    """Where the engine falls empty between shared tickets, each such phase owes its own window and adds to no other."""
    stage = Stage(exclusive_share=0.25)
    for _ in range(100):
        running, shared = stage.ask("x", EXCLUSIVE), stage.ask("s", SHARED)
        stage.end(running, after=2.0)
        stage.end(shared, after=0.2)
    busy = stage.ask("s", SHARED)
    waiting = stage.ask("x", EXCLUSIVE)
    stage.clock.now += 5.7
    assert stage.ask("within", SHARED).granted
    stage.clock.now += 0.2
    assert not stage.ask("late", SHARED).granted
    assert busy.granted
    assert not waiting.granted


def test_a_caller_that_used_its_seconds_steps_aside() -> None:
    """Another caller's ticket goes first, and a phase of his alone gives way to shared tickets; then he goes on."""
    stage = Stage(key_seconds=3.0, phase_seconds=100.0)
    greedy = [stage.ask(f"a{n}", EXCLUSIVE, key="a") for n in range(4)]
    modest = stage.ask("b", EXCLUSIVE, key="b")
    stage.end(*greedy[:2], after=2.0)
    assert stage.order == ["a0", "a1", "b"]

    shared = stage.ask("s", SHARED)
    stage.end(modest, after=5.0)
    assert stage.order == ["a0", "a1", "b", "s"]
    stage.clock.now += 100.0
    stage.end(shared)
    assert stage.order == ["a0", "a1", "b", "s", "a2"]


def test_priority_orders_a_callers_own_tickets() -> None:
    """The lower number goes first, as in vLLM, equals in the order of coming; another caller keeps his turn."""
    stage = Stage()
    running = stage.ask("x", EXCLUSIVE)
    waiting = {name: stage.ask(name, EXCLUSIVE, priority=n) for name, n in (("c", 1), ("a", -1), ("d", 1), ("b", 0))}
    stage.end(running)
    stage.ask("other", EXCLUSIVE, key="other", priority=-9)
    for name in "abcd":
        stage.end(waiting[name])
    assert stage.order == ["x", "a", "b", "c", "d", "other"]


@pytest.mark.parametrize("admission", [SHARED, EXCLUSIVE])
def test_a_full_queue_refuses_and_says_when(admission: Admission) -> None:
    """One more than may wait is not queued; who leaves makes room; a ticket that need not wait is never refused."""
    stage = Stage(most_shared=1, most_exclusive=1)
    stage.end(stage.ask("x", EXCLUSIVE), after=4.0)
    running = stage.ask("x", EXCLUSIVE)
    waiting = stage.ask("first", admission)
    with pytest.raises(QueueFull, match=f"1 {admission} requests wait") as full:
        stage.ask("refused", admission)
    assert full.value.retry_after is not None
    assert full.value.retry_after >= 4.0

    stage.end(waiting)
    stage.ask("second", admission)
    stage.end(running)

    assert stage.order == ["x", "x", "second"]


async def test_patience_has_an_end() -> None:
    """A ticket that was not granted in time leaves the queue with an error that names the wait."""
    gate = Gate()
    holder = await gate.acquire(EXCLUSIVE)
    with pytest.raises(QueueTimeout, match=r"waited 0\.01 s for its shared turn"):
        await gate.acquire(SHARED, patience=0.01)
    gate.release(holder)
    assert is_idle(gate)
    assert (await gate.acquire(SHARED, patience=0.01)).granted


def test_estimates_follow_what_ran() -> None:
    """Nothing on an idle engine; the rest of the phase for a shared one; window, drain and those ahead otherwise."""
    stage = Stage(exclusive_share=0.5, phase_seconds=100.0)
    wait = stage.gate.expected_wait
    assert (wait(SHARED), wait(EXCLUSIVE)) == (0.0, 0.0)
    first, shared = stage.ask("x1", EXCLUSIVE), stage.ask("s1", SHARED)
    stage.end(first, after=4.0)
    assert (wait(SHARED), wait(EXCLUSIVE)) == (0.0, 4.0)
    waiting = [stage.ask(f"x{n}", EXCLUSIVE) for n in (2, 3)]
    stage.clock.now += 4.0
    stage.ask("s2", SHARED)
    stage.end(shared, after=2.0)
    assert wait(SHARED) == 8.0
    stage.clock.now += 1.0
    assert wait(SHARED) == 7.0
    stage.end(waiting[0], after=3.0)
    assert stage.gate.statistics().drain_seconds == 2.0
    assert stage.gate.statistics().exclusive_seconds == 8.0


def test_the_memory_of_levels_is_bounded_by_what_ran_at_once() -> None:
    """However many come and go one at a time, one entry tells their peak."""
    levels = Levels()
    for _ in range(100):
        assert levels.most_since(levels.enter(1)) == 1
    assert len(levels._entries) == 1


async def test_an_exception_in_the_block_ends_the_lease() -> None:
    """The lease ends with its block, however that ends."""
    gate = Gate()

    with pytest.raises(ValueError, match="inside"):
        async with gate.lease(Admission.EXCLUSIVE):
            raise ValueError("inside")

    assert is_idle(gate)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("exclusive_share", 0.0),
        ("exclusive_share", 1.1),
        ("phase_seconds", -1.0),
        ("phase_seconds", math.nan),
        ("key_seconds", 0.0),
        ("key_seconds", math.inf),
        ("most_shared", -1),
        ("most_exclusive", -1),
    ],
)
def test_a_policy_that_could_never_work_is_refused(name: str, value: float) -> None:
    """The error names the value's field."""
    with pytest.raises(ValueError, match=name):
        GatePolicy(**{name: value})  # type: ignore[arg-type]  # the counts are whole in the table
