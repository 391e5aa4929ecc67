"""The engine's parameters from a calibration."""

import json
from collections import defaultdict
from pathlib import Path
from statistics import fmean

import pytest

from app.probe.mix_draws import Draws
from app.scheduling.ticket import Admission
from app.simulation.engine import EngineModel
from app.simulation.fifo import FifoLock
from app.simulation.fit import fit, solve
from app.simulation.measured import Calibration, Measured, NotUsable, read_measured
from app.simulation.replica import SimulatedReplica, Work
from tests.unit.simulation.documents import document, written

ENGINES = [
    EngineModel(0.040, 0.0040, 0.030),
    EngineModel(0.008, 0.0001, 0.004),
    EngineModel(0.050, 0.0, 0.0),
    EngineModel(0.0, 0.010, 0.050),
]


def observed(engine: EngineModel, clients: int, *, seconds: float = 2_000.0) -> Calibration:
    """What a calibration of a simulated replica shows: a closed loop, request by request."""
    now = 0.0
    replica = SimulatedReplica(FifoLock(), engine, lambda: now)
    draws = Draws()
    latencies: dict[int, list[float]] = defaultdict(list)
    returning = [(client * 0.01, client) for client in range(clients)]
    while now < seconds:
        end = replica.next_end()
        if returning and (end is None or returning[0][0] <= end):
            now, _ = returning.pop(0)
            replica.ask(Work(Admission.SHARED, draws.draw().tokens, now))
        elif end is not None:
            now = end
            work = replica.end_next()
            latencies[work.tokens].append(now - work.asked)
            returning.append((now, 0))
    answers = sum(map(len, latencies.values()))
    tokens = sum(length * len(times) for length, times in latencies.items())
    return Calibration(
        clients=clients,
        tokens_per_second=tokens / seconds,
        answers_per_second=answers / seconds,
        latencies=tuple((length, len(times), fmean(times)) for length, times in sorted(latencies.items())),
    )


@pytest.mark.parametrize("engine", ENGINES)
def test_the_fit_recovers_the_engine_that_was_observed(engine: EngineModel) -> None:
    """From latencies of a replica that works request by request, rates and parameters come back."""
    points = tuple(observed(engine, clients) for clients in (1, 2, 4, 8, 16))
    fitted = fit(Measured("tiny", 1, 16, points, ()))

    assert fitted.error < 0.01
    step = engine.step(1)
    assert fitted.engine.fixed == pytest.approx(engine.fixed, abs=0.01 * step)
    assert fitted.engine.each == pytest.approx(engine.each, abs=0.01 * step)
    assert fitted.engine.prefill == pytest.approx(engine.prefill, abs=0.15 * step)


def test_a_calibration_over_several_replicas_is_one_of_smaller_batches(tmp_path: Path) -> None:
    """Eight clients on two replicas are batches of four."""
    one = document(ENGINES[0])
    two = json.loads(json.dumps(one))
    for point in two["calibration"]:
        point["clients"] *= 2
        point["answers"] *= 2
        point["tokens_per_second"] *= 2
        point["replicas"] = ["one", "two"]

    expected = fit(read_measured(written(tmp_path, one))).engine
    measured = read_measured(written(tmp_path, two))
    assert measured.replicas == 2
    assert fit(measured).engine.step(4) == pytest.approx(expected.step(4))


def test_no_parameter_becomes_negative() -> None:
    """Where the plain solution has a negative one, it is 0 and the others make the best of it."""
    # y = 3 - x at three places: the best non-negative line is flat.
    rows = [((1.0, x), 3.0 - x) for x in (0.0, 1.0, 2.0)]

    assert solve(rows, 2) == pytest.approx((2.0, 0.0))


def test_the_plain_solution_is_taken_where_it_is_not_negative() -> None:
    """Exact data give their own parameters."""
    rows = [((1.0, x, x * x), 2.0 + 3.0 * x + 0.5 * x * x) for x in (0.0, 1.0, 2.0, 5.0)]

    assert solve(rows, 3) == pytest.approx((2.0, 3.0, 0.5))


def test_latencies_that_do_not_grow_fit_no_engine() -> None:
    """An answer that takes as long whatever its length says nothing of a step."""
    points = tuple(Calibration(clients, 10.0, 1.0, ((8, 5, 2.0), (48, 5, 0.1))) for clients in (1, 2))

    with pytest.raises(NotUsable, match="fits no engine"):
        fit(Measured("tiny", 1, 2, points, ()))
