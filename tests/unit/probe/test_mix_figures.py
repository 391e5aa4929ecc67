"""Figures from what came back."""

from dataclasses import replace

import pytest

from app.probe.answer import Answer, Failure, Outcome
from app.probe.mix_figures import Quantiles, Window, point_of, quantiles, retention, row_of
from app.probe.mix_traffic import Exchange

WINDOW = Window(10.0, 20.0, 4, 25.0)
ANSWER = Answer(
    identity=((b"", "length"),),
    token_ids=(None,),
    completion_tokens=30,
    latency=3.0,
    mode="isolated",
    coresident_peak=1,
    admission_wait=1.0,
)


def came_back(ended: float, outcome: Outcome = ANSWER, *, isolated: bool = True, replica: str = "one") -> Exchange:
    """One exchange."""
    return Exchange(isolated, ended, outcome, replica)


@pytest.mark.parametrize(
    ("ended", "tokens"),
    [
        (10.0, 0.0),  # ended as the window began
        (11.0, 15.0),  # ran from 9 to 11: half of it inside
        (15.0, 30.0),
        (20.0, 30.0),
        (20.5, 22.5),  # ended after the window, three quarters of it inside
        (22.0, 0.0),  # began to run as the window ended
        (2.0, 0.0),
    ],
)
def test_tokens_count_by_the_time_inside_the_window(ended: float, tokens: float) -> None:
    """An answer's tokens are spread over the time it ran, its wait left out, and counted where they fall."""
    row = row_of(WINDOW, [came_back(ended)])

    assert row.isolated.tokens == pytest.approx(tokens)
    assert row.tokens_per_second == pytest.approx(tokens / 10)


def test_the_edges_of_a_window_give_and_take_nothing() -> None:
    """Four clients that always run make the same rate, wherever the window lies between their answers."""
    quick = replace(ANSWER, latency=2.0, admission_wait=0.0)
    steady = [came_back(2.0 * turn + shift / 2, quick, isolated=False) for turn in range(30) for shift in range(4)]

    for began in (10.0, 10.3, 11.9):
        assert row_of(Window(began, began + 7.7, 4, 0.0), steady).tokens_per_second == pytest.approx(4 * 15.0)


def test_requests_waits_and_failures_count_where_they_end() -> None:
    """Per class: answers, failures and quantiles of those that ended in the window."""
    slow = replace(ANSWER, latency=6.0, admission_wait=4.0)
    row = row_of(
        WINDOW,
        [
            came_back(9.0),
            came_back(11.0),
            came_back(19.0, slow),
            came_back(21.0, slow),
            came_back(12.0, Failure("gone")),
            came_back(13.0, replace(ANSWER, admission_wait=0.5), isolated=False),
        ],
    )

    assert (row.isolated.answers, row.isolated.failed, row.isolated.waits) == (2, 1, Quantiles(1.0, 4.0, 2))
    assert (row.shared.answers, row.shared.failed, row.shared.waits) == (1, 0, Quantiles(0.5, 0.5, 1))
    assert (row.failed, row.reason) == (1, "gone")


def test_exclusive_time_is_the_isolated_requests_running_time_per_replica() -> None:
    """Latency without wait, cut at the window's edges, over window and replicas seen; shared ones add nothing."""
    exchanges = [
        came_back(11.0),  # 1 s of its 2 inside
        came_back(15.0, replica="two"),
        came_back(16.0, isolated=False),
        came_back(17.0, Failure("gone")),
    ]
    row = row_of(WINDOW, exchanges)

    assert row.replicas == ("one", "two")
    assert row.exclusive_share == pytest.approx(3.0 / (10.0 * 2))


def test_what_the_server_does_not_say_is_unknown() -> None:
    """Without waits no quantiles and no exclusive time; a failure alone has neither."""
    silent = replace(ANSWER, admission_wait=None, mode=None, coresident_peak=None)
    row = row_of(WINDOW, [Exchange(isolated=True, ended=15.0, outcome=silent, replica=None)])

    assert (row.isolated.waits, row.exclusive_share, row.replicas) == (None, None, ())
    assert (row.unconfirmed, row.not_alone) == (1, 0)
    assert row.isolated.tokens == pytest.approx(30.0)


def test_an_isolated_answer_that_was_not_alone_is_counted() -> None:
    """A peak over 1 counts for isolated answers, not for shared ones."""
    crowded = replace(ANSWER, coresident_peak=2)
    row = row_of(WINDOW, [came_back(15.0, crowded), came_back(16.0), came_back(17.0, crowded, isolated=False)])

    assert (row.not_alone, row.unconfirmed) == (1, 0)


def test_retention_is_against_0_percent() -> None:
    """The rate over that of the row at 0 %, and unknown where there is none."""
    base = row_of(replace(WINDOW, percent=0.0), [came_back(15.0), came_back(16.0)])
    row = row_of(WINDOW, [came_back(15.0)])

    assert retention(row, (base, row)) == pytest.approx(0.5)
    assert retention(row, (row,)) is None


def test_a_point_of_the_calibration_knows_latencies_by_length() -> None:
    """Mean latency per number of tokens, of the answers that ended in the window."""
    long = replace(ANSWER, completion_tokens=60, latency=6.0)
    point = point_of(
        WINDOW,
        [came_back(12.0), came_back(14.0, replace(ANSWER, latency=5.0)), came_back(18.0, long), came_back(30.0, long)],
    )

    assert point.latencies == ((30, 2, 4.0), (60, 1, 6.0))
    assert (point.answers, point.failed) == (3, 0)


def test_quantiles_are_of_the_nearest_rank() -> None:
    """Of 1 to 200: the 100th and the 198th; of nothing: nothing."""
    assert quantiles(range(200, 0, -1)) == Quantiles(100, 198, 200)
    assert quantiles([]) is None
