"""Nothing is executed twice: POSTs through a gateway whose connections to two replicas break in every way.

The replicas write down what they execute (`tests.support.guarded`); the proxies between count what they were sent.
"""

import asyncio
import json
import random
import time
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.support.chaos import Fault, FaultProxy
from tests.support.guarded import GuardedVllm, serving
from tests.support.intervals import executed_twice, overlaps, read_log
from tests.support.running import Answer, RunningGateway, running_gateway
from tests.support.storm import Say

PATIENCE: Final = 0.25
"""Seconds that the gateway waits for an answer, or for its next piece."""

_DELAY: Final = 0.4
_CLOSE_AT_ONCE: Final = 0.03
_CLIENTS: Final = 32
_REFUSAL: Final = (0.05, 0.3)
_CALM: Final = (0.2, 0.8)
_SAY: Final = 1000

_WEIGHTS: Final = {
    **dict.fromkeys(Fault, 10),
    Fault.NONE: 5,
    # They cost the gateway's whole patience.
    Fault.LATE: 3,
    Fault.SILENT: 3,
}

_FATAL: Final = frozenset(Fault) - {Fault.NONE, Fault.TRICKLE, Fault.STALE}
"""Faults under which no whole answer can come."""


@dataclass
class Count:
    """What became of the POSTs.

    ``faulted``: those that a fault met, refused and closed connections not counted; ``executed``: those that an engine
    began. The lists hold what must not be, in words.
    """

    posts: int = 0
    faulted: int = 0
    executed: int = 0
    twice: list[str] = field(default_factory=list)
    sent_twice: list[str] = field(default_factory=list)
    overlaps: list[str] = field(default_factory=list)
    misshapen: list[str] = field(default_factory=list)
    false_success: list[str] = field(default_factory=list)
    outcomes: Counter[str] = field(default_factory=Counter)
    struck: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0

    @property
    def broken(self) -> dict[str, list[str]]:
        """What was promised and not kept."""
        kinds = ("twice", "sent_twice", "overlaps", "misshapen", "false_success")
        return {kind: found for kind in kinds if (found := getattr(self, kind))}


async def at_most_once(faulted: int, seed: int, folder: Path, say: Say) -> Count:
    """Send POSTs until a fault has met so many of them, and count."""
    count, began = Count(), time.monotonic()
    logs: list[list[str]] = [[], []]
    async with AsyncExitStack() as stack:
        proxies = []
        for number, log in enumerate(logs):
            vllm = GuardedVllm(log.append, environ={"REPRISE_GUARD_KEY": "key"})
            listening = await stack.enter_async_context(serving(vllm))
            proxy = FaultProxy(listening.url, delay=_DELAY, close_at_once=_CLOSE_AT_ONCE, seed=f"{seed}/proxy-{number}")
            proxies.append(await stack.enter_async_context(proxy.serve()))
        urls = [proxy.url for proxy in proxies]
        gateway = await stack.enter_async_context(
            running_gateway(folder, *urls, guard_key="key", first_byte_timeout=PATIENCE, idle_timeout=PATIENCE)
        )
        await _send_all(gateway, proxies, faulted, seed, count, say)
    _count(count, logs, proxies)
    count.seconds = time.monotonic() - began
    return count


async def _send_all(
    gateway: RunningGateway, proxies: list[FaultProxy], faulted: int, seed: int, count: Count, say: Say
) -> None:
    over = asyncio.Event()

    def struck() -> int:
        return sum(proxy.struck[fault] for proxy in proxies for fault in Fault)

    async def client(number: int) -> None:
        draw = random.Random(f"{seed}/client-{number}")  # noqa: S311 - choices must repeat, not be secret
        asked = 0
        while struck() < faulted:
            asked += 1
            await _post(gateway, f"c{number}-{asked}", draw, count)
            if count.posts % _SAY == 0:
                say(f"{count.posts:,} POSTs, {struck():,} of {faulted:,} faults")

    async def refusals() -> None:
        draw = random.Random(f"{seed}/refusals")  # noqa: S311 - as above
        while not over.is_set():
            await asyncio.sleep(draw.uniform(*_CALM))
            await draw.choice(proxies).refuse(draw.uniform(*_REFUSAL))

    async with asyncio.TaskGroup() as group:
        refusing = group.create_task(refusals())
        async with asyncio.TaskGroup() as clients:
            for number in range(_CLIENTS):
                clients.create_task(client(number))
        over.set()
        await refusing


async def _post(gateway: RunningGateway, request: str, draw: random.Random, count: Count) -> None:
    fault = draw.choices(list(_WEIGHTS), list(_WEIGHTS.values()))[0]
    exclusive, stream = draw.random() < 0.2, draw.random() < 0.5
    script = {"id": request, "exclusive": exclusive, "ms": draw.choice((0, 0, 2)), "pieces": 4}
    body: dict[str, Any] = {"model": "m", "stream": stream, "x_id": request, "x_fault": fault, "x_script": script}
    if exclusive:
        body["determinism"] = "isolated"
    answer = await gateway.post(body)
    count.posts += 1
    outcome = _judge(request, answer, count)
    count.outcomes[outcome] += 1
    if outcome == "200" and fault in _FATAL:
        count.false_success.append(f"{request}: a whole answer in spite of '{fault}'")


def _judge(request: str, answer: Answer, count: Count) -> str:
    """What came, in words; what is no OpenAI error where it should be one is noted."""
    if answer.status == 200 and answer.complete:
        return "200"
    try:
        if answer.status == 200:
            event = answer.body.rstrip().rpartition(b"\n\n")[2].removeprefix(b"data: ")
            error = json.loads(event)["error"]
        else:
            error = answer.error
        assert error.keys() == {"message", "type", "param", "code"}
        assert b"[DONE]" not in answer.body
    except (AssertionError, KeyError, TypeError, ValueError):
        count.misshapen.append(f"{request}: {answer.status} {answer.body[-300:]!r}")
        return f"{answer.status} misshapen"
    return f"{answer.status} {error['code']}{'' if answer.complete else ' (event in the stream)'}"


def _count(count: Count, logs: list[list[str]], proxies: list[FaultProxy]) -> None:
    engines = [read_log(log) for log in logs]
    count.executed = len({one.request for intervals in engines for one in intervals})
    count.twice = [f"{request} was executed {times} times" for request, times in executed_twice(*engines).items()]
    seen = sum((proxy.seen for proxy in proxies), Counter[str]())
    count.sent_twice = [f"{request} was sent {times} times" for request, times in seen.items() if times > 1]
    count.overlaps = [str(one) for intervals in engines for one in overlaps(intervals)]
    count.struck = sum((proxy.struck for proxy in proxies), Counter[str]())
    count.faulted = sum(count.struck[fault] for fault in Fault)
