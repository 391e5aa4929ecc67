"""What the gateway remembers of its last hour, for people who look at the page: short, bounded histories."""

import logging
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, TypeAlias

import anyio
import anyio.to_thread

from app.upstream.replica import GateView

_SAMPLES: Final = 720
"""Samples kept of each replica; an hour at a probe every five seconds."""

COMPARED_EVERY: Final = 15.0
"""Seconds between two samples of what was compared."""

RECENTLY: Final = 900.0
"""The seconds that the page calls recent."""

_COMPARED_SAMPLES: Final = 241
"""An hour of them, and the one that the hour begins with."""

Counted: TypeAlias = tuple[str, str, str]
"""Model, mode and origin: what is counted apart."""

Counts: TypeAlias = dict[Counted, tuple[int, int]]
"""How much was compared, and how much of it diverged."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class GateSample:
    """A gate at one moment, in seconds since 1970; the totals are those of `GateView`."""

    at: float
    shared: int
    exclusive: int
    waiting_shared: int
    waiting_exclusive: int
    exclusive_seconds: float
    drain_seconds: float


class GateHistory:
    """Takes what probes see. ``wall`` gives seconds since 1970."""

    def __init__(self, wall: Callable[[], float]) -> None:
        self._wall = wall
        self._samples: dict[str, deque[GateSample]] = {}

    def add(self, replica: str, gate: GateView) -> None:
        """Keep one sample of a replica."""
        kept = self._samples.setdefault(replica, deque(maxlen=_SAMPLES))
        kept.append(
            GateSample(
                self._wall(),
                gate.shared,
                gate.exclusive,
                gate.waiting_shared,
                gate.waiting_exclusive,
                gate.exclusive_seconds,
                gate.drain_seconds,
            )
        )

    def since(self, replica: str, moment: float) -> list[GateSample]:
        """The samples of a replica after a moment, the oldest first."""
        return [sample for sample in self._samples.get(replica, ()) if sample.at > moment]


@dataclass(frozen=True, slots=True)
class Recent:
    """What was compared from ``since`` to ``until``, in seconds since 1970.

    ``steps`` holds, for each that is counted apart, (until when, compared, diverged) of every sample in which anything
    was, the oldest first.
    """

    since: float
    until: float
    steps: dict[Counted, list[tuple[float, int, int]]]


class ComparisonHistory:
    """An hour of samples of what was compared, whoever looks and whenever. ``wall`` gives seconds since 1970.

    It begins with the process, at nothing. Owned by the event loop.
    """

    def __init__(self, wall: Callable[[], float]) -> None:
        self._wall = wall
        self.began = wall()
        self._samples: deque[tuple[float, Counts]] = deque([(self.began, {})], maxlen=_COMPARED_SAMPLES)

    def add(self, counts: Counts) -> None:
        """Keep one sample of the totals since the process started."""
        before = self._samples[-1][1]
        # While nothing happens, an hour of samples is one mapping.
        self._samples.append((self._wall(), before if counts == before else counts))

    async def run(self, look: Callable[[], Counts], sleep: Callable[[float], Awaitable[None]] = anyio.sleep) -> None:
        """Sample until cancelled; ``look`` gives the totals, on a thread of its own."""
        while True:
            await sleep(COMPARED_EVERY)
            try:
                self.add(await anyio.to_thread.run_sync(look))
            except Exception:  # noqa: BLE001 - a page without a past must not end the gateway; it is logged
                _log.exception("what was compared could not be sampled")

    def recent(self, counts: Counts, seconds: float = RECENTLY) -> Recent:
        """What the totals of now add to those of so many seconds ago, or of the process's start."""
        now = self._wall()
        samples = [*self._samples, (now, counts)]
        # The last sample that is old enough, so that nothing within the time is left out.
        first = max((place for place, (at, _) in enumerate(samples) if at <= now - seconds), default=0)
        steps: dict[Counted, list[tuple[float, int, int]]] = {}
        for (_, before), (at, after) in pairwise(samples[first:]):
            for key, (compared, diverged) in after.items():
                was = before.get(key, (0, 0))
                if compared > was[0]:
                    steps.setdefault(key, []).append((at, compared - was[0], diverged - was[1]))
        return Recent(samples[first][0], now, steps)
