"""The gateway's modes, measured under load in virtual time: which, in what order, for how long, and what is kept."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import anyio
import httpx
import pytest

from app.determinism.mode import Mode
from app.diagnose.cure import LOAD, MOST_REPEATS, Cure, Cures, untried
from app.diagnose.investigation import Investigation
from app.probe.tally import Status
from tests.unit.diagnose.made import cure
from tests.unit.diagnose.samples import deployment
from tests.unit.diagnose.scripted import URL, Modes
from tests.unit.probe.virtual import VirtualTime

pytestmark = pytest.mark.anyio

PROMPTS = ("one", "two")
ASKED = Investigation(URL, repeats=3)
TOKENS = 4
ENDLESS = 1e6
"""Seconds."""

GREEDY = (Mode.STANDARD, Mode.INVARIANT, Mode.VERIFIED, Mode.ISOLATED)
"""The modes that are measured where nothing is sampled and isolated repeats, in order."""


class Bench:
    """A gateway in virtual time, and its modes measured until a moment of it."""

    def __init__(self, investigation: Investigation = ASKED, *, until: float = ENDLESS, **modes: Any) -> None:
        self.time = VirtualTime()
        self.gateway = Modes(self.time, **modes)
        self.told: list[str] = []
        self.scope = anyio.CancelScope()
        self.cures = self.over(self.gateway, investigation, until)

    def over(self, transport: httpx.AsyncBaseTransport, investigation: Investigation, until: float) -> Cures:
        """Over this network."""
        return Cures(
            investigation,
            deployment(url=URL, prompts=PROMPTS, model="small", gateway=True),
            TOKENS,
            until=until,
            transport=transport,
            clock=self.time.clock,
            sleep=self.time.sleep,
            watch=self.told.append,
        )

    async def measure(self) -> dict[Mode, Cure]:
        """Measure, unless the scope is cancelled."""
        async with self.time.passing():
            with self.scope:
                await self.cures.measure()
        return {each.mode: each for each in self.cures.measured}

    def begun(self, mode: Mode) -> float:
        """When a mode was first asked for."""
        return next(asked.at for asked in self.gateway.asked if asked.mode == mode)


def said(found: Cure) -> str | None:
    """Why a mode has no figures."""
    return untried(found)


# --- which modes -----------------------------------------------------------------------------------------------------


async def test_modes_are_measured_in_the_order_of_their_cost() -> None:
    """Whatever is asked greedily needs no seed, and hardened can be no cheaper than isolated."""
    bench = Bench()
    found = await bench.measure()

    assert tuple(found) == GREEDY
    begun = [bench.begun(mode) for mode in GREEDY]
    assert begun == sorted(begun)
    assert list(dict.fromkeys(bench.told)) == [mode.value for mode in GREEDY]
    for mode in GREEDY:
        row = found[mode].row
        assert (row.status, row.compared, row.diverged) == (Status.MEASURED, 3 * len(PROMPTS), 0)
        assert found[mode].reached_zero
        assert not found[mode].cut


async def test_seeded_is_measured_where_something_is_sampled() -> None:
    """At temperature 0 there is no stream of the sampler to pin."""
    found = await Bench(replace(ASKED, temperature=0.8)).measure()

    assert tuple(found) == (Mode.STANDARD, Mode.SEEDED, *GREEDY[1:])


@pytest.mark.parametrize(
    "trouble",
    [
        {"forks": {"isolated": len(PROMPTS)}},
        {"refused": {"isolated": (503, "determinism_unavailable")}},
        {"headers": lambda headers: headers | {"x-determinism-mode": "standard"}},
    ],
    ids=["diverged", "refused", "not confirmed"],
)
async def test_hardened_is_measured_where_isolated_is_not_seen_to_repeat(trouble: dict[str, Any]) -> None:
    """It does more than isolated does, which then may be needed."""
    found = await Bench(**trouble).measure()

    assert not found[Mode.ISOLATED].reached_zero
    assert found[Mode.HARDENED].measured


async def test_divergence_is_counted_where_it_is() -> None:
    """Modes whose repeats are not their references do not reach zero."""
    found = await Bench(forks={"standard": len(PROMPTS), "verified": len(PROMPTS) + 2}).measure()

    assert [(mode, found[mode].row.diverged) for mode in GREEDY] == [
        (Mode.STANDARD, 6),
        (Mode.INVARIANT, 0),
        (Mode.VERIFIED, 4),
        (Mode.ISOLATED, 0),
    ]
    assert [found[mode].reached_zero for mode in GREEDY] == [False, True, False, True]


async def test_the_experiment_is_the_investigations() -> None:
    """Its key, seed and temperature, the prompts that the ladder asks, as many tokens as it asked for, under load."""
    bench = Bench(replace(ASKED, api_key="secret", seed=9, temperature=0.8))
    found = await bench.measure()

    isolated = [asked for asked in bench.gateway.asked if asked.mode == "isolated"]
    assert {asked.body["messages"][0]["content"] for asked in isolated} == set(PROMPTS)
    assert {(asked.body["max_tokens"], asked.body["seed"], asked.body["temperature"]) for asked in isolated} == {
        (TOKENS, 9, 0.8)
    }
    assert {asked.body["model"] for asked in bench.gateway.asked} == {"small"}
    assert {asked.authorization for asked in bench.gateway.asked} == {"Bearer secret"}
    assert found[Mode.STANDARD].row.peak == LOAD + 4


@pytest.mark.parametrize(("repeats", "asked"), [(None, MOST_REPEATS), (3, 3), (MOST_REPEATS + 1, MOST_REPEATS)])
async def test_repeats_are_bounded(repeats: int | None, asked: int) -> None:
    """As many as were asked for, and never more than tell something here."""
    found = await Bench(replace(ASKED, repeats=repeats)).measure()

    assert {each.row.compared for each in found.values()} == {asked * len(PROMPTS)}


async def test_the_cost_is_that_of_the_repeats_and_the_load() -> None:
    """A mode that serves nobody else meanwhile is slower in both."""
    found = await Bench().measure()

    for each in found.values():
        assert each.row.tokens_per_second is not None
        assert each.row.background_per_second is not None
        assert each.tokens_per_second == each.row.tokens_per_second + each.row.background_per_second
    assert found[Mode.ISOLATED].tokens_per_second < found[Mode.STANDARD].tokens_per_second
    waits = [found[mode].row.wait for mode in (Mode.STANDARD, Mode.ISOLATED)]
    assert waits[0] is not None
    assert waits[1] is not None
    assert waits[0].median < waits[1].median


def test_a_mode_without_figures_costs_nothing_and_repeats_nothing() -> None:
    """What was never compared is no cure."""
    found = cure(Mode.ISOLATED, 0, 0, 0.0)

    assert (found.measured, found.reached_zero, found.tokens_per_second) == (False, False, 0.0)


# --- for how long ----------------------------------------------------------------------------------------------------


async def test_the_time_is_shared_out_by_weight() -> None:
    """On a gateway that never answers each mode is cut when its share is over, and says so."""
    bench = Bench(until=70.0, stops=dict.fromkeys(Mode, 0))
    silent: list[tuple[str, float]] = []
    answer = bench.gateway.handle_async_request

    async def note(request: httpx.Request) -> httpx.Response:
        if request.method == "POST":
            silent.append((request.headers["x-determinism-mode"], bench.time.now))
        return await answer(request)

    cures = bench.over(_Network(note), ASKED, 70.0)
    async with bench.time.passing():
        await cures.measure()

    # Of the weights 1, 1, 2 and 3; isolated is the last with a share of its own.
    assert silent == [("standard", 0.0), ("invariant", 10.0), ("verified", 20.0), ("isolated", 40.0)]
    assert bench.time.now == pytest.approx(70.0)
    assert [(each.mode, each.cut, each.measured) for each in cures.measured] == [(mode, True, False) for mode in GREEDY]
    assert {said(each) for each in cures.measured} == {"it was cut short before any repeat was compared"}


async def test_a_mode_that_is_cut_keeps_its_figures() -> None:
    """What had been answered by then is its row; the modes after it are measured as ever."""
    answers = len(PROMPTS) + 3
    bench = Bench(until=100.0, stops={"verified": answers})
    found = await bench.measure()

    verified = found[Mode.VERIFIED]
    assert (verified.cut, verified.row.status) == (True, Status.INTERRUPTED)
    assert verified.row.compared == answers - len(PROMPTS)
    assert (verified.measured, said(verified)) == (True, None)
    assert (found[Mode.ISOLATED].cut, found[Mode.ISOLATED].row.status) == (False, Status.MEASURED)


async def test_time_that_a_mode_did_not_need_goes_to_the_others() -> None:
    """Modes that are refused at once leave their share to the last, which alone is silent."""
    refused = dict.fromkeys(("standard", "invariant", "verified"), (503, "determinism_unavailable"))
    bench = Bench(until=70.0, refused=refused, stops={"isolated": len(PROMPTS)})
    found = await bench.measure()

    assert found[Mode.ISOLATED].cut
    assert bench.begun(Mode.ISOLATED) == 0.0
    assert bench.time.now == pytest.approx(70.0)


@pytest.mark.parametrize("until", [0.0, -5.0])
async def test_no_time_measures_nothing(until: float) -> None:
    """Nothing is asked, and nothing claimed."""
    bench = Bench(until=until)

    assert await bench.measure() == {}
    assert bench.gateway.asked == []


# --- what goes wrong -------------------------------------------------------------------------------------------------


async def test_a_refused_mode_says_why() -> None:
    """Not offered, or not for such requests: in the server's words, and the others are measured."""
    bench = Bench(refused={"invariant": (503, "determinism_unavailable"), "verified": (400, "not_verifiable")})
    found = await bench.measure()

    assert said(found[Mode.INVARIANT]) == "not offered here: invariant is not offered"
    assert said(found[Mode.VERIFIED]) == "not offered here: verified is not offered"
    assert not found[Mode.INVARIANT].cut
    assert found[Mode.ISOLATED].reached_zero


async def test_a_mode_that_fails_says_why() -> None:
    """Errors of one mode are its reason and nobody else's."""
    bench = Bench(broken=lambda _number, mode: 500 if mode == "verified" else None)
    found = await bench.measure()

    assert said(found[Mode.VERIFIED]) == "HTTP 500: out of order"
    assert found[Mode.ISOLATED].reached_zero


class _Network(httpx.AsyncBaseTransport):
    """A network where this answers."""

    def __init__(self, answer: Callable[[httpx.Request], Any]) -> None:
        self._answer = answer

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        response = await self._answer(request)
        assert isinstance(response, httpx.Response)
        return response


@pytest.mark.parametrize("gone_after", range(3))
async def test_a_server_that_is_gone_is_survived(gone_after: int) -> None:
    """Modes that began before keep their figures, and nothing is raised."""
    bench, looks = Bench(), 0

    async def answer(request: httpx.Request) -> httpx.Response:
        nonlocal looks
        looks += request.method == "GET"
        if looks > gone_after:
            raise httpx.ConnectError("gone")
        return await bench.gateway.handle_async_request(request)

    cures = bench.over(_Network(answer), replace(ASKED, model=None), ENDLESS)
    async with bench.time.passing():
        await cures.measure()

    assert [each.mode for each in cures.measured] == list(GREEDY[:gone_after])
    assert all(each.reached_zero for each in cures.measured)


@pytest.mark.parametrize("answered", range(1, 8))
async def test_a_cancelled_run_keeps_what_was_measured(answered: int) -> None:
    """The whole modes, and what the one under way had compared when it was left."""
    bench = Bench()
    requests = 0

    def leave(_number: int, mode: str) -> int | None:
        nonlocal requests
        requests += mode == "isolated"
        if requests > answered:
            bench.scope.cancel()
        return None

    bench.gateway.broken = leave
    found = await bench.measure()

    assert bench.scope.cancelled_caught
    assert tuple(found) == GREEDY
    assert all(not found[mode].cut for mode in GREEDY[:-1])
    isolated = found[Mode.ISOLATED]
    assert isolated.cut
    assert isolated.row.answers < answered + 1
    assert isolated.row.status is Status.INTERRUPTED
