"""The whole run, in virtual time: on a clean server, on one that fails on the way, and cut at any moment."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import anyio
import httpx
import pytest

from app.determinism.mode import Mode
from app.diagnose.command import report_of
from app.diagnose.diagnosis import Diagnosis
from app.diagnose.document import to_document
from app.diagnose.findings import State, Suspect
from app.diagnose.investigation import CANDIDATES, Investigation
from app.diagnose.ladder import TROUBLES_ALLOWED
from app.diagnose.page import to_page
from app.diagnose.planning import CURE_SHARE
from app.diagnose.report import EXIT_FINE, EXIT_INTERRUPTED, EXIT_NOT_MEASURED, Report
from app.diagnose.rungs import LEAST_ROUNDS, MOST_ROUNDS, Rung
from app.diagnose.terminal import sentences, tables
from app.diagnose.verdict import Verdict
from app.probe.experiment import NotMeasurable
from tests.support.layered import SECOND, LayeredEngine
from tests.unit.diagnose.scripted import LIMITED, URL, Asked, Gateway, Piece, Server, refusal, without_logprobs
from tests.unit.probe.virtual import VirtualTime

pytestmark = pytest.mark.anyio

PROMPTS = ("one two three", "four five", "six seven eight nine")
SMALL = Investigation(URL, prompts=PROMPTS, sizes=(2, 4), tokens=6, repeats=2, replicas=(SECOND,))
"""A whole ladder of few requests."""

SEARCH = 2 + 2 * len(PROMPTS)
"""Requests with which the server is looked at before the ladder."""


async def run(server: Server, investigation: Investigation = SMALL, *, cancel_at: int | None = None) -> Diagnosis:
    """A diagnosis of a server, cancelled as that request comes."""
    scope = anyio.CancelScope()

    async def leave(number: int, _asked: Asked) -> None:
        if number == cancel_at:
            scope.cancel()
            await anyio.sleep_forever()

    if cancel_at is not None:
        server.hold = leave
    diagnosis = Diagnosis(investigation, transport=server.transport, clock=server.clock)
    with scope:
        await diagnosis.run()
    assert scope.cancelled_caught == (cancel_at is not None)
    return diagnosis


def judged(diagnosis: Diagnosis) -> Verdict:
    """The verdict, which is there."""
    assert diagnosis.verdict is not None
    return diagnosis.verdict


def reported(diagnosis: Diagnosis, investigation: Investigation = SMALL, *, interrupted: bool = False) -> Report:
    """The report, of which every form can be written."""
    report = report_of(investigation, diagnosis, interrupted=interrupted)
    assert report is not None
    assert list(tables(report))
    assert list(sentences(report))
    assert json.loads(json.dumps(to_document(report, 0), allow_nan=False))["findings"]
    assert "</html>" in to_page(report)
    return report


def claims_nothing_without_evidence(verdict: Verdict) -> bool:
    """Whether each finding on which nothing was compared is untested, and each has its reason."""
    compared = any(finding.tokens.n for finding in verdict.findings if finding.suspect is not Suspect.TIES)
    for finding in verdict.findings:
        assert finding.reason
        # That no answer forked is evidence of its own, where answers were compared.
        quiet = finding.suspect is Suspect.TIES and finding.state is State.NOT_SEEN and compared
        if not finding.tokens.n and not quiet:
            assert finding.state is State.UNTESTED, finding
        if finding.state is State.PRESENT:
            assert finding.tokens.k > 0
        if finding.state is State.UNTESTED:
            assert finding.tokens.n == 0
    return not verdict.diverged or any(finding.tokens.k for finding in verdict.findings)


# --- a server that answers -------------------------------------------------------------------------------------------


async def test_a_clean_server_is_tested_for_everything_and_blamed_for_nothing() -> None:
    """In the default budget, which it keeps, with answers of some length."""
    server = Server()
    investigation = Investigation(URL, replicas=(SECOND,))
    diagnosis = await run(server, investigation)

    verdict = judged(diagnosis)
    assert {finding.state for finding in verdict.findings} == {State.NOT_SEEN}
    assert all(finding.tokens.n for finding in verdict.findings if finding.suspect is not Suspect.TIES)
    assert claims_nothing_without_evidence(verdict)
    assert 0.5 * investigation.budget < diagnosis.seconds <= investigation.budget
    report = reported(diagnosis, investigation)
    assert report.exit_code("diverged") == EXIT_FINE
    assert report.seconds == diagnosis.seconds == server.clock()


@pytest.mark.parametrize("budget", [5.0, 20.0, 60.0, 120.0])
async def test_a_budget_is_kept(budget: float) -> None:
    """No request begins after it but those that look at the server; what there was no time for says so."""
    server, begun = Server(), list[float]()

    async def note(_number: int, _asked: Asked) -> None:
        begun.append(server.clock())

    server.hold = note
    investigation = Investigation(URL, budget=budget)
    diagnosis = await run(server, investigation)

    assert begun[-1] <= max(budget, begun[1 + 2 * len(CANDIDATES)])
    assert claims_nothing_without_evidence(judged(diagnosis))
    shorter = {
        finding.suspect
        for finding in judged(diagnosis).findings
        if finding.state is State.UNTESTED and "budget" in finding.reason
    }
    assert shorter or budget > 20
    assert reported(diagnosis, investigation).exit_code("diverged") == (EXIT_FINE if budget > 5 else EXIT_NOT_MEASURED)


async def test_what_is_clear_everywhere_is_made_surer_everywhere() -> None:
    """With time left and nothing open, every rung gets more rounds up to those asked for."""
    diagnosis = await run(Server(), replace(SMALL, repeats=5, budget=3600.0))

    assert {rung: record.rounds for rung, record in diagnosis.evidence.records.items()} == {
        rung: 5 for rung in Rung if rung is not Rung.SAMPLER
    }


@pytest.mark.parametrize(("repeats", "rounds"), [(4, MOST_ROUNDS), (MOST_ROUNDS + 2, MOST_ROUNDS + 2)])
async def test_what_is_not_clear_gets_a_closer_look_and_nothing_else_does(repeats: int, rounds: int) -> None:
    """Answers that differ in the batch, too few to tell from chance: all rounds of that rung, and of no other."""
    shaken = 0

    def change(asked: Asked, document: dict[str, Any]) -> None:
        nonlocal shaken
        if len(asked.prompts) > 1 and shaken < 1:
            shaken += 1
            document["choices"][0]["logprobs"]["token_logprobs"][0] -= 0.25

    diagnosis = await run(Server(change=change), replace(SMALL, repeats=repeats, budget=3600.0))

    found = {rung: record.rounds for rung, record in diagnosis.evidence.records.items()}
    assert found == {rung: rounds if rung is Rung.BATCH else LEAST_ROUNDS[rung] for rung in found}


async def test_a_layer_that_acts_is_found_and_the_run_is_a_failure_where_that_was_asked_for() -> None:
    """End to end on an engine whose batch shape moves logits."""
    server = Server(LayeredEngine(frozenset({"shape"}), 0))
    investigation = Investigation(URL, tokens=20)
    report = reported(await run(server, investigation), investigation)

    found = report.verdict.of(Suspect.BATCH_SHAPE)
    assert found is not None
    assert found.state is State.PRESENT
    assert (report.exit_code("diverged"), report.exit_code("never")) == (1, 0)


async def test_a_sampling_run_looks_at_the_sampler() -> None:
    """Answers differ without a seed alone: the sampler is named, and no layer is."""

    def change(asked: Asked, document: dict[str, Any]) -> None:
        if "seed" not in asked.body:
            for choice in document["choices"]:
                choice["token_ids"] = [9000 + len(server.asked), *choice["token_ids"][1:]]

    server = Server(change=change)
    verdict = judged(await run(server, replace(SMALL, temperature=0.8)))

    present = {finding.suspect for finding in verdict.findings if finding.acts}
    assert present == {Suspect.SAMPLER}
    assert claims_nothing_without_evidence(verdict)


async def test_a_replica_of_another_posture_is_a_matter_of_configuration() -> None:
    """And one that cannot be reached is untested, with the reason."""

    def headers(asked: Asked) -> dict[str, str]:
        return {"x-determinism-posture": "p-1" if asked.host == httpx.URL(URL).host else "p-2"}

    verdict = judged(await run(Server(headers=headers)))
    assert verdict.of(Suspect.REPLICA) is None
    found = verdict.of(Suspect.CONFIGURATION)
    assert found is not None
    assert found.state is State.NOT_SEEN


async def test_a_replica_that_cannot_be_reached_is_untested() -> None:
    """With the reason; the rest is found as ever."""

    def refuse(_number: int, asked: Asked) -> httpx.Response | None:
        if asked.host == httpx.URL(SECOND).host:
            raise httpx.ConnectError("gone")
        return None

    verdict = judged(await run(Server(refuse=refuse)))

    states = {finding.suspect: finding.state for finding in verdict.findings}
    assert states.pop(Suspect.REPLICA) is State.UNTESTED
    assert set(states.values()) == {State.NOT_SEEN}
    found = verdict.of(Suspect.REPLICA)
    assert found is not None
    assert found.reason == "connection refused or host unknown"


async def test_without_logprobs_tokens_are_compared_and_nothing_is_said_of_ties() -> None:
    """What needs margins is untested with the reason."""
    diagnosis = await run(Server(change=without_logprobs))

    states = {finding.suspect: finding.state for finding in judged(diagnosis).findings}
    assert states.pop(Suspect.TIES) is states.pop(Suspect.FAULT) is State.UNTESTED
    assert set(states.values()) == {State.NOT_SEEN}
    assert claims_nothing_without_evidence(judged(diagnosis))


@pytest.mark.parametrize("budget", [60.0, 2.5])
async def test_the_watcher_sees_the_budget_go_by(budget: float) -> None:
    """From 0 to 1 and never back nor beyond, with what is being done, also where the last request ends too late."""
    server = Server()
    told: list[tuple[str, float]] = []
    investigation = Investigation(URL, prompts=PROMPTS, budget=budget)
    diagnosis = Diagnosis(
        investigation,
        transport=server.transport,
        clock=server.clock,
        watch=lambda what, part: told.append((what, part)),
    )
    await diagnosis.run()

    assert told[0] == ("looking at the server", 0.0)
    parts = [part for _, part in told]
    assert parts == sorted(parts)
    assert 0.9 < parts[-1] <= 1.0
    climbed = [rung.value for rung, record in diagnosis.evidence.records.items() if record.requests]
    assert list(dict.fromkeys(what for what, _ in told))[1:] == climbed


# --- a server that fails on the way ----------------------------------------------------------------------------------


async def test_a_server_that_cannot_be_asked_has_no_verdict() -> None:
    """The reason is raised, and there is no report."""
    diagnosis = Diagnosis(SMALL, transport=Server(models=(200, {"data": []})).transport)
    with pytest.raises(NotMeasurable, match="names no model"):
        await diagnosis.run()

    assert diagnosis.verdict is None
    assert report_of(SMALL, diagnosis) is None
    with pytest.raises(ValueError, match="has not begun"):
        _ = diagnosis.evidence


def gone(_message: str) -> httpx.Response:
    """A server that broke down."""
    raise httpx.ConnectError("gone")


FAILURES: dict[str, Callable[[str], httpx.Response]] = {
    "rate limited": lambda message: refusal(LIMITED, message),
    "internal": lambda message: refusal(500, message),
    "gone": gone,
    "other shape": lambda message: httpx.Response(200, stream=Piece(message.encode())),
}


@pytest.mark.parametrize("failure", FAILURES)
async def test_a_server_that_refuses_the_ladder_leaves_everything_untested(failure: str) -> None:
    """Every rung is tried and given up, every suspect has its reason, and the exit status says that all are unknown."""
    server = Server(refuse=lambda number, _asked: FAILURES[failure]("no") if number > SEARCH else None)
    diagnosis = await run(server)

    verdict = judged(diagnosis)
    assert {finding.state for finding in verdict.findings} == {State.UNTESTED}
    assert claims_nothing_without_evidence(verdict)
    reasons = {record.reason for record in diagnosis.evidence.records.values()}
    assert None not in reasons
    assert {finding.reason for finding in verdict.findings} <= reasons
    assert {record.requests for record in diagnosis.evidence.records.values()} == {TROUBLES_ALLOWED}
    report = reported(diagnosis)
    assert report.exit_code("diverged") == report.exit_code("never") == EXIT_NOT_MEASURED


@pytest.mark.parametrize("layers", [(), ("run",), ("shape", "cache")], ids=lambda layers: "+".join(layers) or "clean")
@pytest.mark.parametrize("answered", [*range(14), 20, 33, 34, 35, 50, 64, 65, 66, 80, 100, 119, 120])
async def test_a_rate_limit_on_the_way_takes_no_more_than_its_share(answered: int, layers: tuple[str, ...]) -> None:
    """From any request on: what was answered is judged, what was not is untested with the reason, none is made up."""
    server = Server(
        LayeredEngine(frozenset(layers), 0),
        refuse=lambda number, _asked: refusal(LIMITED, "slow down") if number > SEARCH + answered else None,
    )
    diagnosis = await run(server)

    verdict = judged(diagnosis)
    assert claims_nothing_without_evidence(verdict)
    untested = [finding for finding in verdict.findings if finding.state is State.UNTESTED]
    assert all("rate limited" in finding.reason for finding in untested)
    kept = sum(len(record.samples) for record in diagnosis.evidence.records.values())
    assert (kept > 0) == (answered > 0)
    doubts = " ".join(sentences(reported(diagnosis)))
    assert "rate limited, HTTP 429: slow down" in doubts


@pytest.mark.parametrize("every", [2, 3, 5])
async def test_a_server_that_fails_now_and_then_is_judged_by_what_it_answered(every: int) -> None:
    """Rungs with too many failures are given up, and no verdict lacks its evidence."""
    server = Server(
        refuse=lambda number, _asked: refusal(500, "hiccup") if number > SEARCH and number % every == 0 else None
    )
    verdict = judged(await run(server))

    assert claims_nothing_without_evidence(verdict)
    assert not verdict.diverged


async def test_answers_of_another_replica_are_left_out_of_everything() -> None:
    """A gateway that changes replicas, whose second replica answers otherwise: nobody is blamed, and it is said."""
    odd = 0

    def change(_asked: Asked, document: dict[str, Any]) -> None:
        nonlocal odd
        if len(server.asked) > SEARCH and len(server.asked) % 3 == 0:
            odd += 1
            document["system_fingerprint"] = "scripted-2"
            for choice in document["choices"]:
                choice["token_ids"] = [9, *choice["token_ids"][1:]]

    server = Server(change=change)
    diagnosis = await run(server, replace(SMALL, replicas=()))

    assert not judged(diagnosis).diverged
    assert diagnosis.left_out == {"another posture": odd}
    assert odd > 10
    assert "another posture and are in no finding" in " ".join(sentences(reported(diagnosis)))


# --- a run that is cut -----------------------------------------------------------------------------------------------

WHOLE = 150
"""About the requests of a small run."""


async def test_a_small_run_is_about_as_long_as_is_cut() -> None:
    """The next tests cut at any of its requests."""
    server = Server()
    await run(server)

    assert len(server.asked) >= WHOLE


@pytest.mark.parametrize("at", range(1, SEARCH + 1))
async def test_a_run_that_is_cut_before_the_ladder_has_no_report(at: int) -> None:
    """And claims nothing."""
    diagnosis = await run(Server(), cancel_at=at)

    assert diagnosis.verdict is None
    assert report_of(SMALL, diagnosis, interrupted=True) is None


@pytest.mark.parametrize("layers", [(), ("run",)], ids=lambda layers: "+".join(layers) or "clean")
@pytest.mark.parametrize("at", [*range(SEARCH + 1, SEARCH + 20), *range(SEARCH + 20, WHOLE + 1, 9), WHOLE])
async def test_a_run_that_is_cut_reports_what_there_is(at: int, layers: tuple[str, ...]) -> None:
    """At any request of the ladder: every form of the report, on what had been answered by then."""
    server = Server(LayeredEngine(frozenset(layers), 0))
    diagnosis = await run(server, cancel_at=at)

    assert claims_nothing_without_evidence(judged(diagnosis))
    report = reported(diagnosis, interrupted=True)
    assert report.exit_code("diverged") == EXIT_INTERRUPTED
    assert report.seconds == server.clock() > 0
    assert "Interrupted: the findings are on what had been answered by then." in list(sentences(report))
    assert server.engine.beside == []


# --- a gateway -------------------------------------------------------------------------------------------------------

BUDGET = 290.0


async def on_gateway(
    investigation: Investigation, *, cancel_at: int | None = None, **modes: Any
) -> tuple[Diagnosis, Gateway]:
    """A diagnosis of a gateway in virtual time, cancelled at that request under load."""
    time, scope = VirtualTime(), anyio.CancelScope()
    gateway = Gateway.of(time, Server(), **modes)
    answered = gateway.modes.broken

    def leave(number: int, mode: str) -> int | None:
        if number == cancel_at:
            scope.cancel()
        return answered(number, mode)

    gateway.modes.broken = leave
    diagnosis = Diagnosis(investigation, transport=gateway, clock=time.clock, sleep=time.sleep)
    async with time.passing():
        with scope:
            await diagnosis.run()
    assert scope.cancelled_caught == (cancel_at is not None)
    return diagnosis, gateway


GATEWAY = replace(SMALL, replicas=(), budget=BUDGET, tokens=4)


async def test_a_gateways_modes_are_measured_after_the_ladder() -> None:
    """With the prompts and tokens of the ladder; the cheapest that reached zero is advised."""
    diagnosis, gateway = await on_gateway(GATEWAY, forks={"standard": len(PROMPTS)})

    measured = {cure.mode: cure for cure in diagnosis.cures}
    assert list(measured) == [Mode.STANDARD, Mode.INVARIANT, Mode.VERIFIED, Mode.ISOLATED]
    assert [cure.reached_zero for cure in diagnosis.cures] == [False, True, True, True]
    asked = [asked for asked in gateway.modes.asked if asked.mode == "isolated"]
    assert {each.body["messages"][0]["content"] for each in asked} == set(PROMPTS)
    assert {each.body["max_tokens"] for each in asked} == {4}
    assert diagnosis.seconds <= BUDGET
    report = reported(diagnosis, GATEWAY)
    assert report.advice.mode in {"invariant", "verified"}
    assert report.deployment.alone_proven


async def test_the_ladder_leaves_time_for_the_modes() -> None:
    """A share of the budget is theirs, however much the ladder could use."""
    diagnosis, gateway = await on_gateway(replace(GATEWAY, repeats=None, tokens=None), stops=dict.fromkeys(Mode, 0))

    assert all(cure.cut for cure in diagnosis.cures)
    assert diagnosis.seconds == pytest.approx(BUDGET)
    ladder = gateway.server.engine.now
    assert (1 - CURE_SHARE) * BUDGET * 0.9 < ladder < (1 - CURE_SHARE) * BUDGET * 1.05


async def test_modes_are_not_measured_where_that_is_not_wanted() -> None:
    """--no-cures, and the whole budget is the ladder's."""
    diagnosis, gateway = await on_gateway(replace(GATEWAY, cures=False, repeats=None, tokens=None))

    assert (diagnosis.cures, gateway.modes.asked) == ((), [])
    assert diagnosis.seconds > (1 - CURE_SHARE) * BUDGET * 1.05


async def test_a_server_without_modes_is_not_asked_for_any() -> None:
    """Its advice is for stock engines."""
    diagnosis = await run(Server())

    assert diagnosis.cures == ()
    assert reported(diagnosis).advice.mode is None


@pytest.mark.parametrize("at", [1, 5, 20, 40, 60])
async def test_a_run_that_is_cut_among_the_modes_keeps_them(at: int) -> None:
    """The whole ladder's verdict, and the modes as far as they were measured."""
    diagnosis, _ = await on_gateway(GATEWAY, cancel_at=at)

    assert all(record.reason is None for record in diagnosis.evidence.records.values())
    assert claims_nothing_without_evidence(judged(diagnosis))
    *whole, last = diagnosis.cures
    assert (last.cut, [cure.cut for cure in whole]) == (True, [False] * len(whole))
    reported(diagnosis, GATEWAY, interrupted=True)
