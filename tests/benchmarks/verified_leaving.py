# ruff: noqa: T201 - its figures are its output
"""How long after a client of a verified answer leaves its errand is gone from a real engine.

    REPRISE_GUARD_KEY=k ./deploy/up
    REPRISE_GUARD_KEY=k .venv/bin/python tests/benchmarks/verified_leaving.py [--clients 30] [--url http://127.0.0.1:8000]
        [--engine-url http://127.0.0.1:8001]

A client cuts its connection while its draft runs, while its pass waits behind a running ordinary request, and while its
pass runs. The time, in milliseconds with the poll's round trip, goes from there until the guard holds nothing of it
any more, and for what ran until vLLM's own gauge says so too. A step of the engine that has begun cannot be cut, so a
pass that runs ends with its step. "sent after" counts the clients after whose leaving the guard admitted a request.
"""

import argparse
import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from typing import Any

import httpx

PROMPT = "The lighthouse keeper wrote one letter every evening. This is the letter of the first day of winter:\n"
SETTLED = 0.2
"""Seconds in which nothing may come any more."""

State = dict[str, int]


class Watch:
    """What the guard and vLLM hold."""

    def __init__(self, engine: httpx.AsyncClient) -> None:
        self._engine = engine

    async def gate(self) -> State:
        """The guard's gate."""
        gate: State = (await self._engine.get("/reprise/posture")).raise_for_status().json()["gate"]
        return gate

    async def admitted(self) -> int:
        """How many requests the guard has admitted in its life."""
        page = (await self._engine.get("/reprise/admissions?limit=1")).raise_for_status().json()
        return int(page["next"])

    async def running(self) -> int:
        """How many requests run, by the gauge of vLLM itself."""
        rows = (await self._engine.get("/metrics")).text.splitlines()
        return int(sum(float(row.rpartition(" ")[2]) for row in rows if row.startswith("vllm:num_requests_running{")))

    async def until(self, holds: Callable[[State], bool]) -> State:
        """Wait for a state of the gate."""
        while not holds(gate := await self.gate()):
            pass
        return gate


async def _ask(client: httpx.AsyncClient, tokens: int, mode: str) -> None:
    body = {"model": "smollm2", "prompt": PROMPT, "max_tokens": tokens, "ignore_eos": True, "temperature": 0}
    asked = {**body, "stream": True, "determinism": mode}
    async with client.stream("POST", "/v1/completions", json=asked) as answer:
        answer.raise_for_status()
        async for _ in answer.aiter_raw():
            pass


async def _left(leaver: asyncio.Task[None], gone: Callable[[], Awaitable[bool]]) -> float:
    began = time.perf_counter()
    leaver.cancel()
    while not await gone():
        pass
    return (time.perf_counter() - began) * 1e3


async def leave(watch: Watch, url: str, phase: str) -> tuple[float, bool]:
    """One client that leaves in a phase: milliseconds, and whether anything was sent for it afterwards."""
    # A connection of its own: cancelling its task closes that.
    async with httpx.AsyncClient(base_url=url, timeout=900, trust_env=False) as client, asyncio.TaskGroup() as group:
        other = None
        if phase == "pass waits":
            other = group.create_task(_ask(client, 1000, "standard"))
            await watch.until(lambda gate: gate["shared"] == 1)
        leaver = group.create_task(_ask(client, 64, "verified"))
        held = {"draft runs": "shared", "pass waits": "waiting_exclusive", "pass runs": "exclusive"}[phase]
        await watch.until(lambda gate: gate[held] == 1)

        async def gone() -> bool:
            return (await watch.gate())[held] == 0 and (phase == "pass waits" or await watch.running() == 0)

        admitted = await watch.admitted()
        took = await _left(leaver, gone)
        await asyncio.sleep(SETTLED)
        sent = await watch.admitted() != admitted
        if other is not None:
            other.cancel()
            await watch.until(lambda gate: gate["shared"] == 0)
    return took, sent


async def main(arguments: argparse.Namespace) -> None:
    """Measure and print."""
    headers: dict[str, Any] = {"x-determinism-guard-key": os.environ["REPRISE_GUARD_KEY"]}
    async with httpx.AsyncClient(base_url=arguments.engine_url, headers=headers, trust_env=False, timeout=60) as engine:
        watch = Watch(engine)
        async with httpx.AsyncClient(base_url=arguments.url, timeout=900, trust_env=False) as client:
            await _ask(client, 8, "verified")  # the self-test, once in an engine's life
        for phase in ("draft runs", "pass waits", "pass runs"):
            found = [await leave(watch, arguments.url, phase) for _ in range(arguments.clients)]
            times = sorted(took for took, _ in found)
            shown = {"p50": times[len(times) // 2], "most": times[-1]}
            print(f"{phase:12}", *(f"{name} {ms:.0f} ms" for name, ms in shown.items()), end=" ")
            print(f"sent after {sum(sent for _, sent in found)} of {len(found)}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--clients", type=int, default=30)
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--engine-url", default="http://127.0.0.1:8001")
    asyncio.run(main(parser.parse_args()))
