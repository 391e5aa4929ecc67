"""Thousands of clients that leave, and what that costs the gateway: leases, sockets, descriptors, memory."""

import asyncio
import random
import secrets
import time
from collections import Counter
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.support.departures import PHASES, Departures, Stage, until
from tests.support.fleet import descriptors, gateway, resident_bytes, running
from tests.support.guarded import GuardedVllm, serving
from tests.support.intervals import Ending, Interval, overlaps, read_log
from tests.support.running import RunningGateway
from tests.support.storm import Say

MODES: Final = ("standard", "isolated")
DESCRIPTORS: Final = 5
MEMORY: Final = 20 * 2**20
SOCKETS_SECONDS: Final = 5.0
NOTICE_SECONDS: Final = 0.25

_BATCH: Final = 48
_WARMING: Final = 300
_NEXT: Final = 50
_QUIET: Final = 6.0
"""Seconds after which no idle connection is kept any more."""

_PATIENCE: Final = 10.0
_SETTINGS: Final = {"REPRISE_PROBE_INTERVAL": "0.5"}


@dataclass
class Footprint:
    """What a gateway process holds. ``sockets``: its connections as the upstream counts them."""

    sockets: int
    descriptors: int
    memory: int


@dataclass
class Cost:
    """What the clients of one stage cost. ``sockets_after``: seconds until the upstream saw its idle count again."""

    before: Footprint
    after: Footprint
    sockets_after: float
    leases: int
    next_ones: Counter[str]
    overlaps: int = 0


@dataclass
class Exodus:
    """All of it."""

    left: Departures = field(default_factory=Departures)
    costs: dict[str, Cost] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def broken(self) -> list[str]:
        """What was promised and not kept, in words. Timing and memory are not among it, see `over_budget`."""
        found = [f"{request} was executed for nobody" for request in self.left.for_nobody]
        for name, cost in self.costs.items():
            grown = cost.after.descriptors - cost.before.descriptors
            found += [f"{name}: {cost.leases} leases leaked"] if cost.leases else []
            found += [f"{name}: {grown:+d} file descriptors"] if abs(grown) > DESCRIPTORS else []
            found += [f"{name}: {cost.overlaps} overlaps of exclusive requests"] if cost.overlaps else []
            found += [f"{name}: the next ones got {cost.next_ones}"] if cost.next_ones != {"200": _NEXT} else []
        return found

    @property
    def over_budget(self) -> list[str]:
        """The figures of time and memory that were not reached, in words."""
        noticed = self.noticed(0.99)
        found = [f"the upstream noticed after {noticed:.3f} s at p99"] if noticed > NOTICE_SECONDS else []
        for name, cost in self.costs.items():
            grown = cost.after.memory - cost.before.memory
            found += [f"{name}: memory grew by {grown / 2**20:.1f} MiB"] if grown > MEMORY else []
            late = cost.sockets_after > SOCKETS_SECONDS
            found += [f"{name}: idle sockets after {cost.sockets_after:.1f} s"] if late else []
        return found

    def noticed(self, part: float) -> float:
        """A quantile of the seconds from a client's leaving to its upstream's notice."""
        times = sorted(self.left.seconds)
        return times[min(len(times) - 1, int(part * len(times)))]


async def exodus(clients: int, seed: int, folder: Path, say: Say, *, warming: int = _WARMING) -> Exodus:
    """Let so many clients leave, spread over phases, modes and both kinds of upstream, and count what is left."""
    result, began = Exodus(), time.monotonic()
    draw = random.Random(f"{seed}/departures")  # noqa: S311 - choices must repeat, not be secret
    logs: dict[str, list[str]] = {"guarded": [], "stock": []}
    key = secrets.token_hex(16)
    async with AsyncExitStack() as stack:
        stages = []
        for number, (name, log) in enumerate(logs.items()):
            vllm = GuardedVllm(log.append, stock=name == "stock", environ={"REPRISE_GUARD_KEY": key})
            listening = await stack.enter_async_context(serving(vllm))
            member = gateway(number, [listening.url], folder, key, _SETTINGS)
            stages.append(Stage(name, listening, member, key if name == "guarded" else ""))
        await stack.enter_async_context(running([stage.gateway for stage in stages]))
        warmed = Departures()
        for stage in stages:
            await _let_leave(stage, warming, draw, warmed, say)
            await ask(stage, warming)
        await asyncio.sleep(_QUIET)
        result.left.unheard |= warmed.unheard
        before = {stage.name: _footprint(stage) for stage in stages}
        for stage in stages:
            await _let_leave(stage, clients // len(stages), draw, result.left, say)
            result.costs[stage.name] = await _cost(stage, before[stage.name])
    for name, log in logs.items():
        found = overlaps(read_log(log))
        # Without the guard a gateway gives its lease up with its client, and the next one runs beside an abort that is
        # still on its way: that ends the isolation of an answer that nobody gets.
        heard = [one for one in found if name == "guarded" or _heard(one.exclusive, result.left)]
        result.costs[name].overlaps = len(heard)
    result.seconds = time.monotonic() - began
    return result


def _heard(exclusive: Interval, left: Departures) -> bool:
    """Whether somebody got the answer."""
    return exclusive.ending is Ending.FINISHED and exclusive.request not in left.unheard


async def _let_leave(stage: Stage, clients: int, draw: random.Random, left: Departures, say: Say) -> None:
    """In batches, each of one phase and mode, in an order that the seed draws."""
    cells = [(phase, mode) for phase in PHASES for mode in MODES]
    batch = min(_BATCH, -(-clients // len(cells)))
    done = 0
    while done < clients:
        for phase, mode in draw.sample(cells, len(cells)):
            known = left.total
            await phase(stage, mode, min(batch, clients - done), draw, left)
            done += left.total - known
        say(f"{stage.name}: {done:,} of {clients:,} have left")
    await stage.idle()


async def _cost(stage: Stage, before: Footprint) -> Cost:
    """What is left once the last client has gone; then the next requests."""
    began = time.monotonic()
    with suppress(TimeoutError):
        await until(lambda: _sockets(stage, before.sockets), _PATIENCE)
    sockets_after = time.monotonic() - began
    with suppress(TimeoutError):
        await until(lambda: _few_descriptors(stage, before.descriptors + DESCRIPTORS), _PATIENCE)
    return Cost(
        before=before,
        after=_footprint(stage),
        sockets_after=sockets_after,
        leases=await stage.leases(),
        next_ones=await ask(stage, _NEXT),
    )


async def _sockets(stage: Stage, most: int) -> bool:
    return stage.upstream.connections <= most


async def _few_descriptors(stage: Stage, most: int) -> bool:
    return descriptors(stage.gateway.pid) <= most


async def ask(stage: Stage, requests: int) -> Counter[str]:
    """Ask in both modes, unary and streamed; what came, by status."""
    came: Counter[str] = Counter()
    for number in range(requests):
        body = {"model": "m", "determinism": MODES[number % 2], "stream": number % 4 > 1}
        answer = await RunningGateway(stage.gateway.port).post(body)
        came[str(answer.status) if answer.complete else f"{answer.status}, cut"] += 1
    return came


def _footprint(stage: Stage) -> Footprint:
    pid = stage.gateway.pid
    return Footprint(stage.upstream.connections, descriptors(pid), resident_bytes(pid))
