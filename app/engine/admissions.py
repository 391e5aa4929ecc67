"""The interval log: what the gate admitted, from when to when, and who ran beside it.

It is the proof behind every peak that an answer carries: bounded, in memory, kept by the process that admits. Times are
microseconds of the gate's own monotonic clock since the log's epoch began; an epoch is one life of the engine's API
server, so intervals of two of them are never compared by accident.
"""

import secrets
from collections import deque
from collections.abc import Callable
from datetime import datetime
from typing import Any, Final

from app.scheduling.ticket import Ticket

KEPT: Final = 16_384
"""Admissions that are remembered by default; under 1 KiB each."""

MOST_LISTED: Final = 10_000
"""Admissions in one answer."""


class Interval:
    """One admission. ``request`` is the gateway's request id, None for a client that came past the gateways."""

    __slots__ = ("_ticket", "request", "sequence", "started")

    def __init__(self, sequence: int, ticket: Ticket, request: str | None) -> None:
        self.sequence = sequence
        self.request = request
        self.started: float | None = None
        self._ticket = ticket

    def to_mapping(self, began: float, epoch: str) -> dict[str, Any]:
        """As JSON has it; ``began`` is the epoch's beginning on the gate's clock."""

        def micro(moment: float | None) -> int | None:
            return None if moment is None else round((moment - began) * 1e6)

        ticket = self._ticket
        return {
            "sequence": self.sequence,
            "request": self.request,
            "admission": ticket.admission.value,
            "asked_us": micro(ticket.asked),
            "granted_us": micro(ticket.granted_at),
            "started_us": micro(self.started),
            "ended_us": micro(ticket.ended_at),
            "peak": ticket.peak,
            "epoch": epoch,
        }


class AdmissionLog:
    """The last ``keep`` admissions, those that run included.

    ``clock`` is the gate's, in seconds; ``today`` tells the time of day.
    """

    def __init__(self, keep: int, *, clock: Callable[[], float], today: Callable[[], datetime]) -> None:
        self.epoch = "e-" + secrets.token_hex(8)
        self._keep = keep
        self._clock = clock
        self._began = clock()
        self._started = today().isoformat(timespec="microseconds")
        self._next = 1
        self._intervals: deque[Interval] = deque(maxlen=keep)

    def admitted(self, ticket: Ticket, request: str | None) -> Interval:
        """Note a ticket that was granted; its end is read from the ticket itself."""
        interval = Interval(self._next, ticket, request)
        self._next += 1
        self._intervals.append(interval)
        return interval

    def started(self, interval: Interval) -> float:
        """The engine gets the request now, after the proof that it was empty where that was needed; the time."""
        interval.started = self._clock()
        return interval.started

    def page(self, *, request: str | None = None, after: int = 0, limit: int = MOST_LISTED) -> dict[str, Any]:
        """The admissions of one request, or those with a sequence over ``after``, oldest first, ``limit`` at most.

        ``next`` is the sequence that the next admission gets; ``first`` that of the oldest that is still remembered.
        """
        chosen: list[Interval] = []
        for interval in reversed(self._intervals):
            if interval.sequence <= after:
                break
            if request is None or interval.request == request:
                chosen.append(interval)
        return {
            "epoch": self.epoch,
            "started": self._started,
            "kept": self._keep,
            "first": self._intervals[0].sequence if self._intervals else self._next,
            "next": self._next,
            "admissions": [interval.to_mapping(self._began, self.epoch) for interval in chosen[::-1][:limit]],
        }
