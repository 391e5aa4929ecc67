"""The judge of isolation itself: it finds what was planted, and nothing else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.intervals import (
    NEVER,
    Ending,
    Interval,
    begun_for_nobody,
    executed_twice,
    most_at_once,
    overlaps,
    read_departures,
    read_log,
)


def interval(name: str, begin: int, end: int | None, *, places: tuple[int, int] = (0, 0)) -> Interval:
    """An interval; a name that begins with x is exclusive."""
    return Interval(
        name, name.startswith("x"), (begin, places[0]), NEVER if end is None else (end, places[1]), Ending.FINISHED
    )


def pairs(*intervals: Interval) -> list[tuple[str, str]]:
    return sorted((one.exclusive.request, one.other.request) for one in overlaps(intervals))


@pytest.mark.parametrize(
    ("x", "other"),
    [
        ((10, 20), (15, 25)),
        ((10, 20), (5, 15)),
        ((10, 20), (12, 13)),
        ((10, 20), (0, 30)),
        ((10, 20), (10, 20)),
        ((10, 20), (10, 12)),
        ((10, 20), (18, 20)),
        ((10, 20), (15, 15)),
        ((15, 15), (10, 20)),
        ((10, 20), (19, None)),
        ((10, None), (25, 30)),
        ((10, None), (0, None)),
    ],
)
def test_a_planted_overlap_is_found(x: tuple[int, int | None], other: tuple[int, int | None]) -> None:
    """Whatever its shape: beside, inside, around, the same, without length, without an end."""
    assert pairs(interval("x", *x), interval("s", *other)) == [("x", "s")]
    assert len(overlaps([interval("x1", *x), interval("x2", *other)])) == 1


@pytest.mark.parametrize(
    ("x", "other"),
    [((10, 20), (20, 30)), ((10, 20), (0, 10)), ((10, 20), (20, 20)), ((10, 20), (10, 10)), ((10, 20), (21, None))],
)
def test_what_only_touches_does_not_overlap(x: tuple[int, int | None], other: tuple[int, int | None]) -> None:
    """An end and a beginning at one rounded moment are no overlap."""
    assert pairs(interval("x", *x), interval("s", *other)) == []


def test_the_order_of_the_log_decides_ties() -> None:
    """Two that were written at one nanosecond overlap exactly if the log says so."""
    assert pairs(interval("x", 5, 5, places=(0, 2)), interval("s", 5, 5, places=(1, 3))) == [("x", "s")]
    assert pairs(interval("x", 5, 5, places=(0, 1)), interval("s", 5, 5, places=(2, 3))) == []


def test_shared_ones_may_overlap() -> None:
    """Only an exclusive one has a right to be alone, and each other that disturbs it counts."""
    crowd = [interval(f"s{number}", number, 10 + number) for number in range(5)]
    assert pairs(*crowd) == []
    assert most_at_once(crowd) == 5
    assert pairs(*crowd, interval("x", 3, 4)) == [("x", "s0"), ("x", "s1"), ("x", "s2"), ("x", "s3")]


moments = st.tuples(st.integers(0, 12), st.integers(0, 1))
spans = st.tuples(moments, moments, st.booleans()).map(lambda span: (*sorted(span[:2]), span[2]))


@given(st.lists(spans, max_size=12))
def test_it_agrees_with_the_definition(drawn: list[tuple[tuple[int, int], tuple[int, int], bool]]) -> None:
    """The sweep finds exactly the pairs of which each began before the other ended."""
    known = [Interval(str(number), x, begin, end) for number, (begin, end, x) in enumerate(drawn)]
    expected = {
        frozenset((a.request, b.request))
        for at, a in enumerate(known)
        for b in known[:at]
        if (a.exclusive or b.exclusive) and a.begin < b.end and b.begin < a.end
    }
    found = overlaps(known)
    assert {frozenset((one.exclusive.request, one.other.request)) for one in found} == expected
    assert len(found) == len(expected)
    assert all(one.exclusive.exclusive for one in found)


LOG = """\
b 100 7.1 s r1
b 105 7.2 s r2
c 106 7.2 s r2
e 110 7.1 s r1
a 112 7.2 s r2
b 120 7.3 x r3
k 130 7 - -
b 140 8.1 x r4
e 150 8.1 x r4
b 160 8.2 s r3
"""


def test_a_log_is_read() -> None:
    """Ends, aborts and kills close what had begun; what nobody closed is open; an unrelated process closes nothing."""
    found = {(one.request, one.begin[0]): one for one in read_log(LOG.splitlines())}
    assert {key: (one.end[0], one.ending) for key, one in found.items()} == {
        ("r1", 100): (110, Ending.FINISHED),
        ("r2", 105): (112, Ending.ABORTED),
        ("r3", 120): (130, Ending.KILLED),
        ("r4", 140): (150, Ending.FINISHED),
        ("r3", 160): (NEVER[0], Ending.UNSEEN),
    }
    assert [one.exclusive for one in found.values()].count(True) == 2
    assert overlaps(found.values()) == []
    assert executed_twice(found.values()) == {"r3": 2}
    assert read_departures(LOG.splitlines()) == {"r2": 106}


def test_a_kill_closes_its_own_process_only() -> None:
    """What process 70 runs does not end with process 7, so the overlap with what comes later is found."""
    log = ["b 1 70.1 s old", "k 2 7 - -", "b 3 8.1 x new", "e 4 8.1 x new", "e 5 70.1 s old"]
    assert [(one.exclusive.request, one.other.request) for one in overlaps(read_log(log))] == [("new", "old")]


@pytest.mark.parametrize(
    "log",
    [
        ["b 5 1.1 s r", "e 4 1.1 s r"],
        ["e 4 1.1 s r"],
        ["b 1 1.1 s r", "b 2 1.1 s r"],
        ["b 1 1.1 s r", "e 2 1.1 s r", "a 3 1.1 s r"],
        ["b 1 1.1 s"],
        ["? 1 1.1 s r"],
    ],
)
def test_a_broken_log_is_no_witness(log: list[str]) -> None:
    """It is refused, never read as one that shows nothing wrong."""
    with pytest.raises(ValueError, match=r"line \d|unpack"):
        read_log(log)


def test_an_interval_that_ends_before_it_begins_is_refused() -> None:
    """Such a clock can prove nothing."""
    with pytest.raises(ValueError, match="ends before it begins"):
        overlaps([interval("x", 5, 4)])


def test_executions_on_two_engines_count_together() -> None:
    """A request that ran once here and once there ran twice."""
    assert executed_twice([interval("a", 1, 2)], [interval("a", 3, 4), interval("b", 1, 9)]) == {"a": 2}


def test_work_for_nobody_is_found() -> None:
    """What began after its client had gone, beyond the grace; and what was never wholly sent, whenever it began."""
    known = [interval("a", 100, 110), interval("b", 100, 110), interval("c", 100, 110)]
    gone = {"a": 80, "b": 95, "never": 0}
    assert [one.request for one in begun_for_nobody(known, gone, grace=10)] == ["a"]
    assert [one.request for one in begun_for_nobody(known, {"c": 0})] == ["c"]
