"""A pass: what it asks of the engine, and which of its rows it looks at."""

import math

import pytest

from app.engine.passes import Passes
from app.errors import DeterminismUnavailable
from tests.unit.engine.fake_passes import BLOCK, FakeCache, fake_vllm

__all__ = ["fake_vllm"]

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("fake_vllm")]

IDS = list(range(10, 10 + 3 * BLOCK))


@pytest.mark.parametrize("short", [False, True])
async def test_rows_of_tokens_that_were_read_are_not_looked_at(*, short: bool) -> None:
    """Both model runners: one leaves them out, the other leaves rubbish in their places."""
    engine = FakeCache(short=short)
    passes = Passes(engine)
    await passes.over(IDS, salt="s", reads=False)
    outcome = await passes.over(IDS, salt="s", reads=True, first=2 * BLOCK + 1, k=3)
    assert outcome.cached == 2 * BLOCK
    assert len(outcome.rows) == BLOCK
    assert all(len(row.ids) == len(row.logprobs) == 3 for row in outcome.rows)
    assert all(math.isfinite(value) for row in outcome.rows for value in row.logprobs)
    assert passes.count == 2


async def test_the_prompts_own_token_is_not_in_its_row() -> None:
    """A row is the same whatever token stands at its position."""
    first = await Passes(FakeCache()).over(IDS, salt=None, reads=False, first=5, k=2)
    other = await Passes(FakeCache()).over([*IDS[:5], 999, *IDS[6:]], salt=None, reads=False, first=5, k=2)
    assert first.rows[0] == other.rows[0]
    assert first.rows[1] != other.rows[1]
    assert len(first.rows) == len(IDS) - 5 + 1


async def test_rows_before_what_was_computed_are_none() -> None:
    """A pass that read more than it should gives no rows, and says how much it read."""
    passes = Passes(FakeCache())
    await passes.over(IDS, salt="s", reads=False)
    outcome = await passes.over(IDS, salt="s", reads=True, first=2 * BLOCK, k=2)
    assert (outcome.cached, outcome.rows) == (2 * BLOCK, ())


async def test_a_pass_without_rows_asks_for_none() -> None:
    """A replay needs the cache, not the numbers."""
    engine = FakeCache()
    assert (await Passes(engine).over(IDS, salt="s", reads=True)).rows == ()
    assert engine.seen == [(len(IDS), True, 0)]


async def test_minus_infinity_is_written_as_vllm_writes_it() -> None:
    """JSON has no infinity."""
    engine = FakeCache()
    engine.value = lambda value: -math.inf if value < -0.99 else value
    outcome = await Passes(engine).over(IDS, salt=None, reads=False, first=3, k=4)
    assert {row.logprobs[-1] for row in outcome.rows} == {-9999.0}


@pytest.mark.parametrize("value", [math.nan, math.inf])
async def test_what_is_no_number_is_an_error(value: float) -> None:
    """With its position; it is never the best token."""
    engine = FakeCache()
    engine.value = lambda _: value
    with pytest.raises(DeterminismUnavailable, match="no numbers for position 3"):
        await Passes(engine).over(IDS, salt=None, reads=False, first=3, k=2)


async def test_an_engine_that_does_not_count_is_unavailable() -> None:
    """Nothing would prove what a pass has read."""
    engine = FakeCache()
    engine.forgets_to_count = True
    with pytest.raises(DeterminismUnavailable, match="does not tell how many"):
        await Passes(engine).over(IDS, salt=None, reads=False, first=3, k=2)
