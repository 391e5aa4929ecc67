"""What the last probes saw of the replicas' gates, for people who look at the page: a short, bounded history."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from app.upstream.replica import GateView

_SAMPLES: Final = 720
"""Samples kept of each replica; an hour at a probe every five seconds."""


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
