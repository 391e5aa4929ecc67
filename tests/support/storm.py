"""A storm over guarded upstreams: gateways that are killed and frozen, upstreams that restart, clients that leave.

The upstreams' own logs say afterwards whether an exclusive request was ever beside another one. What strikes, whom and
for how long is drawn from a seed; when exactly it meets a request is the machine's.
"""

import asyncio
import random
import secrets
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.support.fleet import PATIENCE, Member, gateway, running, upstream
from tests.support.intervals import Ending, begun_for_nobody, executed_twice, most_at_once, overlaps, read_log
from tests.support.running import RunningGateway
from tests.support.visitors import Book, Habits, Visitor, scripted

GRACE_NANOSECONDS: Final = 10 * 10**9
"""How long a request may still be on its way after its client has left: a gateway may have been frozen over it."""

_ON_GATEWAYS: Final = ("kill a gateway", "freeze a gateway", "freeze, then kill a gateway")
_ON_UPSTREAMS: Final = ("kill an upstream", "stop an upstream")

_HABITS: Final = Habits(flood=0.001)
_UPSTREAMS_PATIENCE: Final = {"REPRISE_WRITE_TIMEOUT": "0.5"}
"""Shorter than many a gateway is frozen, so that the guard gives up answers that nobody takes."""

_LOOK = 0.25
_SAY = 5.0

Say = Callable[[str], object]
"""Takes a line about how far it has come."""


@dataclass(frozen=True)
class Weather:
    """What is asked of a storm: ``exclusive`` executions, and every kind of fault at least ``rounds`` times.

    ``stock``: without the guard. ``calm`` and ``frozen``: the least and the most seconds between two faults, and that a
    gateway is frozen.
    """

    exclusive: int
    rounds: int = 1
    seed: int = 1
    gateways: int = 3
    upstreams: int = 2
    visitors: int = 24
    passers_by: int = 8
    stock: bool = False
    calm: tuple[float, float] = (0.2, 1.2)
    frozen: tuple[float, float] = (0.05, 1.5)


@dataclass
class Aftermath:
    """What a storm left.

    ``exclusive`` and ``shared``: executions that began and ended by the upstreams' own logs; ``cut``: exclusive ones
    that ended with their client or their process. The lists hold what must not be, in words.
    """

    exclusive: int = 0
    cut: int = 0
    shared: int = 0
    most_at_once: int = 0
    overlaps: list[str] = field(default_factory=list)
    twice: list[str] = field(default_factory=list)
    for_nobody: list[str] = field(default_factory=list)
    unwitnessed: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    leaked: list[str] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0

    @property
    def broken(self) -> dict[str, list[str]]:
        """What was promised and not kept."""
        kinds = ("overlaps", "twice", "for_nobody", "unwitnessed", "wrong", "leaked")
        return {kind: found for kind in kinds if (found := getattr(self, kind))}


class Faults:
    """Strikes, one fault after another; every kind has its turn before one comes again."""

    def __init__(self, weather: Weather, gateways: list[Member], upstreams: list[Member]) -> None:
        self.struck: Counter[str] = Counter()
        self._weather = weather
        self._targets = dict.fromkeys(_ON_GATEWAYS, gateways)
        if upstreams:
            self._targets |= dict.fromkeys(_ON_UPSTREAMS, upstreams)

    @property
    def rounds(self) -> int:
        """How often every kind has struck."""
        return min(self.struck[kind] for kind in self._targets)

    async def strike(self, over: asyncio.Event) -> None:
        """Go on until it is over; whatever was struck serves again then."""
        draw = random.Random(f"{self._weather.seed}/faults")  # noqa: S311 - a storm must repeat, not be secret
        while True:
            for kind in draw.sample(sorted(self._targets), len(self._targets)):
                await asyncio.sleep(draw.uniform(*self._weather.calm))
                if over.is_set():
                    return
                await self._strike(kind, draw.choice(self._targets[kind]), draw.uniform(*self._weather.frozen))
                self.struck[kind] += 1

    async def _strike(self, kind: str, member: Member, seconds: float) -> None:
        if "freeze" in kind:
            member.send(signal.SIGSTOP)
            await asyncio.sleep(seconds)
        if kind == "freeze a gateway":
            member.send(signal.SIGCONT)
            return
        await member.end(signal.SIGTERM if "stop" in kind else signal.SIGKILL)
        await member.start()
        await member.until_ready()


class Progress:
    """Counts the exclusive executions in the upstreams' logs while these grow."""

    def __init__(self, logs: list[Path]) -> None:
        self._read = dict.fromkeys(logs, 0)
        self._exclusive = 0

    def look(self) -> int:
        """Read on; the number of exclusive executions that have ended by themselves so far."""
        for log, read in self._read.items():
            with log.open("rb") as lines:
                lines.seek(read)
                new = lines.read()
            whole = new[: new.rfind(b"\n") + 1]
            self._read[log] = read + len(whole)
            self._exclusive += sum(line.startswith(b"e ") and b" x " in line for line in whole.splitlines())
        return self._exclusive


async def blow(
    visitors: list[Visitor], faults: Faults, *, wanted: int, rounds: int, done: Callable[[], int], say: Say
) -> None:
    """Let visitors come and faults strike until ``done`` counts ``wanted``. Raises TimeoutError when nothing moves."""
    over = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        for visitor in visitors:
            group.create_task(visitor.visit(over))
        group.create_task(faults.strike(over))
        try:
            await _until_enough(faults, wanted=wanted, rounds=rounds, done=done, say=say)
        finally:
            over.set()


async def _until_enough(faults: Faults, *, wanted: int, rounds: int, done: Callable[[], int], say: Say) -> None:
    began = said = moved = time.monotonic()
    count = 0
    while count < wanted or faults.rounds < rounds:
        await asyncio.sleep(_LOOK)
        now, before, count = time.monotonic(), count, done()
        moved = now if count > before else moved
        if now - moved > PATIENCE:
            raise TimeoutError(f"no exclusive request was served for {PATIENCE:g} s, after {count}")
        if now - said > _SAY:
            say(f"{count:,} of {wanted:,} exclusive, {faults.struck.total()} faults, {now - began:.0f} s")
            said = now


async def storm(weather: Weather, folder: Path, say: Say) -> Aftermath:
    """Run one, with its processes' state and logs in ``folder``, and judge it."""
    key, began = secrets.token_hex(16), time.monotonic()
    upstreams = [
        upstream(number, folder, key, _UPSTREAMS_PATIENCE, stock=weather.stock) for number in range(weather.upstreams)
    ]
    urls = [member.url for member in upstreams]
    gateways = [gateway(n, urls, folder, key, {"REPRISE_PROBE_INTERVAL": "0.2"}) for n in range(weather.gateways)]
    logs = [folder / f"{member.name}.executions" for member in upstreams]
    book, faults, after = Book(), Faults(weather, gateways, upstreams), Aftermath()
    visitors = [_visitor(f"g{n}", gateways[n % len(gateways)], weather, book) for n in range(weather.visitors)]
    visitors += [_visitor(f"d{n}", upstreams[n % len(upstreams)], weather, book) for n in range(weather.passers_by)]
    async with running([*upstreams, *gateways]):
        enough = {"wanted": weather.exclusive, "rounds": weather.rounds}
        await blow(visitors, faults, done=Progress(logs).look, say=say, **enough)
        after.leaked = await leaks(gateways, [] if weather.stock else upstreams, key)
        after.wrong = [*book.wrong, *await trials(gateways, {"model": "m"})]
    after.faults, after.outcomes = faults.struck, book.outcomes
    _judge(after, logs, book)
    after.seconds = time.monotonic() - began
    return after


def _visitor(name: str, member: Member, weather: Weather, book: Book) -> Visitor:
    through = member.name.startswith("gateway")
    return Visitor(name, member.port, _HABITS, book, scripted, seed=weather.seed, gateway=through)


def _judge(after: Aftermath, logs: list[Path], book: Book) -> None:
    """What the upstreams' own logs say of the storm."""
    engines = [read_log(log.read_text().splitlines()) for log in logs]
    everything = [one for intervals in engines for one in intervals]
    finished = {one.request for one in everything if one.ending is Ending.FINISHED}
    closed = [one for one in everything if one.ending in {Ending.FINISHED, Ending.ABORTED}]
    after.exclusive = sum(one.exclusive and one.ending is Ending.FINISHED for one in everything)
    after.cut = sum(one.exclusive for one in everything) - after.exclusive
    after.shared = sum(not one.exclusive for one in closed)
    after.most_at_once = max(map(most_at_once, engines))
    after.overlaps = [str(one) for intervals in engines for one in overlaps(intervals)]
    after.twice = [f"{request} was executed {times} times" for request, times in executed_twice(*engines).items()]
    lost = begun_for_nobody(everything, book.gone, GRACE_NANOSECONDS)
    after.for_nobody = [f"{one.request} began at {one.begin[0]}, after its client had gone" for one in lost]
    unseen = [request for request in book.answered if request not in finished]
    after.unwitnessed = [f"{request} was answered, and never executed to its end" for request in unseen]


async def leaks(gateways: list[Member], upstreams: list[Member], key: str) -> list[str]:
    """What is still held once nobody asks any more: leases of gateways and tickets of guards, in words."""
    deadline = time.monotonic() + PATIENCE
    while True:
        held = [text for member in gateways for text in await _leases(member)]
        for member in upstreams:
            page = await member.page("/reprise/posture", x_determinism_guard_key=key)
            held += _tickets(member.name, page)
        if not held or time.monotonic() > deadline:
            return held
        await asyncio.sleep(_LOOK)


async def _leases(member: Member) -> list[str]:
    """What a gateway's page and its metrics say that it still holds."""
    page = await member.page("/readyz")
    if not page:
        return [f"{member.name} does not answer"]
    counts = [f"{one['leases']} leases on {one['replica']}" for one in page["replicas"] if one["leases"]]
    lines = (await member.get("/metrics")).body.decode().splitlines()
    gauges = [line for line in lines if line.startswith("reprise_leases{") and not line.endswith(" 0.0")]
    return [f"{member.name}: {text}" for text in (*counts, *gauges)]


def _tickets(name: str, page: Any) -> list[str]:
    if not page or "gate" not in page:
        return [f"{name} does not tell of its gate"]
    counts = ("shared", "exclusive", "waiting_shared", "waiting_exclusive")
    return [f"{name}: {page['gate'][count]} {count}" for count in counts if page["gate"][count]]


async def trials(gateways: list[Member], body: dict[str, Any]) -> list[str]:
    """Ask every gateway in both admissions once more; what was not answered."""
    failed = []
    for member in gateways:
        for mode in ("isolated", "standard"):
            answer = await RunningGateway(member.port).post({**body, "determinism": mode})
            if answer.status != 200:
                failed.append(f"{member.name} answers {answer.status} to {mode} after the storm")
    return failed
