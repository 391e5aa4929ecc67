"""When canaries and shadows are sent, and which."""

import json
from dataclasses import replace
from itertools import count
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint

from app.determinism.mode import Mode
from app.determinism.plan import NO_WISH
from app.gateway import Call
from app.measuring.canaries import Canary
from app.measuring.schedule import Schedule
from app.measuring.shadows import Shadows
from app.observation.store import Origin

pytestmark = pytest.mark.anyio


class Sent:
    """Remembers what was sent; each waits until it is let go."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.go = anyio.Event()

    async def send(self, call: Call) -> None:
        """As the sender."""
        self.calls.append(call)
        await self.go.wait()


def call(number: int = 0) -> Call:
    """A client's call."""
    return Call("/v1/completions", b"%d" % number, ((b"authorization", b"Bearer k"),), NO_WISH, "id")


async def test_each_prompt_goes_through_each_mode_at_the_pace() -> None:
    """Before the next prompt's turn, to every model, one after the other, and again from the start."""
    sent, slept = Sent(), []
    sent.go.set()
    steps = count()

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        if next(steps) == 5:
            group.cancel_scope.cancel()
        await checkpoint()

    prompts = [Canary("/v1/completions", {"prompt": text}) for text in "ab"]
    modes = (Mode.STANDARD, Mode.ISOLATED)
    served: list[str] = []
    schedule = Schedule(sent, prompts, modes, interval=7.0, served=lambda: served, sleep=sleep)  # type: ignore[arg-type]  # a sender, as far as it goes

    async with anyio.create_task_group() as group:
        served += ["m"]
        group.start_soon(schedule.run)
    got: list[tuple[Any, ...]] = [(json.loads(each.body)["prompt"], each.wish.mode, each.origin) for each in sent.calls]
    canary = Origin.CANARY
    round_ = [(text, mode, canary) for text in "ab" for mode in modes]
    assert got == [*round_, round_[0]]
    assert slept == [7.0] * 6
    assert (schedule.interval, schedule.round, schedule.turns) == (7.0, 4, 5)


async def test_nobodys_turn_passes_while_nothing_is_served() -> None:
    """The first canary is the first one that is sent, however long the replicas take to come up."""
    sent = Sent()
    sent.go.set()
    steps = count()
    served: list[str] = []

    async def sleep(_seconds: float) -> None:
        step = next(steps)
        if step == 2:
            served.append("m")
        if step == 4:
            group.cancel_scope.cancel()
        await checkpoint()

    prompts = [Canary("/v1/completions", {"prompt": text}) for text in "abc"]
    schedule = Schedule(sent, prompts, [Mode.STANDARD], interval=1.0, served=lambda: served, sleep=sleep)  # type: ignore[arg-type]  # as above
    async with anyio.create_task_group() as group:
        group.start_soon(schedule.run)
    assert [json.loads(each.body)["prompt"] for each in sent.calls] == ["a", "b"]


async def test_nothing_is_sent_where_nothing_is_served() -> None:
    """A gateway without a healthy replica waits for one."""
    sent = Sent()
    steps = count()

    async def sleep(_seconds: float) -> None:
        if next(steps) == 3:
            group.cancel_scope.cancel()
        await checkpoint()

    schedule = Schedule(
        sent,  # type: ignore[arg-type]  # as above
        [Canary("/v1/completions", {})],
        [Mode.STANDARD],
        interval=1.0,
        served=list,
        sleep=sleep,
    )
    async with anyio.create_task_group() as group:
        group.start_soon(schedule.run)
    assert sent.calls == []


async def test_a_share_of_the_calls_is_asked_once_more() -> None:
    """By chance, in modes that cost the others nothing, under their own origin."""
    sent, chances = Sent(), iter([0.5, 0.09, 0.1])
    sent.go.set()
    shadows = Shadows(sent, rate=0.1, chance=lambda: next(chances), dropped=lambda: None)  # type: ignore[arg-type]  # as above
    async with anyio.create_task_group() as group:
        group.start_soon(shadows.run)
        for number, mode in enumerate([Mode.STANDARD, Mode.SEEDED, Mode.ISOLATED, Mode.STANDARD]):
            shadows.offer(call(number), mode)
        await anyio.wait_all_tasks_blocked()
        group.cancel_scope.cancel()
    assert [(each.body, each.origin) for each in sent.calls] == [(b"1", Origin.SHADOW)]
    assert sent.calls[0].headers == call().headers


async def test_too_many_are_dropped_and_counted() -> None:
    """One is under way, sixteen wait; nobody waits for any of them."""
    sent, dropped = Sent(), []
    shadows = Shadows(sent, rate=1.0, chance=lambda: 0.0, dropped=lambda: dropped.append(1))  # type: ignore[arg-type]  # as above
    async with anyio.create_task_group() as group:
        group.start_soon(shadows.run)
        shadows.offer(call(), Mode.STANDARD)
        await anyio.wait_all_tasks_blocked()
        for number in range(20):
            shadows.offer(call(number), Mode.STANDARD)
        assert (len(sent.calls), len(dropped)) == (1, 4)
        group.cancel_scope.cancel()


async def test_large_ones_are_dropped_where_others_wait() -> None:
    """Those that wait and the one under way hold 8 MiB at most; what was sent makes room again."""
    sent, dropped = Sent(), []
    shadows = Shadows(sent, rate=1.0, chance=lambda: 0.0, dropped=lambda: dropped.append(1))  # type: ignore[arg-type]  # as above
    large = replace(call(), body=b"x" * (3 * 2**20))
    async with anyio.create_task_group() as group:
        group.start_soon(shadows.run)
        for each in (large, large, large, call(1), replace(call(), body=b"x" * (8 * 2**20 + 1))):
            shadows.offer(each, Mode.STANDARD)
        await anyio.wait_all_tasks_blocked()
        assert (len(sent.calls), len(dropped)) == (1, 2)
        sent.go.set()
        await anyio.wait_all_tasks_blocked()
        shadows.offer(replace(call(), body=b"x" * (8 * 2**20)), Mode.STANDARD)
        await anyio.wait_all_tasks_blocked()
        assert ([len(each.body) >> 20 for each in sent.calls], len(dropped)) == ([3, 3, 0, 8], 2)
        group.cancel_scope.cancel()


async def test_a_rate_of_zero_asks_nobody() -> None:
    """Not even the dice."""

    def chance() -> float:
        raise AssertionError("nobody should ask")

    sent = Sent()
    shadows = Shadows(sent, rate=0.0, chance=chance, dropped=lambda: None)  # type: ignore[arg-type]  # as above
    shadows.offer(call(), Mode.STANDARD)
    assert sent.calls == []
