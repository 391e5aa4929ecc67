"""The line of exclusive tickets, apart from any gate."""

from typing import Protocol

from hypothesis import given
from hypothesis import strategies as st

from app.scheduling.line import Line
from app.scheduling.ticket import Admission, Levels, Ticket


class Make(Protocol):
    """Makes a ticket."""

    def __call__(self, key: str, priority: int = 0) -> Ticket:
        """The next one."""


def nothing() -> None:
    """Nobody waits for these tickets."""


def tickets() -> Make:
    """Makes tickets, numbered in order."""
    made: list[Ticket] = []

    def make(key: str, priority: int = 0) -> Ticket:
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
    st.tuples(st.just("take"), st.just(""), st.just(0)),
)


@given(st.lists(steps, max_size=60))
def test_turns_come_in_order_and_priority_orders_a_callers_own(story: list[tuple[str, str | int, int]]) -> None:
    """Against a model that looks at every turn and every waiting ticket each time."""
    line, make = Line(5.0), tickets()
    waiting: list[Ticket] = []
    turns: list[tuple[int, str]] = []
    used: dict[str, float] = {}
    for action, subject, number in story:
        if action == "add":
            ticket = make(str(subject), number)
            waiting.append(ticket)
            turns.append((ticket.number, ticket.key))
            line.add(ticket)
        elif action == "remove" and waiting:
            ticket = waiting.pop(int(subject) % len(waiting))
            own = (ticket.number, ticket.key)
            turns.remove(own if own in turns else max(turn for turn in turns if turn[1] == ticket.key))
            line.remove(ticket)
        elif action == "charge":
            total = sum(used.values()) + number
            used = {**used, str(subject): used.get(str(subject), 0.0) + number} if waiting and total < 50.0 else {}
            line.charge(str(subject), float(number))
        elif action == "round":
            used = {}
            line.new_round()
        elif action == "take" and line.turn is not None:
            turn = min(each for each in turns if used.get(each[1], 0.0) < 5.0)
            own_tickets = [ticket for ticket in waiting if ticket.key == turn[1]]
            expected = min(own_tickets, key=lambda ticket: (ticket.priority, ticket.number))
            assert line.take() is expected
            turns.remove(turn)
            waiting.remove(expected)
        able = [turn for turn, key in turns if used.get(key, 0.0) < 5.0]
        assert line.turn == min(able, default=None)
        assert len(line) == len(waiting)
        assert all(line.waiting(key) == sum(ticket.key == key for ticket in waiting) for key in "abc")


def test_nobody_is_kept_aside_by_callers_who_are_always_new() -> None:
    """A caller who has used his cap up goes on when ten caps have been used, whoever else has come meanwhile."""
    line, make = Line(5.0), tickets()
    line.add(make("patient"))
    line.add(make("new-0"))
    line.charge("patient", 5.0)
    for number in range(1, 10):
        assert line.take().key == f"new-{number - 1}"
        line.add(make(f"new-{number}"))
        line.charge(f"new-{number - 1}", 5.0)
    assert line.take().key == "patient"


def test_the_memory_of_one_round_is_bounded() -> None:
    """However many callers come and go while one waits."""
    line, make = Line(5.0), tickets()
    line.add(make("waits", 0))
    for number in range(25_000):
        line.charge(str(number), 0.0)
    assert len(line._used) <= 10_000
