# ruff: noqa: T201 - its figures are its output
"""What `verified` costs, and that its answers are the same however they were drafted.

    python tests/benchmarks/verified.py [--url http://127.0.0.1:8000] [--requests 24] [--tokens 128] [--together 12]
        [--runs standard,isolated,verified:32,verified:64,verified:128] [--prompt-tokens 100] [--cold]

Sends the same requests in each mode (with the window after a colon), ``--together`` at a time, and prints tokens/s,
passes, rollbacks and the time to the first chunk. ``10%verified:128`` sends one request in ten so and the others in
``standard``; the time to the first chunk is then that of the verified ones. Every output is compared with the others of
its prompt, mode and window, over all lines: "diverged" counts those that differ from the first one. Texts end by their
length alone (``ignore_eos``), so that every mode makes as many tokens.
"""

import argparse
import asyncio
import itertools
import json
import statistics
import time
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import httpx

SUBJECTS = ("rivers", "clocks", "bread", "maps", "bees", "tides", "glass", "trains", "ink", "snow", "chess", "salt")
WORDS = ("river", "stone", "light", "garden", "music", "paper", "harbour", "engine", "winter", "copper", "forest")
_DONE = "data: [DONE]"


@dataclass
class Line:
    """One line of the table."""

    name: str
    tokens: int = 0
    seconds: float = 0.0
    firsts: list[float] = field(default_factory=list)
    passes: int = 0
    rollbacks: int = 0
    drafted: int = 0
    accepted: int = 0
    verifier_seconds: float = 0.0
    failed: int = 0


def prompt(number: int, size: int, mark: str = "") -> str:
    """A prompt of about so many tokens; what ``mark`` s it stands first, so that no other one is cached for it."""
    filler = mark + " ".join(WORDS[(number + place) % len(WORDS)] for place in range(max(size - 20, 0)))
    return f"{filler}\nWrite a long story about {SUBJECTS[number % len(SUBJECTS)]}, number {number}. Begin now:\n"


def wish(name: str, number: int) -> dict[str, Any] | None:
    """What a line asks of its so manieth request; None: nothing special."""
    share, _, spelled = name.rpartition("%")
    if share and number * int(share) % 100 >= int(share):
        return None
    mode, _, window = spelled.partition(":")
    return {"mode": mode} | ({"window": int(window)} if window else {})


async def ask(client: httpx.AsyncClient, body: dict[str, Any], line: Line) -> str | None:
    """One streamed answer; its text."""
    began, first, text = time.perf_counter(), None, []
    async with client.stream("POST", "/v1/completions", json=body) as answer:
        if answer.status_code != httpx.codes.OK:
            line.failed += 1
            print(line.name, answer.status_code, (await answer.aread()).decode()[:200])
            return None
        ended = False
        async for row in answer.aiter_lines():
            ended = ended or row == _DONE
            if row.startswith(": determinism "):
                said = json.loads(row.removeprefix(": determinism "))
                line.passes += int(said.get("passes", 0))
                line.rollbacks += int(said.get("rollbacks", 0))
                line.drafted += int(said.get("drafted", 0))
                line.accepted += int(said.get("accepted", 0))
                line.verifier_seconds += float(said.get("verifier_seconds", 0))
            if not row.startswith("data: {"):
                continue
            chunk = json.loads(row.removeprefix("data: "))
            if "error" in chunk:
                print(line.name, row[:200])
            for choice in chunk.get("choices", ()):
                first = first or time.perf_counter()
                text.append(choice["text"])
            line.tokens += (chunk.get("usage") or {}).get("completion_tokens", 0)
    if not ended:
        line.failed += 1
        return None
    if "determinism" in body:
        line.firsts.append((first or time.perf_counter()) - began)
    return "".join(text)


async def run(
    client: httpx.AsyncClient, arguments: argparse.Namespace, name: str, together: int, prompts: list[str]
) -> tuple[Line, list[str | None]]:
    """All requests of one line."""
    line, numbers = Line(f"{name} x{together}"), iter(range(arguments.requests))
    answers: list[str | None] = [None] * arguments.requests
    began = time.perf_counter()

    async def caller() -> None:
        for number in numbers:
            wanted = wish(name, number)
            body = {
                "model": arguments.model,
                "prompt": prompts[number % len(prompts)],
                "max_tokens": arguments.tokens,
                "temperature": 0,
                "ignore_eos": True,
                "stream": True,
                "stream_options": {"include_usage": True},
            } | ({} if wanted is None else {"determinism": wanted})
            answer = await ask(client, body, line)
            answers[number] = None if wanted is None else answer

    await asyncio.gather(*(caller() for _ in range(together)))
    line.seconds = time.perf_counter() - began
    return line, answers


async def measure(arguments: argparse.Namespace) -> None:
    """Every line, one after the other."""
    known: dict[tuple[str, str], str] = {}
    diverged: dict[str, list[bool]] = defaultdict(list)
    print(f"{'mode':22} {'tokens/s':>9} {'first chunk':>12} {'passes':>7} {'rolled':>7}", end=" ")
    print(f"{'accepted':>9} {'s/pass':>7}  diverged")
    async with httpx.AsyncClient(base_url=arguments.url, timeout=900.0, trust_env=False) as client:
        for name, together in itertools.product(arguments.runs.split(","), map(int, arguments.together.split(","))):
            mark = f"{name} {together} {time.monotonic_ns()}" if arguments.cold else ""
            prompts = [prompt(number, arguments.prompt_tokens, mark) for number in range(arguments.prompts)]
            line, answers = await run(client, arguments, name, together, prompts)
            for number, text in enumerate(answers):
                key = (name, prompts[number % len(prompts)])
                if text is not None and key in known:
                    diverged[name].append(known[key] != text)
                elif text is not None:
                    known[key] = text
            accepted = f"{line.accepted / line.drafted:.1%}" if line.drafted else ""
            per_pass = f"{line.verifier_seconds / line.passes:.2f}" if line.passes else ""
            first_chunk = f"{statistics.median(line.firsts):.2f} s" if line.firsts else ""
            print(
                f"{line.name:22} {line.tokens / line.seconds:9.1f} {first_chunk:>12} {line.passes or '':>7} "
                f"{line.rollbacks if line.passes else '':>7} {accepted:>9} {per_pass:>7}  "
                f"{sum(diverged[name])} of {len(diverged[name])}" + (f", {line.failed} failed" if line.failed else ""),
                flush=True,
            )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--requests", type=int, default=24)
    parser.add_argument("--prompts", type=int, default=12, help="different prompts among them")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--prompt-tokens", type=int, default=100)
    parser.add_argument("--cold", action="store_true", help="prompts of their own for each line, which nothing cached")
    parser.add_argument("--together", default="12", help="how many requests at a time; several with commas")
    parser.add_argument("--runs", default="standard,isolated,verified:32,verified:64,verified:128")
    asyncio.run(measure(parser.parse_args()))


if __name__ == "__main__":
    main()
