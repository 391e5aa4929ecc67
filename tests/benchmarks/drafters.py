# ruff: noqa: T201 - its figures are its output
"""Verified answers of one verifier, drafted in every way there is: they must all be the same.

    .venv/bin/python tests/benchmarks/drafters.py [--repeats 36] [--tokens 48] [--prompts 6] [--window 64]

Starts real engines on this machine's CPUs, at most two at a time, each bound to a core of its own, and a gateway for
each line of the table:

* the verifier itself drafts, with 1, 2, 4, 8 and 16 requests at a time;
* a drafter that lies: one token in five of every draft is replaced at random;
* a second engine drafts as well, in float32 or in the ``deterministic`` profile; how many drafts were its own is told
  by its own counter;
* a dedicated verifier of one sequence (``--max-num-seqs 1``), which is another posture, and each of the two drafters.

"diverged" counts the answers that differ from the first one of their prompt and posture, over all lines.
"""

import argparse
import asyncio
import os
import secrets
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.benchmarks.verified import Line, prompt, run
from tests.engine.conftest import ROOT, free_port, gateway_before, running, wait_for

VOCABULARY = 49_152
LYING_SHARE = 0.2
DRAFTERS = (("float32, throughput", "throughput", "--dtype", "float32"), ("bfloat16, deterministic", "deterministic"))


@dataclass(frozen=True)
class Site:
    """What every engine and gateway of the run is started with."""

    state: Path
    key: str = field(default_factory=lambda: secrets.token_hex(16))

    @contextmanager
    def engine(self, name: str, core: int, profile: str, *more: str) -> Iterator[str]:
        """An engine on one core, ready; its URL."""
        python, port = os.environ.get("REPRISE_TEST_ENGINE_PYTHON", ROOT / ".venv-engine/bin/python"), free_port()
        argv = [str(python), "-m", "app.cli", "engine", "--profile", profile, "--target", "cpu"]
        argv += ["--model", str(ROOT / ".models/SmolLM2-135M-Instruct"), "--served-model-name", "smollm2"]
        argv += ["--port", str(port), "--", *more]
        environment = {"REPRISE_GUARD_KEY": self.key, "VLLM_CPU_OMP_THREADS_BIND": str(core)}
        url = f"http://127.0.0.1:{port}"
        with running(argv, self.state / name, **environment) as check:
            wait_for(f"{url}/reprise/posture", {"x-determinism-guard-key": self.key}, check)
            yield url

    @contextmanager
    def liar(self, engine: str) -> Iterator[str]:
        """One that lies, before an engine; its URL."""
        port = free_port()
        argv = [sys.executable, "-m", "tests.support.lying", engine, str(LYING_SHARE), str(VOCABULARY), str(port)]
        with running(argv, self.state / "liar") as check:
            wait_for(f"http://127.0.0.1:{port}/health", {}, check)
            yield f"http://127.0.0.1:{port}"

    def gateway(self, *upstreams: str) -> AbstractContextManager[str]:
        """A gateway before these, ready; its URL."""
        state = self.state / secrets.token_hex(4)
        return gateway_before(state, *upstreams, guard_key=self.key, REPRISE_SHUTDOWN_DELAY="0")


class Table:
    """Runs the lines, and holds every answer against the first one of its prompt and verifier."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._arguments = arguments
        self._known: dict[tuple[str, str], str] = {}
        self.compared = self.diverged = self.failed = 0
        print(f"{'verifier':10} {'drafted by':34} {'together':>8} {'passes':>7} {'rolled':>7} {'accepted':>9}", end=" ")
        print(f"{'elsewhere':>9}  diverged", flush=True)

    async def line(self, verifier: str, drafter: str, gateway: str, together: int, other: str | None = None) -> None:
        """One line; ``other`` is the engine whose drafts are counted."""
        arguments, before = self._arguments, await _finished(other)
        prompts = [prompt(number, 60) for number in range(arguments.prompts)]
        asked = argparse.Namespace(
            requests=arguments.repeats, tokens=arguments.tokens, model="smollm2", prompts=arguments.prompts
        )
        async with httpx.AsyncClient(base_url=gateway, timeout=900.0, trust_env=False) as client:
            line, answers = await run(client, asked, f"verified:{arguments.window}", together, prompts)
        diverged = compared = 0
        for number, text in enumerate(answers):
            key = (verifier, prompts[number % len(prompts)])
            if text is not None and key in self._known:
                compared += 1
                diverged += self._known[key] != text
            elif text is not None:
                self._known[key] = text
        self.compared, self.diverged = self.compared + compared, self.diverged + diverged
        self.failed += line.failed
        elsewhere = "" if other is None else f"{await _finished(other) - before:.0f}"
        self._print(line, verifier, drafter, together, elsewhere, f"{diverged} of {compared}")

    @staticmethod
    def _print(line: Line, verifier: str, drafter: str, together: int, elsewhere: str, diverged: str) -> None:
        accepted = f"{line.accepted / line.drafted:.1%}" if line.drafted else ""
        print(f"{verifier:10} {drafter:34} {together:8} {line.passes:7} {line.rollbacks:7} {accepted:>9}", end=" ")
        print(f"{elsewhere:>9}  {diverged}" + (f", {line.failed} failed" if line.failed else ""), flush=True)


async def _finished(engine: str | None) -> float:
    """How many requests an engine has finished, by its own counter."""
    if engine is None:
        return 0.0
    async with httpx.AsyncClient(base_url=engine, trust_env=False) as client:
        rows = (await client.get("/metrics")).text.splitlines()
    return sum(float(row.rpartition(" ")[2]) for row in rows if row.startswith("vllm:request_success_total"))


async def measure(arguments: argparse.Namespace) -> None:
    """Every line, one after the other."""
    table, began = Table(arguments), time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        site = Site(Path(folder))
        with site.engine("verifier", 0, "throughput") as verifier:
            with site.gateway(verifier) as gateway:
                for together in (1, 2, 4, 8, 16):
                    await table.line("shared", "the verifier", gateway, together)
            with site.liar(verifier) as liar, site.gateway(liar) as gateway:
                await table.line("shared", f"one that lies ({LYING_SHARE:.0%} of tokens)", gateway, 8)
            for name, profile, *more in DRAFTERS:
                with site.engine("drafter", 1, profile, *more) as drafter, site.gateway(verifier, drafter) as gateway:
                    await table.line("shared", f"it or a second one, {name}", gateway, 8, drafter)
        with site.engine("alone", 0, "verifier", "--max-num-seqs", "1") as verifier:
            for name, profile, *more in DRAFTERS:
                with site.engine("drafter", 1, profile, *more) as drafter, site.gateway(drafter, verifier) as gateway:
                    await table.line("dedicated", name, gateway, 8, drafter)
    print(f"{table.diverged} of {table.compared} diverged, {table.failed} failed, in {time.monotonic() - began:.0f} s")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=36, help="answers of each line")
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--prompts", type=int, default=6)
    parser.add_argument("--window", type=int, default=64)
    asyncio.run(measure(parser.parse_args()))


if __name__ == "__main__":
    main()
