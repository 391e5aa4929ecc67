"""An independent judge of isolation: reads a log of executions, and finds what ran beside an exclusive one.

It knows nothing of gates, guards or gateways, and shares no code with them: only when an engine began and ended what.

The log that it reads has one line per event, in the order in which things happened (`app` never writes one; the
scripted upstream does, see `tests.support.guarded`):

    b NANOSECONDS KEY ADMISSION REQUEST     the engine began; ADMISSION is what the client had asked for: x or s
    e NANOSECONDS KEY ADMISSION REQUEST     the engine ended it by itself
    a NANOSECONDS KEY ADMISSION REQUEST     the engine ended it because its client had left
    c NANOSECONDS KEY ADMISSION REQUEST     the server learned that its client had left; the engine still works then
    k NANOSECONDS PROCESS - -               the process is gone, and with it what it still ran

A KEY is PROCESS.NUMBER and names one execution. Times are CLOCK_MONOTONIC, which all processes of a machine share.

Two intervals overlap where each began before the other ended. Ties in time are decided by the order of the log; where
there is no such order (times rounded to microseconds by somebody else), intervals that only touch do not overlap.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeAlias

Moment: TypeAlias = tuple[int, int]
"""A time and, for ties, a place in the log."""

NEVER: Final[Moment] = (2**63 - 1, 0)
"""The end of an interval whose end nobody saw: whatever came later overlaps it."""


class Ending(StrEnum):
    """How an execution ended."""

    FINISHED = "finished"
    ABORTED = "aborted"
    KILLED = "killed"
    UNSEEN = "unseen"


@dataclass(frozen=True, slots=True)
class Interval:
    """One execution of one request."""

    request: str
    exclusive: bool
    begin: Moment
    end: Moment = NEVER
    ending: Ending = Ending.UNSEEN


@dataclass(frozen=True, slots=True)
class Overlap:
    """What must not be: ``other`` ran while ``exclusive`` did."""

    exclusive: Interval
    other: Interval

    def __str__(self) -> str:
        return f"{self.exclusive.request} (exclusive) ran beside {self.other.request} at {self.other.begin[0]}"


def read_log(lines: Iterable[str]) -> list[Interval]:
    """The executions of one engine.

    Raises ValueError for a log that is no witness: times that run backwards, an end without its beginning.
    """
    intervals: list[Interval] = []
    running: dict[str, tuple[str, bool, Moment]] = {}
    latest = 0
    for place, line in enumerate(lines):
        kind, nanoseconds, key, admission, request = line.split()
        now: Moment = (int(nanoseconds), place)
        if now[0] < latest:
            raise ValueError(f"line {place + 1}: the time runs backwards")
        latest = now[0]
        match kind:
            case "b" if key not in running:
                running[key] = (request, admission == "x", now)
            case "e" | "a" if key in running:
                ending = Ending.FINISHED if kind == "e" else Ending.ABORTED
                intervals.append(Interval(*running.pop(key), now, ending))
            case "c":
                pass
            case "k":
                lost = [one for one in running if one.startswith(f"{key}.")]
                intervals += [Interval(*running.pop(one), now, Ending.KILLED) for one in lost]
            case _:
                raise ValueError(f"line {place + 1}: {line.strip()!r} fits nothing before it")
    return intervals + [Interval(*begun) for begun in running.values()]


def read_departures(lines: Iterable[str]) -> dict[str, int]:
    """When the server learned of each client that had left, in nanoseconds, by request."""
    fields = (line.split() for line in lines)
    return {request: int(nanoseconds) for kind, nanoseconds, _, _, request in fields if kind == "c"}


_ENDS, _PASSES, _BEGINS = 0, 1, 2
"""The order of events at one moment: what only touches does not meet, and what has no length still happened."""


def overlaps(intervals: Iterable[Interval]) -> list[Overlap]:
    """Every pair of an exclusive interval with another that overlaps it, in order of the later beginning.

    Raises ValueError for an interval that ends before it begins.
    """
    events: list[tuple[Moment, int, int]] = []
    known = list(intervals)
    for number, one in enumerate(known):
        if one.end < one.begin:
            raise ValueError(f"{one.request} ends before it begins")
        if one.end == one.begin:
            events.append((one.begin, _PASSES, number))
        else:
            events += ((one.begin, _BEGINS, number), (one.end, _ENDS, number))
    running: dict[int, Interval] = {}
    found: list[Overlap] = []
    for _, what, number in sorted(events):
        if what == _ENDS:
            del running[number]
            continue
        comer = known[number]
        for other in running.values():
            if comer.exclusive:
                found.append(Overlap(comer, other))
            elif other.exclusive:
                found.append(Overlap(other, comer))
        if what == _BEGINS:
            running[number] = comer
    return found


def most_at_once(intervals: Iterable[Interval]) -> int:
    """The most executions that ran at one time: what says that exclusive ones had something to be kept from."""
    steps = sorted(step for one in intervals for step in ((one.begin, 1), (one.end, -1)))
    level = most = 0
    for _, change in steps:
        level += change
        most = max(most, level)
    return most


def executed_twice(*engines: Iterable[Interval]) -> dict[str, int]:
    """The requests that were begun more than once, on one engine or on several, and how often."""
    begun = Counter(one.request for intervals in engines for one in intervals)
    return {request: count for request, count in begun.items() if count > 1}


def begun_for_nobody(intervals: Iterable[Interval], gone: Mapping[str, int], grace: int = 0) -> list[Interval]:
    """The executions that began more than ``grace`` nanoseconds after their client had gone.

    ``gone``: when the client of a request left; 0 for one that never sent the whole of it.
    """
    return [one for one in intervals if one.request in gone and one.begin[0] > gone[one.request] + grace]
