"""The fleet in simulated time, against closed forms and against what must hold of any run."""

from dataclasses import replace

import pytest

from app.scheduling.gate import Gate, GatePolicy
from app.simulation.engine import EngineModel
from app.simulation.fleet import Outcome, Scenario, simulate
from app.simulation.sweep import LOCKS

ENGINE = EngineModel(0.04, 0.004, prefill=0.03)
PLAIN = EngineModel(0.04, 0.004)


def scenario(percent: float, *, replicas: int = 1, engine: EngineModel = ENGINE, gate: str = "phase-fair") -> Scenario:
    """Sixteen clients per replica for ten minutes."""
    return Scenario(
        engine=engine,
        replicas=replicas,
        clients=16 * replicas,
        percent=percent,
        warmup=100.0,
        seconds=600.0,
        make_lock=LOCKS[gate](GatePolicy()),
        spill=30.0,
        seed=1,
    )


@pytest.mark.parametrize("gate", LOCKS)
@pytest.mark.parametrize("replicas", [1, 3])
def test_ordinary_traffic_makes_a_token_per_client_and_step(gate: str, replicas: int) -> None:
    """At 0 % N clients make N / step(N) tokens per second on each replica, and nobody waits."""
    outcome = simulate(scenario(0.0, engine=PLAIN, gate=gate, replicas=replicas))

    assert outcome.tokens_per_second == pytest.approx(replicas * 16 / PLAIN.step(16), rel=1e-3)
    assert outcome.shared is not None
    assert (outcome.shared.p99, outcome.isolated, outcome.exclusive_share) == (0.0, None, 0.0)


@pytest.mark.parametrize("gate", LOCKS)
def test_isolated_traffic_makes_a_token_per_step_of_one(gate: str) -> None:
    """At 100 % one request runs at a time: 1 / step(1) tokens per second, all of the time exclusive."""
    outcome = simulate(scenario(100.0, engine=PLAIN, gate=gate))

    assert outcome.tokens_per_second == pytest.approx(1 / PLAIN.step(1), rel=1e-3)
    assert outcome.exclusive_share == pytest.approx(1.0)
    assert outcome.shared is None
    assert outcome.isolated is not None
    # Fifteen others go first, of 25 tokens in the mean.
    assert outcome.isolated.p50 == pytest.approx(15 * 25 * PLAIN.step(1), rel=0.1)


def test_a_prefill_costs_the_whole_batch_its_time() -> None:
    """With it, the rate at 0 % is that of the model's own closed form."""
    outcome = simulate(scenario(0.0))

    assert outcome.tokens_per_second == pytest.approx(ENGINE.throughput(16, 25.0), rel=0.01)


@pytest.mark.parametrize("gate", LOCKS)
@pytest.mark.parametrize("replicas", [1, 4])
@pytest.mark.parametrize("percent", [0.0, 5.0, 25.0, 50.0, 100.0])
def test_every_request_that_starts_ends(percent: float, replicas: int, gate: str) -> None:
    """None is forgotten by a lock, lost in a queue or counted twice."""
    outcome = simulate(scenario(percent, replicas=replicas, gate=gate))

    assert outcome.started == outcome.ended > 500
    assert outcome.refused == 0
    counted = [each.known for each in (outcome.shared, outcome.isolated) if each is not None]
    assert 0 < sum(counted) < outcome.ended
    assert 0 <= outcome.exclusive_share <= 1


def test_a_full_queue_refuses_and_the_client_comes_again() -> None:
    """What the gate refuses is counted, and still every request that got in ends."""
    narrow = replace(
        scenario(50.0), make_lock=lambda clock: Gate(GatePolicy(most_exclusive=2, most_shared=3), clock=clock)
    )
    outcome = simulate(narrow)

    assert outcome.refused > 0
    assert outcome.started == outcome.ended + outcome.refused


def test_equal_seeds_give_equal_outcomes_and_others_others() -> None:
    """A simulation can be repeated by its settings alone."""
    first = simulate(scenario(25.0, replicas=3))

    assert simulate(scenario(25.0, replicas=3)) == first
    assert simulate(replace(scenario(25.0, replicas=3), seed=2)) != first


def test_the_gate_beats_a_plain_writer_lock() -> None:
    """At 10 % isolated, phases that share a drain keep more tokens per second than a drain per request."""
    fair, plain = (simulate(scenario(10.0, gate=gate)) for gate in ("phase-fair", "fifo"))

    assert fair.tokens_per_second > 1.1 * plain.tokens_per_second


def test_a_fleet_keeps_exclusive_work_from_shared_requests() -> None:
    """On ten replicas at 5 % shared requests wait for nobody; on one they do."""
    one, ten = (simulate(scenario(5.0, replicas=replicas)) for replicas in (1, 10))

    assert waits(one) > 1.0
    assert waits(ten) == 0.0


def waits(outcome: Outcome) -> float:
    """The shared class's wait at p99."""
    assert outcome.shared is not None
    return outcome.shared.p99
