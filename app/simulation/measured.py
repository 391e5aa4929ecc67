"""A measured run as the simulation needs it, read from the document of ``reprise probe --mix --json``."""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from app.probe.mix_document import FORMAT

_LEAST_POINTS: Final = 2


class NotUsable(Exception):
    """The simulation cannot start from this; the message is one line for the terminal."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """Ordinary traffic of so many clients; ``latencies``: tokens of an answer, how many answers, mean seconds."""

    clients: int
    tokens_per_second: float
    answers_per_second: float
    latencies: tuple[tuple[int, int, float], ...]


@dataclass(frozen=True, slots=True)
class Waits:
    """Median and 99th percentile, in seconds."""

    p50: float
    p99: float


@dataclass(frozen=True, slots=True)
class MeasuredRow:
    """One percentage as it was measured; None is what the run did not tell."""

    percent: float
    tokens_per_second: float
    exclusive_share: float | None
    shared: Waits | None
    isolated: Waits | None


@dataclass(frozen=True, slots=True)
class Measured:
    """The run: on how many replicas, with how many clients in all, and what it found."""

    model: str
    replicas: int
    clients: int
    calibration: tuple[Calibration, ...]
    rows: tuple[MeasuredRow, ...]


def read_measured(path: Path) -> Measured:
    """Read a document. Raises NotUsable, naming the file and what is wrong with it."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as exc:
        raise NotUsable(f"cannot read {path}: {exc.strerror}") from exc
    except (ValueError, RecursionError) as exc:
        raise NotUsable(f"{path} is not a JSON document") from exc
    said = document.get("format") if isinstance(document, dict) else None
    if said != FORMAT:
        raise NotUsable(
            f"{path} is no document of `reprise probe --mix --json`: its format is {said!r}, wanted is {FORMAT!r}"
        )
    try:
        measured = _measured(document)
    except (KeyError, TypeError, ValueError, AttributeError) as exc:
        raise NotUsable(f"{path} is damaged: {type(exc).__name__}: {exc}") from exc
    _check(measured, path)
    return measured


def _measured(document: dict[str, Any]) -> Measured:
    parts = [*document["calibration"], *document["sweep"]]
    return Measured(
        model=str(document["model"]),
        replicas=max(1, *(len(part["replicas"]) for part in parts)),
        clients=int(document["settings"]["clients"]),
        # A failed request is no answer of the engine, so a window that has one says little of it.
        calibration=tuple(
            _calibration(point)
            for point in document["calibration"]
            if point["latency_by_tokens"] and not point["failed"]
        ),
        rows=tuple(_row(row) for row in document["sweep"]),
    )


def _calibration(point: dict[str, Any]) -> Calibration:
    latencies = tuple(
        (int(each["tokens"]), int(each["answers"]), _positive(each["mean_seconds"]))
        for each in point["latency_by_tokens"]
    )
    return Calibration(
        clients=int(point["clients"]),
        tokens_per_second=_positive(point["tokens_per_second"]),
        answers_per_second=int(point["answers"]) / _positive(point["seconds"]),
        latencies=latencies,
    )


def _row(row: dict[str, Any]) -> MeasuredRow:
    return MeasuredRow(
        percent=_finite(row["percent"]),
        tokens_per_second=_finite(row["tokens_per_second"]),
        exclusive_share=None if row["exclusive_time_share"] is None else _finite(row["exclusive_time_share"]),
        shared=_waits(row["shared"]["wait_seconds"]),
        isolated=_waits(row["isolated"]["wait_seconds"]),
    )


def _waits(waits: dict[str, Any] | None) -> Waits | None:
    return None if waits is None else Waits(_finite(waits["p50"]), _finite(waits["p99"]))


def _finite(value: float) -> float:
    number = float(value)
    if not math.isfinite(number) or number < 0:
        raise ValueError(f"{value!r} is no measured figure")
    return number


def _positive(value: float) -> float:
    number = _finite(value)
    if number == 0:
        raise ValueError("0 is no measured duration or rate")
    return number


def _check(measured: Measured, path: Path) -> None:
    if measured.clients < 1:
        raise NotUsable(f"{path} is damaged: it names no clients")
    points = {point.clients for point in measured.calibration}
    if len(points) < _LEAST_POINTS:
        raise NotUsable(
            f"{path} lacks calibration: it holds {len(points)} number(s) of clients with answers and no failure, and a "
            f"fit needs {_LEAST_POINTS}; measure again with `reprise probe --mix ... --calibrate --json`"
        )
