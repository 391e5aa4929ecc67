"""The rungs of the ladder as data: which requests a round of each holds. Each changes one thing. Pure.

* ``alone``: the same prompt, alone, with a cold prefix cache. What differs here, differs from run to run.
* ``batch``: in one request with others of fixed length: batches of several sizes, each with several contents of the
  neighbours. Between sizes the shape changes; between contents of one size nothing does but the contents. The prompts
  that are looked at keep their places in the batch.
* ``cache``: alone, with a prefix cache that holds the prompt, against one that does not.
* ``kv``: joining others that are being answered, as many each time, whose KV is short or long. The step's tokens and
  sequences are the same in number; only what attention has to read for the neighbours is not.
* ``replica``: alone and cold, on another server.
* ``sampler``: alone and cold, without the seed that all others are sent; only where something is sampled.
"""

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from app.diagnose.material import LONG_NEIGHBOUR, NEIGHBOUR_LENGTH, SHORT_NEIGHBOUR, Material
from app.diagnose.sample import Setting
from app.diagnose.wire import Prompt


class Rung(StrEnum):
    """One rung, in the order of climbing."""

    SAMPLER = "sampler"
    ALONE = "alone"
    BATCH = "batch"
    CACHE = "cache"
    KV = "kv"
    REPLICA = "replica"


CONTENTS: Final = 3
NEIGHBOURS: Final = 3
"""Requests that are being answered when the ``kv`` rung's prompt joins them."""

LEAST_ROUNDS: Final = {
    Rung.SAMPLER: 3,
    Rung.ALONE: 3,
    Rung.BATCH: 2,
    Rung.CACHE: 3,
    Rung.KV: 4,
    Rung.REPLICA: 3,
}
"""Rounds without which a rung's test could not reach its significance."""

MOST_ROUNDS: Final = 10

LEAST_LONGS: Final = 2
"""Long prompts without which the ``kv`` rung has none whose KV is split."""

_JOINING: Final = 3.0
_LONG_PREFILL: Final = 1.5
_PER_NEIGHBOUR: Final = 1 / 12
_BEYOND: Final = 16


@dataclass(frozen=True, slots=True)
class Step:
    """One request: its prompts, of which the first are looked at, and what runs beside it.

    ``probes`` holds the positions of the prompts that are looked at; ``neighbours`` are to be running before.
    ``weight`` is about how long it takes, in units of one answer given alone.
    """

    rung: Rung
    probes: tuple[int, ...]
    setting: Setting
    prompts: tuple[Prompt, ...]
    salt: str
    neighbours: tuple[Prompt, ...] = ()
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class Extent:
    """How much of the ladder is climbed."""

    sizes: tuple[int, ...]
    rungs: tuple[Rung, ...]
    replicas: int = 0

    def round(self, rung: Rung, number: int, material: Material, salts: "Salts") -> tuple[Step, ...]:
        """The requests of a round, in order; ``number`` counts a rung's rounds from 0."""
        match rung:
            case Rung.SAMPLER:
                return tuple(_alone(rung, material, salts, Setting(seeded=False)))
            case Rung.ALONE:
                return tuple(_alone(rung, material, salts, Setting()))
            case Rung.BATCH:
                # An answer given alone in every round: should the server change meanwhile, that is seen there.
                return (*_alone(rung, material, salts, Setting()), *_batches(self.sizes, number, material, salts))
            case Rung.CACHE:
                return tuple(_cached(material, salts))
            case Rung.KV:
                return tuple(_joining(number, material, salts))
            case Rung.REPLICA:
                return tuple(
                    step
                    for replica in range(1, self.replicas + 1)
                    for step in _alone(rung, material, salts, Setting(replica=replica))
                )

    def weight(self, material: Material, rungs: Iterable[Rung] | None = None) -> float:
        """Of the least rounds of some rungs, or of all."""
        salts = Salts("")
        return sum(
            step.weight
            for rung in (self.rungs if rungs is None else rungs)
            for number in range(LEAST_ROUNDS[rung])
            for step in self.round(rung, number, material, salts)
        )


class Salts:
    """Cache salts of one run: each is like no other, so its first request finds its prompt in no cache."""

    def __init__(self, run: str) -> None:
        self._run = run
        self._count = itertools.count()

    def fresh(self) -> str:
        """One never used before."""
        return f"{self._run}-{next(self._count)}"


def neighbour_tokens(tokens: int) -> int:
    """Tokens of a neighbour's answer in the ``kv`` rung: it must outlast the one of so many tokens that joins it."""
    return 3 * tokens + _BEYOND


def _alone(rung: Rung, material: Material, salts: Salts, setting: Setting) -> Iterator[Step]:
    for position, prompt in enumerate(material.probes):
        yield Step(rung, (position,), setting, (prompt,), salts.fresh())


def _batches(sizes: tuple[int, ...], number: int, material: Material, salts: Salts) -> Iterator[Step]:
    contents = CONTENTS if material.exact else 1
    for turn in range(contents):
        # Another content first in each round, so that content does not go with time; and others after two rounds: where
        # contents matter, more of them tell more than more repeats of the same.
        content = (turn + number) % contents
        if material.exact:
            content += contents * (number // LEAST_ROUNDS[Rung.BATCH])
        for size in sizes:
            most = max(1, min(size // 2, len(material.probes)))
            for first in range(0, len(material.probes), most):
                probes = tuple(range(len(material.probes)))[first : first + most]
                fillers = (
                    material.filler(NEIGHBOUR_LENGTH, f"batch {size} {content} {place}")
                    for place in range(size - len(probes))
                )
                prompts = (*(material.probes[probe] for probe in probes), *fillers)
                setting = Setting(size=size, content=content)
                yield Step(Rung.BATCH, probes, setting, prompts, salts.fresh(), weight=1 + size * _PER_NEIGHBOUR)


def _cached(material: Material, salts: Salts) -> Iterator[Step]:
    for place, prompt in enumerate(material.longs):
        position, salt = len(material.probes) + place, salts.fresh()
        # The one right after the other, so that a small cache still holds it.
        yield Step(Rung.CACHE, (position,), Setting(), (prompt,), salt, weight=_LONG_PREFILL)
        yield Step(Rung.CACHE, (position,), Setting(warm=True), (prompt,), salt, weight=_LONG_PREFILL)


def _joining(number: int, material: Material, salts: Salts) -> Iterator[Step]:
    """For long prompts but the first: a short one's KV is not split."""
    last = len(material.probes) + len(material.longs)
    for position in range(len(material.probes), last)[LEAST_LONGS - 1 : LEAST_LONGS + 1]:
        for kv in (SHORT_NEIGHBOUR, LONG_NEIGHBOUR):
            neighbours = tuple(material.filler(kv, f"kv {number} {place}") for place in range(NEIGHBOURS))
            setting = Setting(size=NEIGHBOURS + 1, content=number, kv=kv)
            prompt = material.prompt(position)
            yield Step(Rung.KV, (position,), setting, (prompt,), salts.fresh(), neighbours, _JOINING)
