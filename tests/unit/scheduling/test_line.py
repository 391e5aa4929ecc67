"""The line of exclusive tickets, apart from any gate."""

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from app.scheduling.line import Line
from app.scheduling.ticket import Admission, Levels, Ticket


def nothing() -> None:
    """Nobody waits for these tickets."""


def tickets() -> Callable[[str, int], Ticket]:
    """Makes tickets, numbered in order."""
    made: list[Ticket] = []

    def make(key: str = "", priority: int = 0) -> Ticket:
        ticket = Ticket(Admission.EXCLUSIVE, nothing, Levels(), key, priority, 0.0)
        made.append(ticket)
        ticket.number = len(made)
        return ticket

    return make


keys = st.sampled_from("abc")
steps = st.one_of(
    st.tuples(st.just("add"), keys, st.integers(-1, 1)),
    st.tuples(st.just("remove"), st.integers(0, 20), st.just(0)),
    st.tuples(st.just("charge"), keys, st.integers(1, 4)),
    st.tuples(st.just("round"), st.just(""), st.just(0)),
)


@given(st.lists(steps, max_size=60))
def test_first_is_the_first_of_those_who_have_seconds_left(story: list[tuple[str, str | int, int]]) -> None:
    """Against a model that looks at every waiting ticket each time."""
    line, make = Line(5.0), tickets()
    waiting: list[Ticket] = []
    used: dict[str, float] = {}
    for action, subject, number in story:
        if action == "add":
            ticket = make(str(subject), number)
            waiting.append(ticket)
            line.add(ticket)
        elif action == "remove" and waiting:
            line.remove(waiting.pop(int(subject) % len(waiting)))
        elif action == "charge":
            used = {**used, str(subject): used.get(str(subject), 0.0) + number} if waiting else {}
            line.charge(str(subject), float(number))
        elif action == "round":
            used = {}
            line.new_round()
        able = [ticket for ticket in waiting if used.get(ticket.key, 0.0) < 5.0]
        expected = min(able, key=lambda ticket: (ticket.priority, ticket.number), default=None)
        assert line.first() is expected
        assert len(line) == len(waiting)


def test_the_memory_of_one_round_is_bounded() -> None:
    """However many callers come and go while one waits."""
    line, make = Line(5.0), tickets()
    line.add(make("waits", 0))
    for number in range(25_000):
        line.charge(str(number), 1.0)
    assert len(line._used) <= 10_000
