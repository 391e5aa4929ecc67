"""A storm over gateways before a real vLLM with the guard; the engine itself is left alone."""

import asyncio
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from tests.support.fleet import Member, gateway, running
from tests.support.intervals import most_at_once, overlaps
from tests.support.storm import Faults, Say, Weather, blow, leaks, trials
from tests.support.visitors import Ask, Book, Habits, Render, Visitor
from tests.support.witness import Witness, contradictions

HABITS: Final = Habits(leave_within=1.0)
_TOKENS: Final = (2, 3, 4)
_PROMPTS: Final = ("The capital of France is", "Once upon a time", "def fibonacci(n):", "The laws of motion are")


@dataclass
class EngineAftermath:
    """What a storm left on a real engine.

    ``exclusive`` and ``shared``: leases that ended, by the guard's log. ``counted``: samples of vLLM's own gauge that
    say something of an exclusive one. ``zero_known_to``: microseconds. The lists hold what must not be, in words.
    """

    exclusive: int = 0
    shared: int = 0
    most_at_once: int = 0
    counted: int = 0
    samples: int = 0
    zero_known_to: float = 0.0
    overlaps: list[str] = field(default_factory=list)
    not_alone: list[str] = field(default_factory=list)
    contradicted: list[str] = field(default_factory=list)
    unproven: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    leaked: list[str] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0

    @property
    def broken(self) -> dict[str, list[str]]:
        """What was promised and not kept, or could not be proven."""
        kinds = ("overlaps", "not_alone", "contradicted", "unproven", "wrong", "leaked")
        return {kind: found for kind in kinds if (found := getattr(self, kind))}


async def engine_storm(weather: Weather, url: str, key: str, model: str, folder: Path, say: Say) -> EngineAftermath:
    """Run one before the engine at ``url``, and judge it."""
    began = time.monotonic()
    engine = Member("engine", urlsplit(url).port or 80, [], folder, {}, _always)
    gateways = [gateway(number, [engine.url], folder, key, {}) for number in range(weather.gateways)]
    book, after = Book(), EngineAftermath()
    render = _renderer(model)
    visitors = [
        Visitor(name, member.port, HABITS, book, render, seed=weather.seed, gateway=member is not engine)
        for name, member in _places(weather, gateways, engine)
    ]
    witness, faults, over = Witness(engine.url, key), Faults(weather, gateways, []), asyncio.Event()
    async with running(gateways):
        await witness.begin()
        async with asyncio.TaskGroup() as group:
            group.create_task(witness.watch(over))
            try:
                enough = {"wanted": weather.exclusive, "rounds": weather.rounds}
                await blow(visitors, faults, done=witness.exclusive_done, say=say, **enough)
                after.leaked = await leaks(gateways, [engine], key)
            finally:
                over.set()
        after.wrong = [*book.wrong, *await trials(gateways, render(Ask("trial", exclusive=False, stream=False)))]
    after.faults, after.outcomes = faults.struck, book.outcomes
    judge(after, witness, book.sent)
    after.seconds = time.monotonic() - began
    return after


async def _always(_: Member) -> bool:
    return True


def _places(weather: Weather, gateways: list[Member], engine: Member) -> list[tuple[str, Member]]:
    through = [(f"g{number}", gateways[number % len(gateways)]) for number in range(weather.visitors)]
    return [*through, *((f"d{number}", engine) for number in range(weather.passers_by))]


def _renderer(model: str) -> Render:
    def render(ask: Ask) -> dict[str, Any]:
        number = int(ask.id.rpartition("-")[2]) if "-" in ask.id else 0
        body: dict[str, Any] = {
            "model": model,
            "stream": ask.stream,
            "temperature": 0,
            "max_tokens": _TOKENS[number % len(_TOKENS)],
            "messages": [{"role": "user", "content": _PROMPTS[number % len(_PROMPTS)]}],
        }
        return {**body, "determinism": "isolated"} if ask.exclusive else body

    return render


def judge(after: EngineAftermath, witness: Witness, sent: Mapping[str, int]) -> None:
    """What the guard's log and vLLM's gauge say; ``sent`` as in `Book`."""
    log = witness.log
    leases = log.intervals()
    zero = log.earliest_zero({request: at / 1e3 for request, at in sent.items()}), log.latest_zero
    exclusive = [one for one in log.intervals("started_us") if one.exclusive]
    after.exclusive, after.shared = len(exclusive), len(leases) - len(exclusive)
    after.most_at_once = most_at_once(leases)
    after.samples, after.zero_known_to = len(witness.samples), zero[1] - zero[0]
    after.overlaps = [str(one) for one in overlaps(leases)]
    after.not_alone = log.not_alone
    after.counted, after.contradicted = contradictions(exclusive, witness.samples, zero)
    after.unproven = [
        *([f"{log.lost} entries of the guard's log were overwritten before they were read"] if log.lost else ()),
        *(["no sample of vLLM's gauge fell into an exclusive interval"] if not after.counted else ()),
        *(["the guard's clock runs apart from ours"] if zero[0] > zero[1] else ()),
    ]
