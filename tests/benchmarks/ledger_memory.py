# ruff: noqa: T201 - its figures are its output
"""What a million distinct requests leave in memory, and how large and slow the metrics page becomes.

Run it from the repository root with ``python tests/benchmarks/ledger_memory.py [REQUESTS]`` (1,000,000, some minutes).
The exit status is 1 when a limit is missed: 200 MiB above the start, 2,000 series, 50 ms of CPU time for a page.
"""

import asyncio
import gc
import secrets
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import orjson
from prometheus_client import CollectorRegistry

from app.determinism.output import CHAT_PATH
from app.determinism.reading import read_unary
from app.observation.metrics import Metrics
from app.observation.recorder import Limits, Recorder
from app.observation.sqlite import SqliteStore
from app.observation.store import Observation

REQUESTS = 1_000_000
MODELS = 100_000
MOST_MIB = 200.0
MOST_SERIES = 2_000
MOST_SECONDS = 0.05
WORDS = 120
RENDERINGS = 9


def resident() -> float:
    """This process's resident memory in MiB."""
    line = next(each for each in Path("/proc/self/status").read_text().splitlines() if each.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


def answer(number: int) -> bytes:
    """The body of an answer like no other."""
    text = f"{number} " + "word " * WORDS
    message: dict[str, object] = {"role": "assistant", "content": text, "refusal": None, "tool_calls": []}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
    return orjson.dumps({"choices": [choice], "usage": {"completion_tokens": WORDS, "prompt_tokens": 200}})


async def requests(metrics: Metrics, count: int) -> float:
    """Record distinct requests as fast as the writer takes them; returns the MiB above the start at their highest."""
    with tempfile.TemporaryDirectory() as folder:
        start = resident()
        highest = 0.0
        began = time.perf_counter()
        async with Recorder(metrics, partial(SqliteStore, Path(folder) / "ledger"), Limits()) as recorder:
            for number in range(count):
                output = read_unary(CHAT_PATH, answer(number))
                observation = Observation(
                    f"r-{number:016x}", secrets.token_hex(32), "m", "standard", "127.0.0.1:8001", "p-0123456789abcdef",
                    1, output,
                )  # fmt: skip
                recorder.submit(observation)
                if recorder.queued > 2_000:
                    await recorder.flush(60.0)
                if number % 10_000 == 0:
                    highest = max(highest, resident() - start)
                    await asyncio.sleep(0)
            await recorder.flush(60.0)
            highest = max(highest, resident() - start)
            size = await recorder.ask(lambda store: store.size(), 60.0)
        seconds = time.perf_counter() - began
    print(
        f"{count} distinct requests in {seconds:.0f} s: {highest:.0f} MiB above the start at most; the ledger holds "
        f"{size.cohorts} cohorts in {size.bytes / 2**20:.0f} MiB"
    )
    return highest


async def page(metrics: Metrics) -> tuple[int, float]:
    """Count requests of models with random names; returns the series, and the CPU seconds of the median page."""
    recorder = Recorder(metrics, None, Limits())
    output = read_unary(CHAT_PATH, answer(0))
    async with recorder:
        for number in range(MODELS):
            model = secrets.token_hex(8)
            bound = metrics.of(model, "standard")
            bound.requests["ok"].inc()
            bound.request_seconds.observe(0.1)
            bound.time_to_first_token.observe(0.1)
            recorder.submit(Observation("r", f"{number % 5000:064x}", model, "standard", "r", "p-1", 1, output))
            if recorder.queued > 2_000:
                await recorder.flush(60.0)
        await recorder.flush(60.0)
    gc.collect()
    busy, took = [], []
    body = b""
    for _ in range(RENDERINGS):
        start, begun = time.thread_time(), time.perf_counter()
        body, _ = metrics.render("application/openmetrics-text; version=1.0.0")
        busy.append(time.thread_time() - start)
        took.append(time.perf_counter() - begun)
    series = sum(not line.startswith(b"#") for line in body.splitlines())
    middle = sorted(busy)[RENDERINGS // 2]
    print(
        f"{MODELS} random model names: {series} series, {len(body) / 1024:.0f} KiB, rendered in "
        f"{middle * 1e3:.0f} ms of CPU time (median of {RENDERINGS}), {min(took) * 1e3:.0f} ms on the clock at best"
    )
    return series, middle


def main() -> int:
    """Print all figures."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else REQUESTS
    metrics = Metrics(CollectorRegistry())
    metrics.declare("m")
    above = asyncio.run(requests(metrics, count))
    series, seconds = asyncio.run(page(metrics))
    return 0 if above < MOST_MIB and series < MOST_SERIES and seconds < MOST_SECONDS else 1


if __name__ == "__main__":
    sys.exit(main())
