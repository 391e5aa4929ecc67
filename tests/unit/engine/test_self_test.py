"""The self-test: an engine whose rows repeat passes, every way in which they do not is found."""

import dataclasses

import pytest

from app.engine.model import Limits
from app.engine.passes import Passes
from app.engine.self_test import Verdict, self_test
from tests.unit.engine.fake_passes import BLOCK, LENGTH, VOCABULARY, FakeCache, fake_vllm

__all__ = ["fake_vllm"]

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("fake_vllm")]

LIMITS = Limits(length=LENGTH, vocabulary=VOCABULARY, block=BLOCK, caches=True, logprobs=20)


def alone() -> bool:
    """Nobody else is on the engine."""
    return True


async def test_an_engine_that_repeats_passes_in_seven_passes() -> None:
    """Three that compute everything, a prefix, and three that read it."""
    engine = FakeCache()
    assert await self_test(Passes(engine), LIMITS, alone) == Verdict(held=True)
    assert [(total, cached) for total, _, cached in engine.seen] == [(63, 0)] * 3 + [(4, 0)] + [(8, 4)] * 3


async def test_without_a_cache_or_room_the_chain_is_not_tested() -> None:
    """No pass will read one."""
    for limits in (dataclasses.replace(LIMITS, caches=False), dataclasses.replace(LIMITS, length=BLOCK + 2)):
        engine = FakeCache()
        assert await self_test(Passes(engine), limits, alone) == Verdict(held=True)
        assert len(engine.seen) == 3


async def test_rows_that_depend_on_what_follows_fail() -> None:
    """As with one quantisation scale for all tokens of a step."""
    engine = FakeCache()
    engine.looks_ahead = True
    verdict = await self_test(Passes(engine), LIMITS, alone)
    assert verdict == Verdict(
        held=False, reason="the rows of a pass that computes everything depend on the tokens after them"
    )


async def test_rows_that_do_not_repeat_fail() -> None:
    """As with atomic additions."""
    engine = FakeCache()
    engine.repeats = False
    verdict = await self_test(Passes(engine), LIMITS, alone)
    assert verdict == Verdict(held=False, reason="a pass that computes everything does not repeat")


async def test_a_chain_that_depends_on_what_follows_fails() -> None:
    """Also where passes that compute everything are sound."""
    engine = FakeCache()

    def look_ahead_when_short(ids: list[int]) -> None:
        engine.looks_ahead = len(ids) == 2 * BLOCK

    engine.during = look_ahead_when_short
    verdict = await self_test(Passes(engine), LIMITS, alone)
    assert verdict.held is False
    assert verdict.reason == "the rows of a pass that reads a block of its chain depend on the tokens after them"


async def test_an_engine_that_cannot_be_read_fails() -> None:
    """With the reason of the pass."""
    engine = FakeCache()
    engine.forgets_to_count = True
    verdict = await self_test(Passes(engine), LIMITS, alone)
    assert verdict.held is False
    assert "does not tell how many" in verdict.reason


async def test_a_cache_that_nobody_can_read_fails() -> None:
    """Such as one of a model with a sliding window."""
    engine = FakeCache()
    engine.during = lambda _: engine.forget()
    verdict = await self_test(Passes(engine), LIMITS, alone)
    assert verdict.held is False
    assert "0 of 8 tokens instead of 4" in verdict.reason


async def test_a_chain_that_others_may_have_evicted_says_nothing() -> None:
    """It is open whether the engine can read it; a reason of its own still fails it."""
    engine = FakeCache()
    engine.during = lambda _: engine.forget()
    verdict = await self_test(Passes(engine), LIMITS, lambda: False)
    assert verdict.held is None
    assert "0 of 8 tokens instead of 4" in verdict.reason
    engine.looks_ahead = True
    assert (await self_test(Passes(engine), LIMITS, lambda: False)).held is False


async def test_company_is_asked_for_when_the_chain_has_failed() -> None:
    """Others may come while the test runs."""
    engine, alone_so_far = FakeCache(), True

    def evict(ids: list[int]) -> None:
        nonlocal alone_so_far
        alone_so_far = len(ids) > 2 * BLOCK
        engine.forget()

    engine.during = evict
    assert (await self_test(Passes(engine), LIMITS, lambda: alone_so_far)).held is None
