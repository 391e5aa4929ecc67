"""Time that passes when everybody waits for it, and a gateway that lives in it."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any

import anyio
import httpx

from app.scheduling.gate import Gate
from app.scheduling.ticket import Admission


class VirtualTime:
    """A clock and its sleep: once nothing is left to run, the clock jumps to the next sleeper's moment."""

    def __init__(self) -> None:
        self.now = 0.0
        self._sleepers: list[tuple[float, int, anyio.Event]] = []
        self._order = 0

    def clock(self) -> float:
        """Seconds since the start."""
        return self.now

    async def sleep(self, seconds: float) -> None:
        """Wait for that long."""
        event = anyio.Event()
        self._order += 1
        heappush(self._sleepers, (self.now + seconds, self._order, event))
        await event.wait()

    @asynccontextmanager
    async def passing(self) -> AsyncIterator[None]:
        """Time passes for the length of the block, whose errors come out as they are and not in a group."""
        failure: Exception | None = None
        async with anyio.create_task_group() as group:
            group.start_soon(self._pass)
            try:
                yield
            except Exception as exc:  # noqa: BLE001 - whatever it is, it is raised below
                failure = exc
            group.cancel_scope.cancel()
        if failure is not None:
            raise failure

    async def _pass(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(0)
            # No real socket and no real timer takes part, so an empty queue means that all wait for the clock.
            if not loop._ready and self._sleepers:  # type: ignore[attr-defined]  # asyncio tells it in no other way
                self.now, _, event = heappop(self._sleepers)
                event.set()


@dataclass(frozen=True, slots=True)
class Asked:
    """One request as the gateway saw it; ``at`` is when it came."""

    at: float
    mode: str
    body: dict[str, Any]
    authorization: str | None


@dataclass
class VirtualGateway(httpx.AsyncBaseTransport):
    """Every token takes ``per_token`` seconds, however many requests run; isolated ones run alone.

    ``broken`` gives the HTTP status of a failure by the number of the request (from 1) and its mode, or None.
    ``peak`` and ``headers`` change what the answers say.
    """

    time: VirtualTime
    per_token: float = 0.01
    broken: Callable[[int, str], int | None] = lambda _number, _mode: None
    peak: Callable[[int], int] = lambda peak: peak
    headers: Callable[[dict[str, str]], dict[str, str]] = lambda headers: headers
    asked: list[Asked] = field(default_factory=list)
    in_flight: int = 0
    most_in_flight: int = 0

    def __post_init__(self) -> None:
        self._gate = Gate(clock=self.time.clock)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Answer."""
        if request.url.path == "/v1/models":
            return httpx.Response(200, json={"data": [{"id": "tiny"}]})
        body = json.loads(request.content)
        mode = request.headers["x-determinism-mode"]
        self.asked.append(Asked(self.time.now, mode, body, request.headers.get("authorization")))
        if (failure := self.broken(len(self.asked), mode)) is not None:
            return httpx.Response(failure, json={"error": {"message": "out of order", "code": "internal"}})
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            return await self._answer(mode, body["max_tokens"])
        finally:
            self.in_flight -= 1

    async def _answer(self, mode: str, tokens: int) -> httpx.Response:
        asked = self.time.now
        async with self._gate.lease(Admission.EXCLUSIVE if mode == "isolated" else Admission.SHARED) as ticket:
            waited = self.time.now - asked
            await self.time.sleep(tokens * self.per_token)
            peak = ticket.peak
        headers = {
            "x-determinism-mode": mode,
            "x-determinism-replica": "one",
            "x-determinism-admission-wait": f"{waited:.6f}",
            "x-determinism-coresident-peak": str(self.peak(peak)),
        }
        answer = {
            "choices": [{"index": 0, "finish_reason": "length", "message": {"role": "assistant", "content": "so"}}],
            "usage": {"completion_tokens": tokens},
        }
        return httpx.Response(200, json=answer, headers=self.headers(headers))
