"""Documents of a measured run, made rather than measured."""

import json
from pathlib import Path
from typing import Any

from app.probe.mix_draws import LENGTHS as DRAWN
from app.simulation.engine import EngineModel

LENGTHS = tuple(sorted(DRAWN))


def latency(engine: EngineModel, clients: int, tokens: int) -> float:
    """Seconds of an answer of that many tokens among so many clients, by the model."""
    begun_per_second = engine.throughput(clients, 25.0) / 25.0 * (clients - 1) / clients
    return (tokens * engine.step(clients) + engine.prefill) / (1 - engine.prefill * begun_per_second)


def document(engine: EngineModel, *, clients: int = 16, percentages: tuple[float, ...] = (0.0, 10.0)) -> dict[str, Any]:
    """What `reprise probe --mix --json` would print of such an engine; the sweep's figures are invented."""
    ladder = [1, 2, 4, 8, 16]
    waits = {"p50": 1.0, "p99": 5.0, "known": 100}
    return {
        "format": "reprise-mix/1",
        "url": "http://server",
        "model": "tiny",
        "settings": {"percentages": list(percentages), "clients": clients, "seconds": 60, "warmup": 5, "seed": 1},
        "calibration": [
            {
                "clients": count,
                "seconds": 100.0,
                "answers": round(100 * engine.throughput(count, 25.0) / 25.0),
                "failed": 0,
                "tokens_per_second": engine.throughput(count, 25.0),
                "latency_by_tokens": [
                    {"tokens": tokens, "answers": 10 * count, "mean_seconds": latency(engine, count, tokens)}
                    for tokens in LENGTHS
                ],
                "replicas": ["one"],
            }
            for count in ladder
        ],
        "sweep": [
            {
                "percent": percent,
                "seconds": 60.0,
                "tokens_per_second": 100.0,
                "retention": 1.0,
                "exclusive_time_share": 0.25,
                "shared": {"answers": 100, "failed": 0, "tokens": 1.0, "wait_seconds": waits, "latency_seconds": waits},
                "isolated": {"answers": 9, "failed": 0, "tokens": 1.0, "wait_seconds": None, "latency_seconds": None},
                "reason": None,
                "replicas": ["one"],
            }
            for percent in percentages
        ],
    }


def written(folder: Path, content: Any) -> Path:
    """The document in a file."""
    path = folder / "mix.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    return path
