"""The engine's parameters from a measured calibration: weighted least squares with no negative parameter. Pure.

One observation is the mean latency y of answers with L tokens at c clients per replica, of which each replica answered
r per second. In the model (`app.simulation.engine`) it is

    y = fixed L + each c L + prefill (1 + r (c - 1) / c y)

because the other clients begin r (c - 1) / c requests per second: linear in the three parameters. Errors are relative,
and every number of clients weighs the same, shared among its lengths by answers: large batches have many answers, and
must not drown the batch of one, on which isolated requests depend.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean
from typing import Final

from app.simulation.engine import EngineModel
from app.simulation.measured import Calibration, Measured, NotUsable

_PARAMETERS: Final = 3
_TINY: Final = 1e-12
_ROUNDING: Final = 1e-9

Row = tuple[tuple[float, ...], float]
"""Coefficients of the parameters, and what their sum should be; both already weighted."""


@dataclass(frozen=True, slots=True)
class Fit:
    """The fitted engine, and the points: clients, tokens per second measured, tokens per second by the model."""

    engine: EngineModel
    points: tuple[tuple[int, float, float], ...]

    @property
    def error(self) -> float:
        """The root mean square of the relative errors in tokens per second."""
        return math.sqrt(fmean((model / measured - 1) ** 2 for _, measured, model in self.points))


def fit(measured: Measured) -> Fit:
    """The engine that fits best. Raises NotUsable where the calibration describes none."""
    rows = [row for point in measured.calibration for row in _rows(point, measured.replicas)]
    engine = EngineModel(*solve(rows, _PARAMETERS))
    if engine.step(1) <= 0:
        raise NotUsable("the calibration fits no engine: its latencies do not grow with the tokens of an answer")
    points = tuple(
        (point.clients, point.tokens_per_second, _predicted(engine, point, measured.replicas))
        for point in measured.calibration
    )
    return Fit(engine, points)


def solve(rows: Sequence[Row], size: int) -> tuple[float, ...]:
    """The non-negative parameters with the least sum of squares.

    The minimum under that condition is the plain minimum over some subset of the parameters with the others 0; of three
    parameters there are few enough subsets to try each.
    """
    best, least = (0.0,) * size, sum(wanted**2 for _, wanted in rows)
    for count in range(1, size + 1):
        for chosen in combinations(range(size), count):
            values = _plain(rows, chosen)
            if values is None or min(values) < 0:
                continue
            full = [0.0] * size
            for place, value in zip(chosen, values, strict=True):
                full[place] = value
            rest = sum((sum(map(float.__mul__, row, full)) - wanted) ** 2 for row, wanted in rows)
            if rest < least * (1 - _ROUNDING):
                best, least = tuple(full), rest
    return best


def _rows(point: Calibration, replicas: int) -> list[Row]:
    clients = point.clients / replicas
    begun_per_second = point.answers_per_second / replicas * max(0.0, clients - 1) / clients
    all_answers = sum(answers for _, answers, _ in point.latencies)
    rows: list[Row] = []
    for tokens, answers, latency in point.latencies:
        weight = math.sqrt(answers / all_answers) / latency
        coefficients = (float(tokens), clients * tokens, 1 + begun_per_second * latency)
        rows.append((tuple(weight * each for each in coefficients), weight * latency))
    return rows


def _predicted(engine: EngineModel, point: Calibration, replicas: int) -> float:
    answers = sum(count for _, count, _ in point.latencies)
    tokens = sum(length * count for length, count, _ in point.latencies) / answers
    return replicas * engine.throughput(point.clients / replicas, tokens)


def _plain(rows: Sequence[Row], chosen: tuple[int, ...]) -> list[float] | None:
    """Least squares over the chosen parameters by their normal equations; None where these have no one solution."""
    size = len(chosen)
    matrix = [
        [sum(row[one] * row[other] for row, _ in rows) for other in chosen]
        + [sum(row[one] * wanted for row, wanted in rows)]
        for one in chosen
    ]
    for column in range(size):
        pivot = max(range(column, size), key=lambda place: abs(matrix[place][column]))
        if abs(matrix[pivot][column]) < _TINY:
            return None
        matrix[column], matrix[pivot] = matrix[pivot], matrix[column]
        for place in range(size):
            if place != column:
                factor = matrix[place][column] / matrix[column][column]
                matrix[place] = [a - factor * b for a, b in zip(matrix[place], matrix[column], strict=True)]
    return [matrix[place][size] / matrix[place][place] for place in range(size)]
