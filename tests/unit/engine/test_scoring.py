"""The path of verification passes: what may be asked, what comes back, and who is let in."""

import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from app.engine.model import Limits
from app.engine.passes import Passes
from app.engine.plugin import EXTENSION
from app.engine.scoring import SCORE_PATH, Scorer, ScoreRequest
from app.engine.self_test import Verdict
from app.errors import DeterminismUnavailable, InvalidRequest
from tests.unit.engine.fake_passes import BLOCK, LENGTH, VOCABULARY, FakeCache, fake_vllm, model_state
from tests.unit.engine.fakes import DISCONNECT, EXCLUSIVE, SHARED, Call, Replica, quiet

__all__ = ["fake_vllm"]

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("fake_vllm")]

LIMITS = Limits(length=LENGTH, vocabulary=VOCABULARY, block=BLOCK, caches=True, logprobs=20)
PLAIN: dict[str, Any] = {
    "ids": list(range(10)),
    "first": 7,
    "k": 2,
    "cached": None,
    "prefix": 0,
    "block": BLOCK,
    "salt": None,
}
CHAIN: dict[str, Any] = {**PLAIN, "first": 9, "cached": 2 * BLOCK, "prefix": BLOCK, "salt": "of the prompt"}


def read(**changes: Any) -> ScoreRequest:
    return ScoreRequest.read(json.dumps({**PLAIN, **changes}).encode(), LIMITS)


def test_a_request_is_read() -> None:
    """Both kinds, to the limits of each member."""
    asked = read()
    assert (asked.ids, asked.first, asked.k, asked.cached) == (list(range(10)), 7, 2, None)
    assert read(ids=[0] * (LENGTH - 1), first=LENGTH - 1, k=20, salt="s" * 128).salt == "s" * 128
    assert read(ids=[999], first=1).ids == [999]
    assert read(**CHAIN).cached == 2 * BLOCK
    assert read(**{**CHAIN, "prefix": 0}).prefix == 0
    assert read(**{**CHAIN, "ids": [1] * BLOCK, "cached": 0, "prefix": 0, "first": 1}).cached == 0


@pytest.mark.parametrize(
    ("member", "changes"),
    [
        ("ids", {"ids": []}),
        ("ids", {"ids": [1] * LENGTH}),
        ("ids", {"ids": [VOCABULARY]}),
        ("first", {"first": 0}),
        ("first", {"first": 11}),
        ("k", {"k": 0}),
        ("k", {"k": 21}),
        ("prefix", {"prefix": -1}),
        ("block", {"block": "4"}),
        ("salt", {"salt": ""}),
        ("more", {"more": 1}),
        ("cached", {"cached": 10}),
        ("cached", {**CHAIN, "cached": BLOCK}),
        ("cached", {**CHAIN, "cached": 9}),
        ("cached", {**CHAIN, "ids": [1] * (2 * BLOCK), "first": 8}),
        ("prefix", {**CHAIN, "prefix": 3}),
        ("prefix", {**CHAIN, "prefix": 3 * BLOCK}),
        ("block", {**CHAIN, "block": 2 * BLOCK}),
        ("block", {**CHAIN, "block": 0}),
        ("first", {**CHAIN, "first": 2 * BLOCK}),
        ("salt", {**CHAIN, "salt": None}),
    ],
)
def test_what_makes_no_pass_is_refused_by_name(member: str, changes: dict[str, Any]) -> None:
    """The member that is to blame."""
    with pytest.raises(InvalidRequest) as caught:
        read(**changes)
    assert caught.value.param == member


def test_a_chain_needs_a_prefix_cache() -> None:
    """An engine without one has no chain, whoever asks."""
    limits = Limits(length=LENGTH, vocabulary=VOCABULARY, block=BLOCK, caches=False, logprobs=20)
    with pytest.raises(DeterminismUnavailable, match="no prefix cache"):
        ScoreRequest.read(json.dumps(CHAIN).encode(), limits)


class Verifier(Replica):
    """A replica that computes passes, and has told its posture."""

    def __init__(self, engine: FakeCache | None = None, **options: Any) -> None:
        self.cache = engine or FakeCache()
        super().__init__(engine=self.cache, **options)
        self.state.__dict__.update(model_state(self.cache).__dict__)

    def score(self, headers: dict[str, str] = EXCLUSIVE, **changes: Any) -> Call:
        """A request for a pass."""
        return self.call(headers, SCORE_PATH, data=json.dumps({**PLAIN, **changes}).encode())

    async def answer(self, headers: dict[str, str] = EXCLUSIVE, **changes: Any) -> tuple[int | None, Any]:
        """Status and content of a pass."""
        call = self.score(headers, **changes)
        await self.serve(call)
        return call.status, json.loads(call.content)

    async def page(self) -> dict[str, Any]:
        """The posture page, once it is there."""
        with anyio.fail_after(5):
            while (answer := await self.ask("/reprise/posture", SHARED))[0] != 200:
                await quiet()
        page: dict[str, Any] = answer[1]
        return page

    def batch_invariant(self) -> "Verifier":
        """Itself, on an engine whose passes may run beside others."""
        self.cache.workers = [{"device": "cuda", "architecture": "9.0", "batch_invariance": True}]
        self.state.vllm_config.parallel_config.worker_extension_cls = EXTENSION
        return self

    async def observed(self) -> "Verifier":
        """Itself, once its posture is known."""
        await self.page()
        return self


async def test_rows_come_back_from_the_first_position_to_the_one_after_the_last_token() -> None:
    """With the headers of any admission, and the numbers exactly as the engine has them."""
    verifier = await Verifier().observed()
    call = verifier.score()
    await verifier.serve(call)
    answer = json.loads(call.content)
    rows = (await Passes(FakeCache()).over(PLAIN["ids"], salt=None, reads=False, first=7, k=2)).rows
    assert answer["ids"] == [list(row.ids) for row in rows]
    assert answer["logprobs"] == [list(row.logprobs) for row in rows]
    assert len(rows) == 4
    assert (answer["sampled"], answer["cached"], answer["engine_passes"]) == (True, 0, 1)
    assert answer["seconds"] >= 0
    assert call.headers["x-determinism-coresident-peak"] == "1"
    assert float(call.headers["x-determinism-admission-wait"]) >= 0
    assert call.headers["x-determinism-posture"].startswith("p-")
    assert verifier.server.started == []


async def test_a_chain_is_remembered_between_requests() -> None:
    """Prefix, a block and the pass; the next one on its own."""
    verifier = await Verifier().observed()
    status, first = await verifier.answer(**CHAIN)
    assert (status, first["cached"], first["engine_passes"], len(first["ids"])) == (200, 8, 3, 2)
    _, again = await verifier.answer(**CHAIN)
    assert (again["ids"], again["logprobs"], again["engine_passes"]) == (first["ids"], first["logprobs"], 1)


async def test_an_engine_is_tested_once_before_its_first_pass() -> None:
    """The page says what came of it; requests that are refused do not start it."""
    verifier = Verifier()
    assert (await verifier.page())["self_test"] == {"held": None, "reason": ""}
    assert (await verifier.answer(k=0))[0] == 400
    assert verifier.cache.seen == []
    assert (await verifier.answer())[0] == 200
    tested = len(verifier.cache.seen)
    assert tested == 7 + 1
    assert (await verifier.page())["self_test"] == {"held": True, "reason": ""}
    assert (await verifier.answer())[0] == 200
    assert len(verifier.cache.seen) == tested + 1


async def test_an_engine_that_failed_its_test_scores_nothing() -> None:
    """From then on, with the reason; nothing runs for it any more."""
    verifier = await Verifier().observed()
    verifier.cache.looks_ahead = True
    for _ in range(2):
        status, answer = await verifier.answer()
        assert (status, answer["error"]["code"]) == (503, "determinism_unavailable")
        assert "depend on the tokens after them" in answer["error"]["message"]
    assert len(verifier.cache.seen) == 3
    page = await verifier.page()
    assert page["self_test"]["held"] is False
    assert "depend on the tokens" in page["self_test"]["reason"]


async def test_an_engine_that_failed_its_test_does_not_provide_verification() -> None:
    """Whatever its posture says; the other mitigations and the digest are as they were."""
    verifier = await Verifier().observed()
    before = await verifier.page()
    verifier.cache.looks_ahead = True
    await verifier.answer()
    after = await verifier.page()
    provision = after["provides"].pop("verification")
    assert before["provides"].pop("verification") == {"held": True, "reason": ""}
    assert provision["held"] is False
    assert after["self_test"]["reason"] in provision["reason"]
    assert (after["provides"], after["digest"]) == (before["provides"], before["digest"])


async def test_an_engine_that_failed_its_test_is_not_drained_for_another_pass() -> None:
    """The refusal comes before the request would wait for those that run."""
    verifier = await Verifier().observed()
    verifier.cache.looks_ahead = True
    await verifier.answer()
    running, late = verifier.call(SHARED), verifier.call(SHARED)
    async with anyio.create_task_group() as group:
        group.start_soon(verifier.serve, running)
        await quiet()
        with anyio.fail_after(5):
            status, answer = await verifier.answer()
        assert (status, answer["error"]["code"]) == (503, "determinism_unavailable")
        assert "verification cannot be honoured: the self-test of this engine failed" in answer["error"]["message"]
        group.start_soon(verifier.serve, late)
        await quiet()
        assert verifier.server.started == [running, late]
        running.finish.set()
        late.finish.set()


async def test_a_test_that_others_spoilt_is_made_again() -> None:
    """That one request fails, and may come again; the engine goes on providing verification."""
    verifier = await Verifier().batch_invariant().observed()
    verifier.cache.during = lambda _: verifier.cache.forget()
    running = verifier.call(SHARED)
    async with anyio.create_task_group() as group:
        group.start_soon(verifier.serve, running)
        await quiet()
        call = verifier.score(SHARED)
        await verifier.serve(call)
        error = json.loads(call.content)["error"]
        assert (call.status, error["code"], call.headers["retry-after"]) == (503, "determinism_unavailable", "1")
        assert "x-should-retry" not in call.headers
        assert "could not be made beside others: the engine does not read" in error["message"]
        page = await verifier.page()
        assert (page["self_test"]["held"], page["provides"]["verification"]["held"]) == (None, True)
        verifier.cache.during = lambda _: None
        assert (await verifier.answer(SHARED))[0] == 200
        running.finish.set()
    assert (await verifier.page())["self_test"] == {"held": True, "reason": ""}


@pytest.mark.parametrize("headers", [SHARED, EXCLUSIVE])
async def test_a_chain_that_misreads_with_nobody_beside_is_the_engines_doing(headers: dict[str, str]) -> None:
    """As on an engine that cannot read its cache at all: it is not tested again for every request."""
    verifier = await Verifier().batch_invariant().observed()
    verifier.cache.during = lambda _: verifier.cache.forget()
    for _ in range(2):
        assert (await verifier.answer(headers))[0] == 503
    assert len(verifier.cache.seen) == 3 + 3 * 2
    assert (await verifier.page())["self_test"]["held"] is False


async def test_where_other_servers_have_gates_of_their_own_nobody_knows_who_ran() -> None:
    """A peak of one is only this gate's."""
    verifier = Verifier().batch_invariant()
    verifier.state.vllm_config.parallel_config._api_process_count = 2
    await verifier.page()
    verifier.cache.during = lambda _: verifier.cache.forget()
    assert (await verifier.answer(SHARED))[0] == 503
    assert (await verifier.page())["self_test"]["held"] is None


async def test_a_test_that_was_broken_off_is_made_again() -> None:
    """A client that leaves proves nothing about the engine."""
    verifier = await Verifier().observed()
    verifier.cache.hold.clear()
    call = verifier.score()
    async with anyio.create_task_group() as group:
        group.start_soon(verifier.serve, call)
        await quiet()
        call.wire.put_nowait(DISCONNECT)
    assert (verifier.cache.aborted, call.sent) == (1, [])
    assert (await verifier.page())["self_test"]["held"] is None
    verifier.cache.hold.set()
    assert (await verifier.answer())[0] == 200


async def test_a_client_that_leaves_aborts_its_pass_at_once() -> None:
    """Nothing is sent, the engine is told, and the next one gets its turn."""
    verifier = await Verifier().observed()
    await verifier.answer()
    verifier.cache.hold.clear()
    leaving, staying = verifier.score(), verifier.score()
    async with anyio.create_task_group() as group:
        group.start_soon(verifier.serve, leaving)
        await quiet()
        group.start_soon(verifier.serve, staying)
        await quiet()
        assert verifier.cache.unfinished == 1
        leaving.wire.put_nowait(DISCONNECT)
        await quiet()
        assert (verifier.cache.aborted, verifier.cache.unfinished) == (1, 1)
        verifier.cache.hold.set()
    assert (leaving.sent, staying.status) == ([], 200)


async def test_a_pass_takes_its_turn_like_any_exclusive_request() -> None:
    """After those that run, and before those that come later."""
    verifier = await Verifier().observed()
    running, waiting, late = verifier.call(SHARED), verifier.score(), verifier.call(SHARED)
    async with anyio.create_task_group() as group:
        for call in (running, waiting, late):
            group.start_soon(verifier.serve, call)
            await quiet()
        assert (waiting.status, verifier.server.started) == (None, [running])
        running.finish.set()
        await quiet()
        assert waiting.status == 200
        late.finish.set()


async def test_an_engine_that_raises_is_an_error_of_the_engine(caplog: pytest.LogCaptureFixture) -> None:
    """500 in our shape, so that the gateway asks another replica; the log has the rest."""
    verifier = await Verifier().observed()
    await verifier.answer()

    def fail(_: list[int]) -> None:
        raise RuntimeError("the engine is dead")

    verifier.cache.during = fail
    status, answer = await verifier.answer()
    assert (status, answer["error"]["code"]) == (500, "internal_error")
    assert "RuntimeError" in answer["error"]["message"]
    assert "the engine is dead" in caplog.text


async def test_an_engine_that_reads_what_it_should_compute_is_unavailable() -> None:
    """Such as one whose cache cannot be bypassed."""
    reading = SimpleNamespace(cached=4, rows=())

    class Reads(Passes):
        async def over(self, *_: Any, **__: Any) -> Any:
            return reading

    scorer = Scorer()
    with pytest.raises(DeterminismUnavailable, match="read 4 tokens that it should have computed"):
        await scorer._outcome(read(), Reads(FakeCache()))


async def test_limits_that_are_unknown_are_unavailable() -> None:
    """503, never a guess."""
    verifier = await Verifier().observed()
    del verifier.state.vllm_config.cache_config
    status, answer = await verifier.answer()
    assert (status, answer["error"]["code"]) == (503, "determinism_unavailable")


@pytest.mark.parametrize("headers", [{}, {"x-determinism-admission": "exclusive"}, {"x-determinism-guard-key": "x"}])
async def test_a_pass_needs_the_guard_key(headers: dict[str, str]) -> None:
    """403 for everybody else, whatever admission was asked for."""
    verifier = await Verifier().observed()
    assert (await verifier.answer(headers))[0] == 403
    assert verifier.cache.seen == []


async def test_before_the_posture_is_known_nothing_is_decided() -> None:
    """503 not_ready, which also starts the observation."""
    verifier = Verifier()
    status, answer = await verifier.answer()
    assert (status, answer["error"]["code"]) == (503, "not_ready")
    await verifier.page()
    assert (await verifier.answer())[0] == 200


async def test_a_shared_pass_needs_batch_invariance() -> None:
    """Rows that depend on their company decide nothing."""
    verifier = await Verifier().observed()
    status, answer = await verifier.answer(SHARED)
    assert (status, answer["error"]["code"]) == (503, "determinism_unavailable")
    assert "a pass must be exclusive here" in answer["error"]["message"]


async def test_on_an_engine_of_one_sequence_every_pass_is_alone() -> None:
    """No admission has to be asked for."""
    verifier = Verifier()
    verifier.one_sequence_at_a_time()
    await verifier.page()
    call = verifier.score(SHARED)
    await verifier.serve(call)
    assert (call.status, call.headers["x-determinism-coresident-peak"]) == (200, "1")


async def test_an_engine_that_cannot_verify_says_why() -> None:
    """The posture's reason, before anything waits."""
    verifier = Verifier()
    verifier.state.vllm_config.model_config.logprobs_mode = "raw_logits"
    await verifier.page()
    status, answer = await verifier.answer()
    assert (status, answer["error"]["code"]) == (503, "determinism_unavailable")
    assert "verification cannot be honoured: --logprobs-mode is raw_logits" in answer["error"]["message"]


async def test_the_test_is_made_once_for_requests_beside_each_other() -> None:
    """The others wait for it."""
    made = 0

    async def test(_: Passes, __: Limits, ___: Callable[[], bool]) -> Verdict:
        nonlocal made
        made += 1
        await quiet()
        return Verdict(held=True)

    scorer = Scorer(test)
    state = model_state(FakeCache())
    async with anyio.create_task_group() as group:
        for _ in range(3):
            group.start_soon(scorer._prove, state, LIMITS, lambda: True)
    assert (made, scorer.verdict) == (1, Verdict(held=True))


async def test_an_engine_that_fails_while_others_wait_for_its_test_serves_none_of_them() -> None:
    """They were let in before the verdict."""

    async def test(_: Passes, __: Limits, ___: Callable[[], bool]) -> Verdict:
        await quiet()
        return Verdict(held=False, reason="it does not repeat")

    scorer, refused = Scorer(test), list[str]()
    state = model_state(FakeCache())

    async def prove() -> None:
        with pytest.raises(DeterminismUnavailable) as caught:
            await scorer._prove(state, LIMITS, lambda: True)
        refused.append(caught.value.message)

    async with anyio.create_task_group() as group:
        for _ in range(2):
            group.start_soon(prove)
    assert refused == ["the self-test of this engine failed: it does not repeat"] * 2
