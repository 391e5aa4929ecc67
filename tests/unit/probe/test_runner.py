"""The probe against a server whose answers are scripted."""

from itertools import count

import anyio
import anyio.lowlevel
import httpx
import pytest

from app.determinism.mode import Mode
from app.probe.experiment import Experiment, NotMeasurable
from app.probe.runner import Probe
from app.probe.tally import FAILURES_ALLOWED, Row, Status, WaitSource
from tests.unit.probe.scripted import FORK, Seen, Server

pytestmark = pytest.mark.anyio

PROMPTS = ("one", "two", "three")


def experiment(*modes: Mode, **changes: object) -> Experiment:
    """A small experiment in these modes."""
    settings: dict[str, object] = {"prompts": PROMPTS, "repeats": 4, "tokens": 8, "load": 5, "concurrency": 3}
    return Experiment(url="http://server", modes=modes, **(settings | changes))  # type: ignore[arg-type]  # test data


async def measure(server: Server, plan: Experiment) -> dict[Mode, Row]:
    """Run the whole experiment."""
    probe = Probe(plan, transport=server.transport)
    await probe.run()
    return {row.mode: row for row in probe.rows}


async def test_divergence_is_counted_where_it_is_and_not_where_it_is_not() -> None:
    """Under load every standard answer forks where the server makes it fork; the isolated ones all repeat, alone."""
    rows = await measure(Server(), experiment(Mode.STANDARD, Mode.ISOLATED))

    standard, isolated = rows[Mode.STANDARD], rows[Mode.ISOLATED]
    assert (standard.diverged, standard.compared, standard.asked) == (12, 12, 12)
    assert (standard.fork, standard.fork_median) == (FORK, FORK)
    assert standard.distinct == (2, 2, 2)
    assert standard.peak == 8
    assert not standard.alarm
    assert (isolated.diverged, isolated.compared) == (0, 12)
    assert isolated.distinct == (1, 1, 1)
    assert (isolated.peak, isolated.peaks_known, isolated.answers) == (1, 15, 15)
    assert {standard.status, isolated.status} == {Status.MEASURED}


async def test_a_server_that_does_not_depend_on_the_batch_shows_nothing() -> None:
    """Where answers do not depend on the batch, standard diverges 0 times although its requests overlap."""
    rows = await measure(Server(batch_dependent=False), experiment(Mode.STANDARD))

    assert (rows[Mode.STANDARD].diverged, rows[Mode.STANDARD].compared) == (0, 12)
    assert rows[Mode.STANDARD].peak == 8


async def test_a_deterministic_mode_that_diverges_is_an_alarm() -> None:
    """A server that does not keep `invariant`'s promise is found out."""
    rows = await measure(Server(), experiment(Mode.INVARIANT))

    assert rows[Mode.INVARIANT].alarm
    assert rows[Mode.INVARIANT].diverged == 12


async def test_what_the_server_does_not_offer_costs_one_request_and_no_other_mode() -> None:
    """A 503 `determinism_unavailable` and a 400 `not_verifiable` are rows with the reason; the next is measured."""
    server = Server()
    rows = await measure(server, experiment(Mode.HARDENED, Mode.VERIFIED, Mode.ISOLATED))

    assert rows[Mode.HARDENED].status is Status.UNAVAILABLE
    assert rows[Mode.HARDENED].reason == "'hardened' is not here."
    assert rows[Mode.VERIFIED].status is Status.UNAVAILABLE
    assert [len(server.probed("hardened")), len(server.probed("verified"))] == [1, 1]
    assert (rows[Mode.ISOLATED].status, rows[Mode.ISOLATED].compared) == (Status.MEASURED, 12)


async def test_references_are_asked_for_on_a_quiet_server() -> None:
    """In every mode the references come first, one at a time, with no background request in flight."""
    server = Server()
    await measure(server, experiment(Mode.SEEDED, Mode.STANDARD))

    for mode in ("seeded", "standard"):
        assert [seen.peak for seen in server.probed(mode)[: len(PROMPTS)]] == [1] * len(PROMPTS)
    assert any(seen.background for seen in server.seen)


async def test_requests_in_flight_are_bounded() -> None:
    """Never more probed requests at once than --concurrency, nor background ones than --load; both are reached."""
    server = Server()
    await measure(server, experiment(Mode.STANDARD))

    assert (server.probed_at_once, server.background_at_once) == (3, 5)
    assert {seen.mode for seen in server.seen if seen.background} == {"standard"}


async def test_background_requests_are_nobodys_repeat() -> None:
    """No background prompt is sent twice, and their lengths vary."""
    server = Server()
    await measure(server, experiment(Mode.STANDARD, repeats=20))

    background = [seen.body for seen in server.seen if seen.background]
    texts = [body["messages"][0]["content"] for body in background]
    assert len(set(texts)) == len(texts)
    assert len({body["max_tokens"] for body in background}) > 3


async def test_without_load_nothing_else_is_sent() -> None:
    """--load 0 sends the probed requests and nothing more."""
    server = Server()
    rows = await measure(server, experiment(Mode.STANDARD, load=0, concurrency=1))

    assert len(server.seen) == 15
    assert rows[Mode.STANDARD].diverged == 0


async def test_a_failing_server_is_given_up() -> None:
    """When repeats fail, the mode ends after a few with the server's reason, and what was compared stays."""
    answered = count(1)

    def broken(_mode: str, background: bool) -> int | None:
        return None if background or next(answered) <= 5 else 500

    server = Server(broken=broken)
    rows = await measure(server, experiment(Mode.STANDARD, concurrency=1))

    assert rows[Mode.STANDARD].status is Status.FAILED
    assert (rows[Mode.STANDARD].failed, rows[Mode.STANDARD].compared) == (FAILURES_ALLOWED, 2)
    assert rows[Mode.STANDARD].reason == "HTTP 500: out of order"
    assert len(server.probed("standard")) == 5 + FAILURES_ALLOWED


async def test_a_failed_reference_ends_its_mode() -> None:
    """With nothing to compare with, a mode sends nothing more."""
    server = Server(broken=lambda mode, background: 500 if mode == "standard" and not background else None)
    rows = await measure(server, experiment(Mode.STANDARD, Mode.ISOLATED))

    assert (rows[Mode.STANDARD].status, rows[Mode.STANDARD].asked) == (Status.FAILED, 12)
    assert len(server.probed("standard")) == 1
    assert rows[Mode.ISOLATED].status is Status.MEASURED


async def test_a_failing_load_rests_and_is_counted() -> None:
    """A background request that fails makes its worker rest; the measurement goes on, and the failures are known."""
    rests: list[float] = []

    async def sleep(seconds: float) -> None:
        rests.append(seconds)
        await anyio.lowlevel.checkpoint()

    server = Server(broken=lambda _mode, background: 429 if background else None)
    probe = Probe(experiment(Mode.STANDARD), transport=server.transport, sleep=sleep)
    await probe.run()

    assert probe.rows[0].compared == 12
    assert probe.load is not None
    assert probe.load.failures == probe.load.requests == len(rests) > 0
    assert probe.load.last_failure == "HTTP 429: out of order"
    assert min(rests) > 0


async def test_together_repeats_the_list_as_a_whole() -> None:
    """--together sends one list per request; one choice that differs makes the whole list diverge, once."""
    server = Server()
    rows = await measure(server, experiment(Mode.STANDARD, Mode.ISOLATED, together=True))

    assert (rows[Mode.STANDARD].diverged, rows[Mode.STANDARD].compared) == (4, 4)
    assert rows[Mode.STANDARD].distinct == (2,)
    assert rows[Mode.STANDARD].fork == FORK
    assert (rows[Mode.ISOLATED].diverged, rows[Mode.ISOLATED].compared, rows[Mode.ISOLATED].peak) == (0, 4, 1)
    assert {seen.path for seen in server.seen} == {"/v1/completions"}
    assert [seen.body["prompt"] for seen in server.probed("isolated")] == [list(PROMPTS)] * 5


async def test_a_server_without_token_ids_is_compared_by_its_text() -> None:
    """Where ids are not sent, the divergence is still counted, and its token is reported as unknown."""
    rows = await measure(Server(token_ids=False), experiment(Mode.STANDARD))

    assert (rows[Mode.STANDARD].diverged, rows[Mode.STANDARD].fork) == (12, None)


async def test_a_server_that_ignores_modes_is_not_confirmed() -> None:
    """An answer without the mode's header leaves the row unconfirmed and its peak unknown."""
    rows = await measure(Server(confirms=False), experiment(Mode.ISOLATED))

    assert not rows[Mode.ISOLATED].confirmed
    assert rows[Mode.ISOLATED].peak is None


async def test_what_is_sent_is_what_was_asked_for() -> None:
    """Model, seed, temperature, key, tokens and mode reach the server; token ids and a fixed length are asked for."""
    server = Server()
    plan = experiment(Mode.ISOLATED, model="second", seed=7, temperature=0.8, api_key="secret")
    await measure(server, plan)

    first = server.probed("isolated")[0]
    assert first.authorization == "Bearer secret"
    assert first.body == {
        "model": "second",
        "messages": [{"role": "user", "content": "one"}],
        "max_tokens": 8,
        "temperature": 0.8,
        "seed": 7,
        "ignore_eos": True,
        "return_token_ids": True,
    }


async def test_the_first_model_is_asked_when_none_is_named() -> None:
    """Without --model the first of /v1/models is asked."""
    server = Server()
    probe = Probe(experiment(Mode.STANDARD, load=0), transport=server.transport)
    await probe.run()

    assert probe.model == "first"
    assert {seen.body["model"] for seen in server.seen} == {"first"}


@pytest.mark.parametrize(
    ("models", "said"),
    [
        ((401, {"error": {"message": "no"}}), "refuses the API key"),
        ((200, {"data": []}), "names no model"),
        ((200, ["what"]), "names no model"),
        ((503, {"error": {"message": "starting"}}), r"names no model \(HTTP 503\)"),
    ],
)
async def test_a_server_that_cannot_be_asked_is_one_clear_line(models: tuple[int, object], said: str) -> None:
    """A refused key, no model, a server that is not ready: each is said in a line, and nothing is sent."""
    server = Server(models=models)
    with pytest.raises(NotMeasurable, match=said) as caught:
        await Probe(experiment(Mode.STANDARD), transport=server.transport).run()

    assert "\n" not in str(caught.value)
    assert server.seen == []


async def test_a_server_that_lists_no_models_can_be_asked_for_a_named_one() -> None:
    """A server without /v1/models is no obstacle when --model is given."""
    server = Server(models=(404, {}))
    rows = await measure(server, experiment(Mode.STANDARD, model="named"))

    assert rows[Mode.STANDARD].compared == 12


async def test_an_unreachable_server_is_one_clear_line() -> None:
    """A refused connection names the address."""

    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused", request=request)

    with pytest.raises(NotMeasurable, match="cannot reach http://server: connection refused"):
        await Probe(experiment(Mode.STANDARD), transport=httpx.MockTransport(refuse)).run()


async def test_a_connection_that_breaks_or_is_silent_is_a_failure() -> None:
    """Transport errors after the start end in the row, not in a traceback."""

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/v1/models":
            return httpx.Response(200, json={"data": [{"id": "m"}]})
        if request.headers["x-determinism-mode"] == "standard":
            raise httpx.ReadTimeout("silent", request=request)
        raise httpx.RemoteProtocolError("gone", request=request)

    probe = Probe(experiment(Mode.STANDARD, Mode.SEEDED, load=0), transport=httpx.MockTransport(answer))
    await probe.run()

    assert [row.reason for row in probe.rows] == [
        "no answer in time",
        "the connection broke (RemoteProtocolError)",
    ]
    assert {row.status for row in probe.rows} == {Status.FAILED}


async def test_a_cancelled_run_keeps_what_was_answered() -> None:
    """After a cancellation the rows hold the whole modes and the part of the one under way, marked as interrupted."""
    isolated = count(1)
    scope = anyio.CancelScope()

    async def hold(seen: Seen) -> None:
        if seen.mode == "isolated" and next(isolated) == 6:
            scope.cancel()
            await anyio.sleep_forever()

    server = Server(hold=hold)
    probe = Probe(experiment(Mode.STANDARD, Mode.ISOLATED, concurrency=1), transport=server.transport)
    with scope:
        await probe.run()

    standard, cut = probe.rows
    assert (standard.status, standard.compared) == (Status.MEASURED, 12)
    assert (cut.status, cut.compared, cut.asked) == (Status.INTERRUPTED, 2, 12)


async def test_waiting_and_rates_follow_the_clock() -> None:
    """Added wait is the latency over standard's, tokens per second are those of the repeats, by the injected clock."""
    now = 0.0
    seconds = {"standard": 1.0, "isolated": 3.0}

    async def hold(seen: Seen) -> None:
        nonlocal now
        now += seconds[seen.mode]

    server = Server(hold=hold)
    plan = experiment(Mode.STANDARD, Mode.ISOLATED, concurrency=1, load=0)
    probe = Probe(plan, transport=server.transport, clock=lambda: now)
    await probe.run()

    standard, isolated = probe.rows
    assert standard.wait is None
    assert isolated.wait is not None
    assert (isolated.wait.median, isolated.wait.high) == (2.0, 2.0)
    assert isolated.wait_source is WaitSource.LATENCY_OVER_STANDARD
    assert standard.tokens_per_second == pytest.approx(8.0)
    assert isolated.tokens_per_second == pytest.approx(8.0 / 3.0)
    assert isolated.background_per_second == 0.0


async def test_progress_counts_every_request_of_a_mode() -> None:
    """The watcher is told of each reference and each repeat, so that a bar ends full."""
    done: list[Mode] = []
    plan = experiment(Mode.STANDARD, Mode.ISOLATED)
    probe = Probe(plan, transport=Server().transport, watch=lambda mode, requests: done.extend([mode] * requests))
    await probe.run()

    assert [done.count(mode) for mode in plan.modes] == [plan.requests, plan.requests]
