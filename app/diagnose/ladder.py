"""Climbs the ladder on a server: rung by rung, round by round, as long as the budget lasts."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Final

from app.diagnose.discovery import Deployment, Found
from app.diagnose.rungs import LEAST_ROUNDS, Extent, Rung, Step, neighbour_tokens
from app.diagnose.sample import Sample
from app.diagnose.wire import Reply, Trouble, Wire
from app.probe.server import Clock

TROUBLES_ALLOWED: Final = 3
"""After so many requests of a rung without an answer it is given up."""

_BY_ITSELF: Final = frozenset({Rung.CACHE, Rung.KV})
_TOKENS_WHEN_LATE: Final = 6
"""Of an answer in a rung that came late; logprobs tell much in few."""

_CAUTION: Final = 0.9

_SPENT: Final = "the budget was spent"


@dataclass(slots=True)
class Record:
    """What a rung has brought so far.

    ``tokens`` are those of an answer, ``rounds`` complete ones; ``reason`` says why it was cut short.
    """

    tokens: int = 0
    samples: list[Sample] = field(default_factory=list)
    rounds: int = 0
    requests: int = 0
    seconds: float = 0.0
    reason: str | None = None
    troubles: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Climb:
    """How far to go.

    ``tokens`` are those of an answer; ``until`` is the clock's reading at which the last request may begin.
    """

    extent: Extent
    tokens: int
    until: float


class Ladder:
    """One climb. `records` may be read at any moment, also after a climb that was cancelled.

    ``wires`` are the server's, then each further replica's. ``watch`` is told of each request that is done.
    """

    def __init__(
        self, found: Found, replicas: tuple[Wire, ...], climb: Climb, *, clock: Clock, watch: Callable[[str], None]
    ) -> None:
        self._found = found
        self._wires = (found.wire, *replicas)
        self._climb = climb
        self._clock = clock
        self._watch = watch
        self._weight = 0.0
        self.records: dict[Rung, Record] = {}
        self.postures: dict[int, set[str]] = {}
        self.left_out: Counter[str] = Counter()
        """Answers that another replica than the first gave, by its name: they belong to no rung."""
        self.crowded = 0
        """Answers that shared the engine with more or fewer requests than their rung asks for, by its own count."""

    async def climb(self) -> None:
        """Climb all rungs, with the rounds that each needs. What goes wrong is in the records; raises nothing else."""
        for rung in self._climb.extent.rungs:
            record = self.records[rung] = Record(self._tokens(rung))
            for _ in range(LEAST_ROUNDS[rung]):
                if not await self._another(record, rung):
                    break

    async def look_closer(self, rungs: Collection[Rung], most: int) -> None:
        """More rounds of these, in turn, until there is no time for one or each has had ``most``. Raises as `climb`."""
        open_ = [rung for rung in self.records if rung in rungs and self.records[rung].reason is None]
        while open_:
            for rung in tuple(open_):
                record = self.records[rung]
                # Time for a whole round, by those before: half a round is worth little.
                until = self._climb.until - record.seconds / max(1, record.rounds)
                if record.rounds >= most or self._clock() > until or not await self._another(record, rung):
                    open_.remove(rung)

    async def _another(self, record: Record, rung: Rung) -> bool:
        """One more round; False when the rung has to be given up."""
        started = self._clock()
        try:
            whole = await self._round(record, rung, record.rounds)
        finally:
            record.seconds += self._clock() - started
        record.rounds += whole
        return whole

    async def _round(self, record: Record, rung: Rung, number: int) -> bool:
        """One round; False when the rung has to be given up."""
        found = self._found
        for step in self._climb.extent.round(rung, number, found.material, found.salts):
            if self._clock() > self._climb.until:
                record.reason = _SPENT
                return False
            record.requests += 1
            try:
                reply = await self._ask(step, record.tokens)
            except Trouble as exc:
                record.troubles.append(exc.reason)
                if len(record.troubles) >= TROUBLES_ALLOWED:
                    record.reason = exc.reason
                    return False
            else:
                self._take(record, step, reply)
            self._weight += step.weight * record.tokens
            self._watch(rung.value)
        if rung is Rung.CACHE and _uncached(record.samples):
            record.reason = "nothing came from a prefix cache: it is off, or these prompts are too short for it"
            return False
        return True

    def _tokens(self, rung: Rung) -> int:
        """Tokens of a rung's answers: fewer than planned where the rungs so far took longer than planned.

        Only where a rung's answers are compared with each other alone: the others must be as long as those given alone.
        """
        climb = self._climb
        spent = sum(record.seconds for record in self.records.values())
        if rung not in _BY_ITSELF or not self._weight or not spent:
            return climb.tokens
        ahead = climb.extent.rungs[climb.extent.rungs.index(rung) :]
        weight = climb.extent.weight(self._found.material, ahead)
        affordable = _CAUTION * (climb.until - self._clock()) / (weight * spent / self._weight)
        return max(min(_TOKENS_WHEN_LATE, climb.tokens), min(climb.tokens, int(affordable)))

    async def _ask(self, step: Step, tokens: int) -> Reply:
        wire = self._wires[step.setting.replica]
        if not step.neighbours:
            return await wire.complete(step.prompts, tokens, step.salt, seeded=step.setting.seeded)
        async with wire.running(step.neighbours, neighbour_tokens(tokens), f"{step.salt}-beside"):
            return await wire.complete(step.prompts, tokens, step.salt, isolated=False)

    def _take(self, record: Record, step: Step, reply: Reply) -> None:
        replica = step.setting.replica
        main: Deployment = self._found.deployment
        if replica == 0 and (reply.replica, reply.posture) != (main.replica, main.posture):
            self.left_out[reply.replica or "another posture"] += 1
            return
        if reply.posture is not None:
            self.postures.setdefault(replica, set()).add(reply.posture)
        if reply.peak is not None and not _in_its_company(step, reply.peak):
            self.crowded += 1
            return
        for position, choice in zip(step.probes, reply.choices, strict=False):
            record.samples.append(Sample(position, step.setting, choice, reply.peak, reply.cached))


def _in_its_company(step: Step, peak: int) -> bool:
    """Whether as many requests shared the engine as the rung asks for; prompts of one request are one or several."""
    if step.neighbours:
        return peak == len(step.neighbours) + 1
    return peak <= len(step.prompts)


def _uncached(samples: Iterable[Sample]) -> bool:
    """Whether the server says of every prompt that a cache could hold that none of it came from there."""
    warm = [sample.cached for sample in samples if sample.setting.warm]
    return bool(warm) and not any(cached != 0 for cached in warm)
