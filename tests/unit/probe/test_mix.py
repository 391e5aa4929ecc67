"""The runner of mixed traffic, in virtual time."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from app.probe.experiment import NotMeasurable
from app.probe.mix import MixPlan, MixProbe
from app.probe.mix_draws import mean_tokens
from tests.unit.probe.virtual import VirtualGateway, VirtualTime

pytestmark = pytest.mark.anyio

TOKEN = 0.01


def plan(*percentages: float, **changes: Any) -> MixPlan:
    """A short run."""
    settings = {"clients": 4, "seconds": 40.0, "warmup": 2.0}
    return MixPlan(url="http://server", percentages=percentages, **(settings | changes))


async def measure(the_plan: MixPlan, **gateway: Any) -> tuple[MixProbe, VirtualGateway]:
    """Run it against a virtual gateway."""
    time = VirtualTime()
    server = VirtualGateway(time, TOKEN, **gateway)
    probe = MixProbe(the_plan, transport=server, clock=time.clock, sleep=time.sleep)
    async with time.passing():
        await probe.run()
    return probe, server


async def test_the_rates_are_those_of_the_engine() -> None:
    """Clients that share make a token each per step; isolated requests make one in all, and wait for each other."""
    probe, _ = await measure(plan(0.0, 100.0))

    shared, alone = probe.rows
    assert shared.tokens_per_second == pytest.approx(4 / TOKEN)
    assert alone.tokens_per_second == pytest.approx(1 / TOKEN)
    assert alone.exclusive_share == pytest.approx(1.0)
    assert shared.exclusive_share == 0.0
    assert shared.shared.waits is not None
    assert (shared.shared.waits.p99, shared.isolated.waits) == (0.0, None)
    assert alone.isolated.waits is not None
    assert alone.isolated.waits.p50 == pytest.approx(3 * mean_tokens() * TOKEN, rel=0.1)


async def test_each_percentage_has_its_share_of_isolated_requests() -> None:
    """Of what ended in a window, the percentage is isolated, within one block of twenty."""
    probe, _ = await measure(plan(5.0, 25.0, 50.0))

    for row in probe.rows:
        total = row.shared.answers + row.isolated.answers
        assert row.isolated.answers == pytest.approx(total * row.window.percent / 100, abs=10)
        assert row.isolated.answers > 10
        assert row.exclusive_share is not None
        assert 0 < row.exclusive_share < 1
    assert [row.window.percent for row in probe.rows] == [5.0, 25.0, 50.0]
    assert all(row.not_alone == row.unconfirmed == row.failed == 0 for row in probe.rows)


async def test_isolation_costs_more_the_more_of_it_there_is() -> None:
    """Tokens per second fall from percentage to percentage."""
    probe, _ = await measure(plan(0.0, 10.0, 50.0, 100.0))

    rates = [row.tokens_per_second for row in probe.rows]
    assert rates == sorted(rates, reverse=True)
    assert rates[0] > 1.2 * rates[1]


async def test_a_percentage_begins_when_what_was_before_has_come_back() -> None:
    """No isolated request of the percentage before falls into a window at 0 %, however long the queue was."""
    probe, _ = await measure(plan(100.0, 0.0, clients=8, warmup=0.0))

    quiet = probe.rows[1]
    assert quiet.isolated.answers == quiet.isolated.tokens == 0
    assert quiet.tokens_per_second == pytest.approx(8 / TOKEN)


async def test_windows_are_as_long_as_asked_and_follow_a_warm_up() -> None:
    """Each window has its seconds, and at least the warm-up lies between two."""
    probe, _ = await measure(plan(0.0, 10.0, 25.0))

    windows = [row.window for row in probe.rows]
    assert [window.seconds for window in windows] == pytest.approx([40.0] * 3)
    for earlier, later in pairwise(windows):
        assert later.began - earlier.ended >= 2.0


async def test_calibration_measures_powers_of_two_and_the_clients_of_the_run() -> None:
    """1, 2, 4 ... and the run's own number, ordinary requests alone, each for a quarter of the time."""
    probe, server = await measure(plan(0.0, clients=6, calibrate=True))

    assert [point.window.clients for point in probe.points] == [1, 2, 4, 6]
    for point in probe.points:
        assert point.tokens_per_second == pytest.approx(point.window.clients / TOKEN)
        assert point.window.seconds == pytest.approx(10.0)
        assert {tokens for tokens, _, _ in point.latencies} == {8, 12, 16, 20, 24, 32, 40, 48}
        assert all(mean == pytest.approx(tokens * TOKEN) for tokens, _, mean in point.latencies)
    assert {asked.mode for asked in server.asked} == {"standard"}


async def test_no_more_clients_than_asked_for_are_at_work() -> None:
    """The loop is closed: as many requests in flight as clients, never more."""
    _, server = await measure(plan(0.0, 25.0, clients=5, seconds=10.0))

    assert server.most_in_flight == 5


async def test_what_is_sent_is_ordinary_traffic() -> None:
    """Key, model, a chat of fixed length, temperature 0; no prompt twice."""
    _, server = await measure(plan(25.0, seconds=10.0, api_key="secret"))

    assert {asked.authorization for asked in server.asked} == {"Bearer secret"}
    body = server.asked[0].body
    assert (body["model"], body["temperature"], body["ignore_eos"]) == ("tiny", 0.0, True)
    prompts = [asked.body["messages"][0]["content"] for asked in server.asked]
    assert len(set(prompts)) == len(prompts) > 50


async def test_equal_runs_have_equal_figures() -> None:
    """Nothing of the traffic is left to chance."""
    first, _ = await measure(plan(10.0, 50.0))
    second, _ = await measure(plan(10.0, 50.0))

    assert first.rows == second.rows


async def test_a_request_that_was_not_alone_is_found() -> None:
    """An isolated answer whose peak is 2 is counted in its row."""
    probe, _ = await measure(plan(25.0), peak=lambda peak: 2 if peak == 1 else peak)

    assert probe.rows[0].not_alone == probe.rows[0].isolated.answers > 0


async def test_failures_are_counted_and_rested_after() -> None:
    """A request that fails now and then is counted with its reason; the client rests, then goes on."""
    probe, server = await measure(plan(0.0, clients=1), broken=lambda number, _mode: 429 if number % 10 == 0 else None)

    row = probe.rows[0]
    assert row.failed == pytest.approx((row.failed + row.shared.answers) / 10, abs=1)
    assert row.reason == "HTTP 429: out of order"
    failed = range(9, len(server.asked) - 1, 10)
    assert all(server.asked[place + 1].at - server.asked[place].at == pytest.approx(0.5) for place in failed)


async def test_a_server_that_only_fails_is_given_up() -> None:
    """Three failures per client in a row end the run; the rows that were complete stay, with the reason beside them."""
    time = VirtualTime()
    server = VirtualGateway(time, TOKEN, broken=lambda _number, _mode: 502 if time.now > 60.0 else None)
    probe = MixProbe(plan(0.0, 10.0, 25.0), transport=server, clock=time.clock, sleep=time.sleep)
    async with time.passing():
        await probe.run()

    assert [row.window.percent for row in probe.rows] == [0.0]
    assert probe.lost == "HTTP 502: out of order"
    assert 4 * 3 <= sum(asked.at > 60.0 for asked in server.asked) <= 4 * 4


@pytest.mark.parametrize(
    ("gateway", "said"),
    [
        ({"broken": lambda _number, _mode: 500}, "a first request in mode standard failed: HTTP 500: out of order"),
        (
            {"broken": lambda _number, mode: 501 if mode == "isolated" else None},
            "a first request in mode isolated failed: out of order",
        ),
        ({"headers": lambda _headers: {}}, "http://server did not confirm that a request in mode isolated was alone"),
    ],
)
async def test_a_server_that_cannot_isolate_is_one_clear_line(
    gateway: dict[str, Callable[..., Any]], said: str
) -> None:
    """It is found out by the first requests, and nothing more is sent."""
    with pytest.raises(NotMeasurable) as caught:
        await measure(plan(0.0, 10.0), **gateway)

    assert str(caught.value) == said


async def test_ordinary_traffic_alone_needs_no_isolation() -> None:
    """At 0 % any OpenAI-compatible server can be measured; waits and replicas stay unknown."""
    probe, _ = await measure(plan(0.0), headers=lambda _headers: {})

    row = probe.rows[0]
    assert row.tokens_per_second == pytest.approx(4 / TOKEN)
    assert (row.shared.waits, row.exclusive_share, row.unconfirmed) == (None, None, 0)


async def test_the_watcher_is_told_of_every_step() -> None:
    """As many words as the plan has steps, so that a bar ends full."""
    time, said = VirtualTime(), list[str]()
    the_plan = plan(0.0, 10.0, clients=2, seconds=4.0, calibrate=True)
    probe = MixProbe(
        the_plan, transport=VirtualGateway(time, TOKEN), clock=time.clock, sleep=time.sleep, watch=said.append
    )
    async with time.passing():
        await probe.run()

    assert len(said) == the_plan.steps
    assert said[1:] == ["calibration, 1 client", "calibration, 2 clients", "0 % isolated", "10 % isolated"]
