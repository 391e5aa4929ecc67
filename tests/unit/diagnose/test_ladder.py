"""The climb: which requests are sent, what is kept of the answers, and where it ends."""

from collections.abc import AsyncIterator, Collection
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
import httpx
import pytest

from app.diagnose.discovery import Found, connect
from app.diagnose.investigation import Investigation
from app.diagnose.ladder import TROUBLES_ALLOWED, Climb, Ladder
from app.diagnose.rungs import LEAST_ROUNDS, MOST_ROUNDS, NEIGHBOURS, Extent, Rung, Salts, Step, neighbour_tokens
from app.diagnose.wire import Asking, Wire
from tests.support.layered import SECOND, LayeredEngine
from tests.unit.diagnose.samples import deployment, material
from tests.unit.diagnose.scripted import LIMITED, URL, Asked, Server, refusal

pytestmark = pytest.mark.anyio

TOKENS = 5
ENDLESS = 1e6
"""Seconds."""

EVERY = tuple(Rung)
SAMPLING = Asking("scripted", 0.8, 3)


@dataclass
class Run:
    """A ladder on a server, and what its watcher was told."""

    server: Server
    ladder: Ladder
    told: list[str] = field(default_factory=list)

    @property
    def answers(self) -> list[Asked]:
        """What was asked but neighbours."""
        return [asked for asked in self.server.asked if not asked.streamed]


@asynccontextmanager
async def on(
    server: Server,
    rungs: Collection[Rung] = EVERY,
    *,
    until: float = ENDLESS,
    tokens: int = TOKENS,
    replica: str | None = None,
    posture: str | None = "scripted-1",
) -> AsyncIterator[Run]:
    """A ladder of these rungs on a server that was found as this replica with this posture, and one more replica."""
    asked = Investigation(URL)
    async with AsyncExitStack() as stack:
        wires = [
            Wire(await stack.enter_async_context(connect(asked, url, server.transport)), SAMPLING, 60.0, server.clock)
            for url in (URL, SECOND)
        ]
        found = Found(deployment(replica=replica, posture=posture), wires[0], material(), Salts("run"))
        climb = Climb(extent(rungs), tokens, until)
        told: list[str] = []
        yield Run(server, Ladder(found, (wires[1],), climb, clock=server.clock, watch=told.append), told)


def extent(rungs: Collection[Rung] = EVERY) -> Extent:
    """These rungs, with two batch sizes and one more replica."""
    return Extent((2, 4), tuple(rungs), replicas=1)


def planned(rungs: Collection[Rung] = EVERY) -> list[Step]:
    """The requests of the least rounds, in order."""
    salts, made = Salts("run"), material()
    return [
        step
        for rung in rungs
        for number in range(LEAST_ROUNDS[rung])
        for step in extent(rungs).round(rung, number, made, salts)
    ]


def steps(rung: Rung, rounds: int) -> int:
    """How many requests so many rounds of a rung are."""
    return sum(len(extent().round(rung, number, material(), Salts("run"))) for number in range(rounds))


# --- what is sent ----------------------------------------------------------------------------------------------------


async def test_the_requests_are_those_of_the_rungs_in_order() -> None:
    """Every prompt of every step, under its salt; what joins others runs in the standard mode, all else alone."""
    async with on(Server()) as run:
        await run.ladder.climb()

    expected = [(step.salt, [list(each) for each in step.prompts], not step.neighbours) for step in planned()]
    assert [(asked.body["cache_salt"], asked.prompts, asked.isolated) for asked in run.answers] == expected
    assert {asked.body["max_tokens"] for asked in run.answers} == {TOKENS}


async def test_the_least_rounds_are_climbed() -> None:
    """Each rung brings what its test needs, and every looked-at prompt of a request is a sample."""
    async with on(Server()) as run:
        await run.ladder.climb()

    for rung in EVERY:
        record = run.ladder.records[rung]
        expected = [(probe, step.setting) for step in planned() if step.rung is rung for probe in step.probes]
        assert [(sample.prompt, sample.setting) for sample in record.samples] == expected
        assert (record.rounds, record.requests) == (LEAST_ROUNDS[rung], steps(rung, LEAST_ROUNDS[rung]))
        assert (record.reason, record.troubles) == (None, [])
        assert record.seconds > 0
    assert sum(record.seconds for record in run.ladder.records.values()) == pytest.approx(run.server.clock())


async def test_the_sampler_is_looked_at_without_the_seed() -> None:
    """All other rungs pin it."""
    async with on(Server()) as run:
        await run.ladder.climb()

    seeds = [None if step.rung is Rung.SAMPLER else SAMPLING.seed for step in planned()]
    assert None in seeds
    assert [asked.body.get("seed") for asked in run.answers] == seeds


async def test_another_replica_is_asked_on_its_own_rung_alone() -> None:
    """Its rung is sent to it, and nothing else."""
    async with on(Server()) as run:
        await run.ladder.climb()

    hosts = [httpx.URL(SECOND if step.rung is Rung.REPLICA else URL).host for step in planned()]
    assert [asked.host for asked in run.answers] == hosts


async def test_neighbours_run_while_another_joins_and_no_longer() -> None:
    """As many as the rung says, long enough to outlast the answer, and none beside any other request."""
    server = Server()
    beside: list[int] = []

    async def count(_number: int, asked: Asked) -> None:
        if not asked.streamed:
            beside.append(len(server.engine.beside))

    server.hold = count
    async with on(server) as run:
        await run.ladder.climb()

    assert beside == [NEIGHBOURS if step.rung is Rung.KV else 0 for step in planned()]
    assert server.engine.beside == []
    streamed = [asked for asked in server.asked if asked.streamed]
    assert {asked.body["max_tokens"] for asked in streamed} == {neighbour_tokens(TOKENS)}
    assert [asked.prompts for asked in streamed] == [[list(prompt)] for step in planned() for prompt in step.neighbours]


async def test_what_the_server_says_of_an_answer_is_kept_with_it() -> None:
    """Co-resident peak and cached tokens."""
    server = Server(headers=lambda _asked: {"x-determinism-coresident-peak": "1"})
    async with on(server, [Rung.CACHE]) as run:
        await run.ladder.climb()

    samples = run.ladder.records[Rung.CACHE].samples
    assert {sample.peak for sample in samples} == {1}
    assert {(sample.setting.warm, sample.cached) for sample in samples} == {(False, 0), (True, 128)}
    assert not run.ladder.crowded


@pytest.mark.parametrize(("rung", "peak"), [(Rung.ALONE, 2), (Rung.BATCH, 9), (Rung.KV, 1), (Rung.KV, 5)])
async def test_answers_in_other_company_than_their_rungs_are_left_out_and_counted(rung: Rung, peak: int) -> None:
    """By the server's count: not alone, or beside fewer or more neighbours than were begun."""
    server = Server(headers=lambda _asked: {"x-determinism-coresident-peak": str(peak)})
    async with on(server, [rung]) as run:
        await run.ladder.climb()

    assert run.ladder.crowded > 0
    assert not run.ladder.records[rung].samples


async def test_answers_in_the_company_of_their_rung_are_kept() -> None:
    """A prompt beside three others, by the server's count too."""
    server = Server(headers=lambda _asked: {"x-determinism-coresident-peak": "4"})
    async with on(server, [Rung.KV]) as run:
        await run.ladder.climb()

    assert not run.ladder.crowded
    assert {sample.peak for sample in run.ladder.records[Rung.KV].samples} == {4}


async def test_the_watcher_is_told_of_every_request_that_is_done() -> None:
    """With the rung's name, so that a bar can move."""
    async with on(Server()) as run:
        await run.ladder.climb()

    assert run.told == [step.rung.value for step in planned()]


async def lengths(until: float) -> tuple[Run, dict[Rung, set[int]]]:
    """A climb of 20 tokens in this time, and the tokens that were asked for on each rung."""
    async with on(Server(), until=until, tokens=20) as run:
        await run.ladder.climb()
    asked: dict[Rung, set[int]] = {rung: set() for rung in EVERY}
    for step, each in zip(planned(), run.answers, strict=False):
        asked[step.rung].add(each.body["max_tokens"])
    return run, asked


async def test_rungs_by_themselves_ask_for_less_when_time_is_short() -> None:
    """Answers of the cache's and the neighbours' rung get shorter, so that all rungs are whole; no others do."""
    whole, tokens = await lengths(ENDLESS)
    assert tokens == {rung: {20} for rung in EVERY}

    until = 0.8 * whole.server.clock()
    run, tokens = await lengths(until)
    assert {rung for rung, lengths in tokens.items() if lengths != {20}} == {Rung.CACHE, Rung.KV}
    assert all(len(lengths) == 1 for lengths in tokens.values())
    assert all(min(lengths) >= 6 for lengths in tokens.values())
    assert {rung: {record.tokens} for rung, record in run.ladder.records.items()} == tokens
    assert {record.reason for record in run.ladder.records.values()} == {None}
    assert run.server.clock() <= until


# --- more rounds -----------------------------------------------------------------------------------------------------


async def test_a_closer_look_is_taken_in_turn_up_to_the_most_rounds() -> None:
    """One more round of each of these rungs after the other; those that were not named stay as they are."""
    named = [Rung.ALONE, Rung.CACHE]
    async with on(Server()) as run:
        await run.ladder.climb()
        before = len(run.told)
        await run.ladder.look_closer(named, 5)

    more = [rung.value for _ in range(5 - LEAST_ROUNDS[Rung.ALONE]) for rung in named for _ in range(steps(rung, 1))]
    assert run.told[before:] == more
    rounds = {rung: record.rounds for rung, record in run.ladder.records.items()}
    assert rounds == LEAST_ROUNDS | dict.fromkeys(named, 5)


async def test_rounds_go_on_where_the_least_ended() -> None:
    """A closer look at a batch brings contents that it did not have before, and salts never repeat."""
    async with on(Server(), [Rung.BATCH]) as run:
        await run.ladder.climb()
        before = {sample.setting.content for sample in run.ladder.records[Rung.BATCH].samples}
        await run.ladder.look_closer([Rung.BATCH], 4)

    contents = {sample.setting.content for sample in run.ladder.records[Rung.BATCH].samples}
    assert before < contents
    salts = [asked.body["cache_salt"] for asked in run.answers]
    assert len(set(salts)) == len(salts)


async def test_a_rung_has_the_rounds_that_its_test_needs_whatever_is_asked_for() -> None:
    """--repeats below that takes nothing away, and adds nothing."""
    async with on(Server()) as run:
        await run.ladder.climb()
        await run.ladder.look_closer(EVERY, 2)

    assert {rung: record.rounds for rung, record in run.ladder.records.items()} == LEAST_ROUNDS


async def test_a_closer_look_begins_no_round_that_would_not_end() -> None:
    """With time for a round and a half, by those before, there is one more, and that is no reason to doubt the rung."""
    server = Server()
    async with on(server, [Rung.ALONE]) as timed:
        await timed.ladder.climb()
    whole = server.clock()

    again = Server()
    async with on(again, [Rung.ALONE], until=whole * (1 + 1.5 / LEAST_ROUNDS[Rung.ALONE])) as run:
        await run.ladder.climb()
        await run.ladder.look_closer([Rung.ALONE], MOST_ROUNDS)

    record = run.ladder.records[Rung.ALONE]
    assert (record.rounds, record.reason) == (LEAST_ROUNDS[Rung.ALONE] + 1, None)
    assert record.requests == steps(Rung.ALONE, record.rounds)


# --- where it ends ---------------------------------------------------------------------------------------------------

WHOLE = len(planned())


@pytest.mark.parametrize("at", [1, 2, 17, 40, WHOLE - 1])
async def test_a_spent_budget_ends_the_climb(at: int) -> None:
    """The request under way is the last; its answer counts, its rung is cut, and those above say why they are empty."""
    server = Server()
    answered = 0

    async def spend(_number: int, asked: Asked) -> None:
        nonlocal answered
        answered += not asked.streamed
        if answered == at:
            server.engine.now = 1000.0

    server.hold = spend
    async with on(server, until=999.0) as run:
        await run.ladder.climb()
        await run.ladder.look_closer(EVERY, 4)

    assert len(run.answers) == at
    last = planned()[at - 1].rung
    for rung in EVERY:
        record = run.ladder.records[rung]
        whole = EVERY.index(rung) < EVERY.index(last)
        assert record.reason == (None if whole else "the budget was spent")
        assert (record.rounds == LEAST_ROUNDS[rung]) == whole
        assert record.requests == sum(step.rung is rung for step in planned()[:at])
    assert sum(len(record.samples) for record in run.ladder.records.values()) == sum(
        len(step.probes) for step in planned()[:at]
    )


async def test_no_budget_asks_nothing() -> None:
    """Every rung says why."""
    server = Server()
    server.engine.now = 1.0
    async with on(server, until=0.5) as run:
        await run.ladder.climb()

    assert server.asked == []
    assert {record.reason for record in run.ladder.records.values()} == {"the budget was spent"}


@pytest.mark.parametrize("rung", EVERY)
async def test_a_rung_in_trouble_is_given_up_and_the_next_climbed(rung: Rung) -> None:
    """After three requests without an answer, with the reason; all others are whole."""
    settings = {step.salt: step.rung for step in planned()}
    server = Server(
        refuse=lambda _number, asked: (
            refusal(LIMITED, "slow down") if settings.get(asked.body["cache_salt"]) is rung else None
        )
    )
    # Salts go on where a rung is left, so the settings hold for it and for those before.
    rungs = EVERY[: EVERY.index(rung) + 1]
    settings = {step.salt: step.rung for step in planned(rungs)}
    async with on(server, rungs) as run:
        await run.ladder.climb()
        await run.ladder.look_closer([rung], 4)

    record = run.ladder.records[rung]
    assert record.reason == "rate limited, HTTP 429: slow down"
    assert record.troubles == [record.reason] * TROUBLES_ALLOWED
    assert (record.requests, record.samples) == (TROUBLES_ALLOWED, [])
    for other in rungs[:-1]:
        assert (run.ladder.records[other].rounds, run.ladder.records[other].reason) == (LEAST_ROUNDS[other], None)


async def test_the_rungs_above_one_in_trouble_are_climbed() -> None:
    """A server that refuses lists of prompts loses the batch rung and no other."""
    server = Server(refuse=lambda _number, asked: refusal(400, "one prompt only") if len(asked.prompts) > 1 else None)
    async with on(server) as run:
        await run.ladder.climb()

    reasons = {rung: record.reason for rung, record in run.ladder.records.items()}
    assert reasons == dict.fromkeys(EVERY) | {Rung.BATCH: "HTTP 400: one prompt only"}
    assert all(run.ladder.records[rung].rounds == LEAST_ROUNDS[rung] for rung in EVERY if rung is not Rung.BATCH)
    # The batch rung's own answers given alone are kept.
    assert len(run.ladder.records[Rung.BATCH].samples) == len(material().probes)


async def test_neighbours_without_answers_are_trouble_of_their_rung() -> None:
    """Whoever was to join is then not asked."""
    server = Server(refuse=lambda _number, asked: refusal(503, "full") if asked.streamed else None)
    async with on(server, [Rung.KV, Rung.REPLICA]) as run:
        await run.ladder.climb()

    assert run.ladder.records[Rung.KV].reason == "HTTP 503: full"
    assert {asked.host for asked in run.answers} == {httpx.URL(SECOND).host}
    assert server.engine.beside == []


async def test_a_request_without_an_answer_now_and_then_is_no_reason_to_stop() -> None:
    """Two of a rung are noted, and its rounds go on."""
    server = Server(refuse=lambda number, _asked: refusal(500, "hiccup") if number in {2, 5} else None)
    async with on(server, [Rung.ALONE]) as run:
        await run.ladder.climb()

    record = run.ladder.records[Rung.ALONE]
    assert (record.rounds, record.reason) == (LEAST_ROUNDS[Rung.ALONE], None)
    assert record.troubles == ["HTTP 500: hiccup"] * 2
    assert len(record.samples) == record.requests - 2 == steps(Rung.ALONE, record.rounds) - 2


@pytest.mark.parametrize("told", [0, None])
async def test_a_cache_that_is_off_is_not_asked_again(told: int | None) -> None:
    """Where the server says that nothing came from it one round is enough; where it does not say, nobody knows."""

    def change(_asked: Asked, document: dict[str, Any]) -> None:
        document["usage"] = {"prompt_tokens_details": None if told is None else {"cached_tokens": told}}

    async with on(Server(change=change), [Rung.CACHE]) as run:
        await run.ladder.climb()
        await run.ladder.look_closer([Rung.CACHE], 4)

    record = run.ladder.records[Rung.CACHE]
    if told is None:
        assert (record.rounds, record.reason) == (4, None)
    else:
        assert (record.rounds, record.requests) == (0, steps(Rung.CACHE, 1))
        assert record.reason is not None
        assert record.reason.startswith("nothing came from a prefix cache")


async def test_a_cache_that_holds_some_prompts_is_worth_more_rounds() -> None:
    """One hit is enough to go on."""
    long = len(material().longs[-1])

    def change(asked: Asked, document: dict[str, Any]) -> None:
        if len(asked.prompts[0]) < long:
            document["usage"]["prompt_tokens_details"]["cached_tokens"] = 0

    async with on(Server(change=change), [Rung.CACHE]) as run:
        await run.ladder.climb()

    assert run.ladder.records[Rung.CACHE].reason is None


# --- whose answers count ---------------------------------------------------------------------------------------------


def taking_turns(*facts: dict[str, str]) -> Server:
    """A gateway whose answers have these headers in turn."""
    server = Server()
    server.headers = lambda _asked: facts[len(server.asked) % len(facts)]
    return server


@pytest.mark.parametrize(
    ("other", "name"),
    [
        ({"x-determinism-replica": "two", "x-determinism-posture": "p-1"}, "two"),
        ({"x-determinism-replica": "one", "x-determinism-posture": "p-2"}, "one"),
        ({"x-determinism-posture": "p-1"}, "another posture"),
    ],
)
async def test_answers_of_another_replica_or_posture_are_left_out_and_counted(other: dict[str, str], name: str) -> None:
    """They would be blamed on whatever the rung changes."""
    server = taking_turns({"x-determinism-replica": "one", "x-determinism-posture": "p-1"}, other)
    async with on(server, [Rung.ALONE, Rung.BATCH], replica="one", posture="p-1") as run:
        await run.ladder.climb()

    odd = [step for number, step in enumerate(planned([Rung.ALONE, Rung.BATCH]), 1) if number % 2]
    assert run.ladder.left_out == {name: len(odd)}
    # What such answers ran on is nothing to a comparison with further replicas.
    assert run.ladder.postures == {0: {"p-1"}}
    kept = sum(len(record.samples) for record in run.ladder.records.values())
    assert kept == sum(len(step.probes) for step in planned([Rung.ALONE, Rung.BATCH])) - sum(
        len(step.probes) for step in odd
    )


async def test_the_postures_of_each_replica_are_kept() -> None:
    """Another replica's are its own, and leave none of its answers out."""

    def headers(asked: Asked) -> dict[str, str]:
        return {"x-determinism-posture": "p-1" if asked.host == httpx.URL(URL).host else "p-2"}

    async with on(Server(headers=headers), [Rung.ALONE, Rung.REPLICA], posture="p-1") as run:
        await run.ladder.climb()

    assert run.ladder.postures == {0: {"p-1"}, 1: {"p-2"}}
    assert not run.ladder.left_out
    assert len(run.ladder.records[Rung.REPLICA].samples) == steps(Rung.REPLICA, LEAST_ROUNDS[Rung.REPLICA])


# --- cancellation ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at", [*range(1, 8), 30, 60, 75, WHOLE])
async def test_what_was_answered_is_readable_after_a_cancellation(at: int) -> None:
    """At any request: the samples of those before, whole rounds, the time spent, and no neighbour left running."""
    server, answered, scope = Server(LayeredEngine(frozenset(), 1)), 0, anyio.CancelScope()

    async def leave(_number: int, asked: Asked) -> None:
        nonlocal answered
        answered += not asked.streamed
        if answered == at:
            scope.cancel()
            await anyio.sleep_forever()

    server.hold = leave
    async with on(server) as run:
        with scope:
            await run.ladder.climb()

    done = planned()[: at - 1]
    records = run.ladder.records
    assert scope.cancelled_caught
    assert sum(len(record.samples) for record in records.values()) == sum(len(step.probes) for step in done)
    assert list(records) == list(EVERY[: EVERY.index(planned()[at - 1].rung) + 1])
    assert {record.reason for record in records.values()} == {None}
    assert len(run.told) == len(done)
    assert sum(record.seconds for record in records.values()) == pytest.approx(server.clock())
    assert server.engine.beside == []
