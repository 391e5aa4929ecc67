"""One simulated replica: processor sharing by hand."""

import pytest

from app.scheduling.gate import Gate
from app.scheduling.ticket import Admission
from app.simulation.engine import EngineModel
from app.simulation.fifo import FifoLock
from app.simulation.replica import Lock, SimulatedReplica, Work

ENGINE = EngineModel(1.0, 1.0)
"""A token takes 2 s alone, 3 s in a batch of two."""


class Scene:
    """A replica with a clock in hand."""

    def __init__(self, engine: EngineModel = ENGINE, lock: Lock | None = None) -> None:
        self.now = 0.0
        self.replica = SimulatedReplica(FifoLock() if lock is None else lock, engine, lambda: self.now)

    def ask(self, at: float, tokens: int, admission: Admission = Admission.SHARED) -> Work:
        """A request arrives."""
        self.now = at
        work = Work(admission, tokens, at)
        self.replica.ask(work)
        return work

    def end(self) -> tuple[float, Work]:
        """Go to the next end."""
        moment = self.replica.next_end()
        assert moment is not None
        self.now = moment
        return moment, self.replica.end_next()


def test_a_request_alone_takes_its_tokens() -> None:
    """Tokens times the step of a batch of one; then nothing is left."""
    scene = Scene()
    work = scene.ask(5.0, 10)

    assert scene.end() == (25.0, work)
    assert scene.replica.next_end() is None


def test_a_newcomer_slows_down_who_runs() -> None:
    """Five tokens alone in 10 s, then five in a batch of two in 15 s; the newcomer goes on alone."""
    scene = Scene()
    first = scene.ask(0.0, 10)
    second = scene.ask(10.0, 8)

    assert scene.end() == (25.0, first)
    # Five of eight tokens made, three left alone.
    assert scene.end() == (31.0, second)


def test_a_prefill_holds_up_the_whole_batch() -> None:
    """A newcomer's prefill is time in which nobody advances."""
    scene = Scene(EngineModel(1.0, 1.0, prefill=4.0))
    first = scene.ask(0.0, 10)
    second = scene.ask(14.0, 20)

    # 4 s of prefill, 5 tokens in 10 s, 4 s of the newcomer's prefill, 5 tokens in 15 s.
    assert scene.end() == (33.0, first)
    assert scene.end() == (33.0 + 15 * 2, second)


def test_equal_requests_end_together() -> None:
    """Nobody is forgotten when several end at one moment."""
    scene = Scene()
    works = [scene.ask(0.0, 4) for _ in range(3)]

    ends = [scene.end() for _ in works]
    assert {moment for moment, _ in ends} == {16.0}
    assert [work for _, work in ends] == works


@pytest.mark.parametrize("gated", [False, True])
def test_an_exclusive_request_runs_alone(gated: bool) -> None:
    """It begins when those before it have ended, and who comes later begins after it, by either lock."""
    scene = Scene()
    if gated:
        scene.replica = SimulatedReplica(Gate(clock=lambda: scene.now), ENGINE, lambda: scene.now)
    shared = scene.ask(0.0, 10)
    alone = scene.ask(2.0, 5, Admission.EXCLUSIVE)
    late = scene.ask(3.0, 5)

    assert scene.end() == (20.0, shared)
    assert alone.granted == 20.0
    assert scene.end() == (30.0, alone)
    assert late.granted == 30.0
    assert scene.end() == (40.0, late)
