"""The witnesses on a real engine: how the guard's clock is compared with ours, and what vLLM's gauge can contradict."""

import math
from typing import Any

import pytest

from tests.support.engine_storm import EngineAftermath, judge
from tests.support.intervals import NEVER, Ending, overlaps
from tests.support.witness import GuardsLog, Sample, Witness, contradictions


def entry(sequence: int, granted: int, ended: int | None, **more: Any) -> dict[str, Any]:
    """One line of the guard's log, as it answers it."""
    times = {"asked_us": granted - 5, "granted_us": granted, "started_us": granted + 1, "ended_us": ended}
    return {"sequence": sequence, "request": f"r{sequence}", "admission": "exclusive", "peak": 1, **times, **more}


def page(*entries: dict[str, Any], epoch: str = "e-1") -> dict[str, Any]:
    return {"epoch": epoch, "next": 0, "admissions": [{**one, "epoch": epoch} for one in entries]}


def test_an_open_entry_is_read_again() -> None:
    """The log goes on behind what has ended; what has not is asked for until it has."""
    log = GuardsLog()
    assert log.after == 0
    log.take(page(entry(1, 10, 20), entry(2, 30, None), entry(3, 40, 50)), came=1e3)
    assert log.after == 1
    assert [(one.end, one.ending) for one in log.intervals()][1] == (NEVER, Ending.UNSEEN)
    log.take(page(entry(2, 30, 35), entry(3, 40, 50)), came=2e3)
    assert (log.after, len(log.entries), log.lost) == (3, 3, 0)
    assert overlaps(log.intervals()) == []


def test_lost_entries_and_another_engine_are_noticed() -> None:
    """A log with a hole proves nothing, and neither does one that began anew."""
    log = GuardsLog()
    log.take(page(entry(1, 10, 20), entry(4, 30, 40)), came=1e3)
    assert log.lost == 2
    with pytest.raises(ValueError, match="started anew"):
        log.take(page(epoch="e-2"), came=2e3)


def test_the_clocks_are_bounded_from_both_sides() -> None:
    """The guard's zero is not before any sending less its asking, nor after any page's coming less its last time."""
    log = GuardsLog()
    assert log.earliest_zero({"r1": 5.0}) == -math.inf
    log.take(page(entry(1, 100, 200), entry(2, 300, 400)), came=1420.0)
    log.take(page(entry(3, 500, None)), came=1510.0)
    assert log.latest_zero == 1009.0
    assert log.earliest_zero({"r1": 1090.0, "r2": 1290.0, "unknown": 9e9}) == 995.0


def samples(*readings: tuple[int, float, float]) -> list[Sample]:
    """Samples that were asked for at a time and came one microsecond later: (time, running, tokens so far)."""
    return [Sample(asked, asked + 1, running, generated) for asked, running, generated in readings]


def exclusive(begin: int, end: int) -> GuardsLog:
    log = GuardsLog()
    log.take(page(entry(1, begin, end, started_us=begin)), came=1e9)
    return log


@pytest.mark.parametrize(
    ("readings", "counted", "found"),
    [
        ([(110, 1, 5), (120, 2, 6)], 1, 1),
        ([(110, 3, 5), (120, 1, 6), (130, 1, 7)], 2, 0),
        ([(110, 3, 5), (120, 3, 5)], 0, 0),
        ([(90, 3, 5), (120, 3, 6)], 0, 0),
        ([(110, 1, 5), (200, 4, 9)], 0, 0),
        ([(110, 1, 5), (150, 1, 6), (260, 4, 9)], 1, 0),
    ],
)
def test_the_gauge_counts_where_it_says_something(
    readings: list[tuple[int, float, float]], counted: int, found: int
) -> None:
    """Only surely inside the interval, and once the engine has reported there; more than one contradicts then."""
    said, against = contradictions(exclusive(100, 200).intervals(), samples(*readings), (0.0, 5.0))
    assert (said, len(against)) == (counted, found)


def test_the_clocks_difference_is_taken_into_account() -> None:
    """The interval is moved to our clock, and shortened by what is not known of it."""
    interval = exclusive(100, 200).intervals()
    assert contradictions(interval, samples((1110, 1, 5), (1150, 2, 6)), (990.0, 1010.0))[0] == 1
    assert contradictions(interval, samples((1105, 1, 5), (1150, 2, 6)), (990.0, 1010.0))[0] == 0
    assert contradictions(interval, samples((1110, 1, 5), (1191, 2, 6)), (990.0, 1010.0))[0] == 0


def test_what_is_planted_is_judged() -> None:
    """An overlap, a peak, a contradiction and a hole in the log each break the proof."""
    witness = Witness("http://127.0.0.1:1", "key")
    witness.log.take(
        page(entry(1, 100, 200), entry(2, 150, 300, admission="shared"), entry(4, 400, 500, peak=2)), came=1500.0
    )
    witness.samples = samples((1410, 1, 5), (1450, 2, 6))
    after = EngineAftermath()
    judge(after, witness, {"r1": 1_095_000})

    assert (after.exclusive, after.shared, after.most_at_once) == (2, 1, 2)
    assert after.overlaps == ["#1 r1 (exclusive) ran beside #2 r2 at 150"]
    assert after.not_alone == ["#4 r4: peak 2"]
    assert len(after.contradicted) == 1
    assert after.unproven == ["1 entries of the guard's log were overwritten before they were read"]
    assert after.broken.keys() == {"overlaps", "not_alone", "contradicted", "unproven"}


def test_a_proof_needs_samples() -> None:
    """No sample inside an exclusive interval is no proof, however little is wrong."""
    witness = Witness("http://127.0.0.1:1", "key")
    witness.log.take(page(entry(1, 100, 200)), came=1300.0)
    after = EngineAftermath()
    judge(after, witness, {"r1": 1_000_000})
    assert after.broken.keys() == {"unproven"}
