"""Figures that follow from the answers of one mode."""

from hypothesis import given
from hypothesis import strategies as st

from app.determinism.mode import Mode
from app.probe.answer import Answer, Failure, Refusal
from app.probe.tally import Status, Tally, WaitSource


def answer(ids: tuple[int, ...] = (1, 2), *, latency: float = 1.0, wait: float | None = None) -> Answer:
    """An answer with one choice."""
    return Answer(((repr(ids).encode(), "length"),), (ids,), len(ids), latency, admission_wait=wait)


def tally(mode: Mode, repeats: list[Answer], reference: Answer | None = None) -> Tally:
    """A whole mode with one question."""
    whole = Tally(mode, len(repeats), ended=True, seconds=2.0)
    whole.add_reference(0, reference or answer())
    for repeat in repeats:
        whole.add(0, repeat)
    return whole


def test_the_servers_word_on_waiting_comes_first() -> None:
    """Where every answer says how long it queued, that is the added wait, and standard's latency is not asked."""
    standard = tally(Mode.STANDARD, [answer()])
    row = tally(Mode.ISOLATED, [answer(latency=9.0, wait=0.5), answer(latency=9.0, wait=1.5)]).row(standard)

    assert row.wait_source is WaitSource.ADMISSION
    assert row.wait is not None
    assert (row.wait.median, row.wait.high) == (1.0, 1.5)


def test_without_standard_waiting_is_unknown() -> None:
    """No baseline, no figure."""
    row = tally(Mode.ISOLATED, [answer()]).row(None)

    assert (row.wait, row.wait_source) == (None, None)


def test_waiting_may_be_negative() -> None:
    """A mode that answers sooner than standard did is shown as such."""
    row = tally(Mode.SEEDED, [answer(latency=1.0)]).row(tally(Mode.STANDARD, [answer(latency=3.0)]))

    assert row.wait is not None
    assert row.wait.median == -2.0


def test_the_reference_counts_in_nothing_but_distinct_outputs() -> None:
    """Comparisons, tokens and latencies are those of the repeats."""
    row = tally(Mode.STANDARD, [answer(latency=1.0)], reference=answer((8, 9), latency=50.0)).row(None)

    assert (row.compared, row.diverged, row.distinct, row.answers) == (1, 1, (2,), 2)
    assert row.tokens_per_second == 1.0
    assert row.latency is not None
    assert row.latency.high == 1.0


def test_a_mode_that_becomes_unavailable_keeps_what_it_compared() -> None:
    """A refusal after some answers ends the mode; the answers stay."""
    whole = tally(Mode.HARDENED, [answer()])
    whole.add(0, Refusal("the replica changed"))

    assert whole.hopeless
    row = whole.row(None)
    assert (row.status, row.reason, row.compared) == (Status.UNAVAILABLE, "the replica changed", 1)


def test_one_failed_request_marks_the_mode() -> None:
    """A mode with a lost answer is not reported as wholly measured, though it goes on."""
    whole = tally(Mode.ISOLATED, [answer()])
    whole.add(0, Failure("HTTP 500: x"))

    assert not whole.hopeless
    assert whole.row(None).status is Status.FAILED


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4)), max_size=40))
def test_counts_agree_with_each_other(given_answers: list[tuple[int, int]]) -> None:
    """A question has one distinct output exactly when none of its repeats diverged."""
    whole = Tally(Mode.STANDARD, len(given_answers))
    for question in range(4):
        whole.add_reference(question, answer((0,)))
    for question, token in given_answers:
        whole.add(question, answer((token,)))

    row = whole.row(None)
    assert row.diverged == sum(token != 0 for _, token in given_answers)
    for question in range(4):
        tokens = {token for asked, token in given_answers if asked == question}
        assert (row.distinct[question] == 1) == (tokens <= {0})
    assert row.fork == (0 if row.diverged else None)
