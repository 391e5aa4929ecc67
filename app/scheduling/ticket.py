"""Tickets: a place in a gate's queue, and after the grant the right to run."""

from bisect import bisect_left
from collections.abc import Callable
from enum import StrEnum


class Admission(StrEnum):
    """How a request shares the engine."""

    SHARED = "shared"
    EXCLUSIVE = "exclusive"


class Levels:
    """How many tickets ran at once, kept so that the most of any running ticket's time is found at once.

    The entries are (admission number, level) with falling levels: one that a later one reaches can never be a maximum
    again. There are never more than the most tickets that ever ran at once.
    """

    __slots__ = ("_admitted", "_entries")

    def __init__(self) -> None:
        self._admitted = 0
        self._entries: list[tuple[int, int]] = []

    def enter(self, level: int) -> int:
        """One more runs, which makes ``level``; returns the number of this admission."""
        entries = self._entries
        while entries and entries[-1][1] <= level:
            entries.pop()
        self._admitted += 1
        entries.append((self._admitted, level))
        return self._admitted

    def most_since(self, number: int) -> int:
        """The highest level since the admission of that number, whose ticket still runs."""
        return self._entries[bisect_left(self._entries, (number, 0))][1]


def _nobody() -> None:
    """Whom an ended ticket would tell."""


class Ticket:
    """A place in the queue, and after the grant the right to run (the lease).

    ``asked``, ``granted_at`` and ``ended_at`` are in seconds of the gate's clock; None is not yet, or never.
    ``priority``: a lower number goes first, as in vLLM. ``key`` names the caller whose exclusive seconds it uses.
    ``number`` is its place in the order of asking, ``admitted`` in the order of grants.
    """

    __slots__ = (
        "_frozen_peak",
        "_levels",
        "admission",
        "admitted",
        "asked",
        "ended_at",
        "granted_at",
        "key",
        "number",
        "on_grant",
        "priority",
    )

    def __init__(
        self, admission: Admission, on_grant: Callable[[], None], levels: Levels, key: str, priority: int, asked: float
    ) -> None:
        self._levels = levels
        self._frozen_peak = 0
        self.on_grant = on_grant
        self.admission = admission
        self.key = key
        self.priority = priority
        self.number = 0
        self.admitted = 0
        self.asked = asked
        self.granted_at: float | None = None
        self.ended_at: float | None = None

    @property
    def granted(self) -> bool:
        """Whether it runs, or has run."""
        return self.granted_at is not None

    @property
    def released(self) -> bool:
        """Whether it is over, be it after a run or out of the queue."""
        return self.ended_at is not None

    @property
    def waited(self) -> float:
        """Seconds from asking to the grant; 0 before it."""
        return 0.0 if self.granted_at is None else self.granted_at - self.asked

    @property
    def peak(self) -> int:
        """Co-resident peak: the most tickets that ran at once while this one did, itself included; 0 = never ran."""
        if self.granted_at is not None and self.ended_at is None:
            return self._levels.most_since(self.admitted)
        return self._frozen_peak

    def end(self, now: float) -> None:
        """Freeze it, and let go of whoever waited for it. For the gate alone."""
        self._frozen_peak = self.peak
        self.on_grant = _nobody
        self.ended_at = now

    def __repr__(self) -> str:
        state = "released" if self.released else "granted" if self.granted else "waiting"
        return f"<Ticket {self.admission} {state} peak={self.peak}>"
