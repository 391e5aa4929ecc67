# ruff: noqa: T201 - its figures are its output
"""What observation costs, in microseconds of CPU time.

Run it from the repository root with ``python tests/benchmarks/observation.py``. Every figure is the least of
several rounds, so that other work on the machine disturbs it least. Nothing is asserted.
"""

import asyncio
import gc
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import orjson
from prometheus_client import CollectorRegistry

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from app.determinism.output import CHAT_PATH
from app.determinism.reading import OutputBuilder, read_unary
from app.observation.metrics import Metrics
from app.observation.recorder import Limits, Recorder
from app.observation.sqlite import SqliteStore
from app.observation.store import Observation, Store
from app.observation.watch import StreamWatch
from app.upstream.sse import SseSplitter

ROUNDS = 7
CHUNK = {
    "id": "chatcmpl-8f4ebb62b9184aef",
    "object": "chat.completion.chunk",
    "created": 1796030033,
    "model": "smollm2",
    "choices": [{"index": 0, "delta": {"content": " word"}, "logprobs": None, "finish_reason": None}],
}
LAST = {**CHUNK, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
ANSWER = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1,
    "model": "smollm2",
    "system_fingerprint": "vllm-0.32.0",
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "word " * 60},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ],
    "usage": {"prompt_tokens": 200, "completion_tokens": 60, "total_tokens": 260},
}


def per_call(name: str, work: Callable[[], object], calls: int) -> None:
    """Print the CPU time of one call of ``work`` that makes ``calls`` of them."""
    best = float("inf")
    for _ in range(ROUNDS):
        gc.collect()
        start = time.process_time()
        work()
        best = min(best, time.process_time() - start)
    print(f"{name:<58} {best / calls * 1e6:8.2f} us")


def event(document: object) -> bytes:
    """A document as one SSE event."""
    return b"data: " + orjson.dumps(document) + b"\n\n"


def streams() -> None:
    """The cost of one chunk."""
    chunk, data, count = event(CHUNK), orjson.dumps(CHUNK), 2000
    tokens = {**CHUNK["choices"][0], "token_ids": [57]}  # type: ignore[index]  # a JSON literal of this file
    with_ids = event({**CHUNK, "choices": [tokens]})

    def load() -> None:
        for _ in range(count):
            orjson.loads(data)

    def split() -> None:
        splitter = SseSplitter()
        for _ in range(count):
            splitter.feed(chunk)

    def build() -> None:
        builder = OutputBuilder(CHAT_PATH)
        for _ in range(count):
            builder.add(data)

    def watch(piece: bytes) -> None:
        watch = StreamWatch(CHAT_PATH)
        for _ in range(count):
            watch.feed(piece)
        watch.feed(event(LAST))
        watch.feed(b"data: [DONE]\n\n")
        watch.output()

    per_call("orjson.loads of one chunk, for comparison", load, count)
    per_call("SseSplitter.feed of one chunk", split, count)
    per_call("OutputBuilder.add of one event", build, count)
    per_call("StreamWatch per chunk, all of it", lambda: watch(chunk), count)
    per_call("StreamWatch per chunk with token ids", lambda: watch(with_ids), count)
    per_call("StreamWatch per event, 8 events a chunk", lambda: watch(chunk * 8), count * 8)


def answers() -> None:
    """The cost of one unary answer."""
    body, count = orjson.dumps(ANSWER), 2000

    def read() -> None:
        for _ in range(count):
            read_unary(CHAT_PATH, body)

    per_call(f"read_unary of {len(body)} bytes, digest included", read, count)


async def recording(name: str, *, repeats: int, cohorts: int, path: Path | None) -> None:
    """The cost of recording, on the loop's side and on the writer's."""
    output = read_unary(CHAT_PATH, orjson.dumps(ANSWER))
    metrics = Metrics(CollectorRegistry())
    metrics.declare("smollm2")
    total = repeats * cohorts
    open_store: Callable[[], Store] | None = (lambda: SqliteStore(path)) if path else None
    loop_side, writer_side = float("inf"), float("inf")
    async with Recorder(metrics, open_store, Limits(queue_observations=total, queue_bytes=1 << 40)) as recorder:
        for round_ in range(3):
            keys = [f"{round_:02d}{number:062x}" for number in range(cohorts)] * repeats
            gc.collect()
            before = time.process_time()
            start = time.thread_time()
            for key in keys:
                recorder.submit(
                    Observation("id", key, "smollm2", "standard", "127.0.0.1:8001", "p-0123456789abcdef", 1, output)
                )
            spent = time.thread_time() - start
            await recorder.flush(120.0)
            loop_side = min(loop_side, spent / total)
            writer_side = min(writer_side, (time.process_time() - before - spent) / total)
    print(f"{name:<58} {loop_side * 1e6:8.2f} us on the loop {writer_side * 1e6:8.2f} us on the writer")


def request_metrics() -> None:
    """The cost of the metrics of one request."""
    metrics, count = Metrics(CollectorRegistry()), 5000
    metrics.declare("smollm2")
    leases = metrics.leases("127.0.0.1:8001")

    def count_requests() -> None:
        for _ in range(count):
            bound = metrics.of("smollm2", "standard")
            leases.shared.inc()
            metrics.admission_wait["shared"].observe(0.0)
            bound.time_to_first_token.observe(0.1)
            bound.coresident_peak.observe(1)
            bound.request_seconds.observe(0.1)
            bound.requests["ok"].inc()
            leases.shared.dec()

    per_call("all metrics of one request", count_requests, count)
    per_call(f"rendering the page, {len(metrics.render('')[0]) >> 10} KiB", lambda: metrics.render(""), 1)


def main() -> None:
    """Print all figures."""
    streams()
    answers()
    request_metrics()
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(recording("recording repeats of 1 cohort, in memory", repeats=10_000, cohorts=1, path=None))
        asyncio.run(
            recording("recording repeats of 1 cohort, SQLite", repeats=10_000, cohorts=1, path=Path(folder) / "a")
        )
        asyncio.run(
            recording("recording 5000 cohorts, twice each, SQLite", repeats=2, cohorts=5000, path=Path(folder) / "b")
        )
        asyncio.run(
            recording("recording 10000 cohorts, once each, SQLite", repeats=1, cohorts=10_000, path=Path(folder) / "c")
        )


if __name__ == "__main__":
    main()
