"""Isolation on a real vLLM: the guard's own interval log, and a second witness that the guard has no hand in.

There the engine keeps no log of ours. What there is: the guard's word on when it let whom in (``/reprise/admissions``),
and vLLM's own count of the requests in its batch, which its metrics show after every step. While the guard says that an
exclusive request runs, that count must not be above 1.

The two tell time by different clocks. The guard's zero lies between two bounds: no request was asked for before its
client sent it, and nothing that a page tells of happened after the page had come.
"""

import asyncio
import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import httpx

from tests.support.intervals import NEVER, Ending, Interval

_TIMES: Final = ("asked_us", "granted_us", "started_us", "ended_us")
_RUNNING: Final = "vllm:num_requests_running"
_GENERATED: Final = "vllm:generation_tokens_total"
_PAGE: Final = 1000
_EVERY: Final = 0.03
_PAGE_EVERY: Final = 10
"""So many samples of the gauge lie between two pages of the log."""


@dataclass(frozen=True, slots=True)
class Sample:
    """What vLLM's metrics showed on a page that was asked for and came at these microseconds of our clock."""

    asked: float
    came: float
    running: float
    generated: float


@dataclass
class GuardsLog:
    """The interval log of one guard, read page by page. ``latest_zero``: the most that its clock's zero can be."""

    begins_after: int = 0
    epoch: str = ""
    entries: dict[int, Mapping[str, Any]] = field(default_factory=dict)
    latest_zero: float = math.inf

    def take(self, page: Mapping[str, Any], came: float) -> int:
        """Take in a page that came at ``came``; how many entries it had. Raises ValueError for another guard's."""
        if self.epoch and page["epoch"] != self.epoch:
            raise ValueError(f"the engine was started anew: {self.epoch}, then {page['epoch']}")
        self.epoch = page["epoch"]
        for entry in page["admissions"]:
            self.entries[entry["sequence"]] = entry
            told = max(entry[name] for name in _TIMES if entry.get(name) is not None)
            self.latest_zero = min(self.latest_zero, came - told)
        return len(page["admissions"])

    @property
    def after(self) -> int:
        """What the next page begins after; an entry that had not ended when it was read is read again."""
        unfinished = [number for number, entry in self.entries.items() if entry["ended_us"] is None]
        return min(unfinished) - 1 if unfinished else max(self.entries, default=self.begins_after)

    @property
    def lost(self) -> int:
        """How many entries were overwritten before they were read."""
        return max(self.entries) - min(self.entries) + 1 - len(self.entries) if self.entries else 0

    def intervals(self, begin: str = "granted_us") -> list[Interval]:
        """The leases, from ``begin`` to their release, in microseconds of the guard's clock."""
        found = []
        for number, entry in sorted(self.entries.items()):
            if entry[begin] is not None:
                ended = entry["ended_us"]
                end, ending = (NEVER, Ending.UNSEEN) if ended is None else ((ended, 0), Ending.FINISHED)
                name = f"#{number} {entry['request']}"
                found.append(Interval(name, entry["admission"] == "exclusive", (entry[begin], 0), end, ending))
        return found

    def earliest_zero(self, sent: Mapping[str, float]) -> float:
        """The least that the clock's zero can be, by when clients had sent requests (microseconds, by request id)."""
        known = [entry for entry in self.entries.values() if entry["request"] in sent]
        return max((sent[entry["request"]] - entry["asked_us"] for entry in known), default=-math.inf)

    @property
    def not_alone(self) -> list[str]:
        """The exclusive admissions whose co-resident peak the guard itself counts as something else than 1."""
        found = [entry for entry in self.entries.values() if entry["admission"] == "exclusive"]
        return [f"#{one['sequence']} {one['request']}: peak {one['peak']}" for one in found if one["peak"] > 1]


def contradictions(
    exclusive: Iterable[Interval], samples: list[Sample], zero: tuple[float, float]
) -> tuple[int, list[str]]:
    """How many samples say something of an exclusive interval, and those that contradict it, in words.

    ``exclusive``: in order, in microseconds of the guard's clock, whose zero lies between the two of ``zero``. A sample
    counts if it surely lies inside an interval and if the engine has reported since an earlier one inside it: until
    its first step vLLM's gauge shows what was before (an abort changes the batch, and is reported with the next step).
    """
    counted = 0
    found: list[str] = []
    at = 0
    for one in exclusive:
        begins, ends = one.begin[0] + zero[1], one.end[0] + zero[0]
        while at < len(samples) and samples[at].asked < begins:
            at += 1
        first = at
        while at < len(samples) and samples[at].came <= ends:
            if samples[at].generated > samples[first].generated:
                counted += 1
                if samples[at].running > 1:
                    found.append(
                        f"{one.request} ran alone by the guard's word, among {samples[at].running:g} by vLLM's"
                    )
            at += 1
    return counted, found


class Witness:
    """Reads both while a storm blows."""

    def __init__(self, url: str, key: str) -> None:
        self.log = GuardsLog()
        self.samples: list[Sample] = []
        self._client = httpx.AsyncClient(
            base_url=url, trust_env=False, timeout=30, headers={"x-determinism-guard-key": key}
        )

    async def begin(self) -> None:
        """Pass over what the log holds of earlier days."""
        await self._read()
        self.log.begins_after = max(self.log.entries, default=0)
        self.log.entries.clear()

    async def watch(self, over: asyncio.Event) -> None:
        """Sample the gauge and read the log until it is over, and then to its end."""
        looks = 0
        while not over.is_set():
            self.samples.append(await self._sample())
            looks += 1
            if looks % _PAGE_EVERY == 0:
                await self._read()
            await asyncio.sleep(_EVERY)
        await self._read()
        await self._client.aclose()

    def exclusive_done(self) -> int:
        """How many exclusive admissions have ended."""
        return sum(one["admission"] == "exclusive" and one["ended_us"] is not None for one in self.log.entries.values())

    async def _read(self) -> None:
        taken = _PAGE
        while taken == _PAGE:
            asked = {"after": self.log.after, "limit": _PAGE}
            page = await self._client.get("/reprise/admissions", params=asked)
            taken = self.log.take(page.raise_for_status().json(), _now())

    async def _sample(self) -> Sample:
        asked = _now()
        text = (await self._client.get("/metrics")).raise_for_status().text
        return Sample(asked, _now(), _value(text, _RUNNING), _value(text, _GENERATED))


def _value(text: str, name: str) -> float:
    """The sum of a metric's series."""
    lines = (line for line in text.splitlines() if line.startswith((f"{name}{{", f"{name} ")))
    return sum(float(line.rpartition(" ")[2]) for line in lines)


def _now() -> float:
    return time.monotonic_ns() / 1e3
