"""Chains: whatever was evicted, broken off or asked before, a pass reads what its place in the chain says."""

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.engine.chain import ChainMisread, Chains, ChainWanted
from app.engine.passes import Passes
from tests.unit.engine.fake_passes import BLOCK, FakeCache, fake_vllm

__all__ = ["fake_vllm"]

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("fake_vllm")]

IDS = list(range(100, 100 + 6 * BLOCK))
PREFIX = 2 * BLOCK


def wanted(end: int, ids: list[int] = IDS, salt: str = "prompt", prefix: int = PREFIX) -> ChainWanted:
    """The pass to ``end`` of a prompt of a little over ``prefix`` tokens."""
    cached = (end - 1) // BLOCK * BLOCK
    return ChainWanted(ids[:end], salt, cached, prefix, BLOCK, first=cached + 1, k=2)


async def rows_of(chains: Chains, engine: FakeCache, end: int, ids: list[int] = IDS) -> tuple[object, int]:
    """The rows of a pass, and how many passes they took."""
    passes = Passes(engine)
    outcome = await chains.score(wanted(end, ids), passes)
    assert outcome.cached == (end - 1) // BLOCK * BLOCK
    return outcome.rows, passes.count


async def fresh(end: int) -> object:
    """The rows that a new engine gives."""
    return (await rows_of(Chains(), FakeCache(), end))[0]


async def test_a_chain_grows_by_one_pass_a_block() -> None:
    """The prefix alone and unread first; then each pass reads all before its block, and nothing is computed twice."""
    engine, chains = FakeCache(), Chains()
    taken = [(await rows_of(chains, engine, PREFIX + number * BLOCK))[1] for number in (1, 2, 3)]
    assert taken == [2, 1, 1]
    assert engine.seen == [(8, False, 0), (12, True, 8), (16, True, 12), (20, True, 16)]


async def test_a_chain_that_is_not_known_is_computed_before_it_is_read() -> None:
    """Another replica's chain: prefix, blocks, and the pass itself, with the rows that the first one had."""
    engine = FakeCache()
    rows, taken = await rows_of(Chains(), engine, 5 * BLOCK)
    assert taken == 4
    assert engine.seen == [(8, False, 0), (12, True, 8), (16, True, 12), (20, True, 16)]
    grown, chains = FakeCache(), Chains()
    for number in (3, 4):
        await rows_of(chains, grown, number * BLOCK)
    assert (await rows_of(chains, grown, 5 * BLOCK)) == (rows, 1)


async def test_windows_within_a_block_read_the_same() -> None:
    """A window that divides the block starts from the block's start every time, and leaves nothing in the cache."""
    engine, chains = FakeCache(), Chains()
    await rows_of(chains, engine, 3 * BLOCK)
    for end in (3 * BLOCK + 2, 3 * BLOCK + 2, 4 * BLOCK, 3 * BLOCK + 2):
        rows, taken = await rows_of(chains, engine, end)
        assert (rows, taken) == (await fresh(end), 1)


async def test_a_short_prompt_has_no_prefix() -> None:
    """Nothing can be read, so the first pass is the only one."""
    engine, passes = FakeCache(), Passes(FakeCache())
    outcome = await Chains().score(wanted(BLOCK, prefix=0), passes)
    assert (outcome.cached, passes.count) == (0, 1)
    passes = Passes(engine)
    await Chains().score(wanted(3 * BLOCK, prefix=0), passes)
    assert engine.seen == [(4, True, 0), (8, True, 4), (12, True, 8)]


async def test_a_pass_that_read_too_little_is_never_read_from() -> None:
    """It has written blocks of another shape: the chain is computed anew under another name, with the same rows."""
    engine, chains = FakeCache(), Chains()
    for number in (3, 4, 5):
        await rows_of(chains, engine, number * BLOCK)
    before = set(engine.salts)
    engine.forget(2)
    rows, taken = await rows_of(chains, engine, 6 * BLOCK)
    assert rows == await fresh(6 * BLOCK)
    assert taken == 1 + 5
    assert len(before) == 1
    assert not before & set(engine.salts[-5:])
    assert (await rows_of(chains, engine, 6 * BLOCK)) == (rows, 1)


async def test_a_pass_that_was_broken_off_is_never_read_from() -> None:
    """Nobody knows what it read: it may have read too little, as here."""
    engine, chains = FakeCache(), Chains()
    for number in (3, 4):
        await rows_of(chains, engine, number * BLOCK)
    engine.forget(1)
    engine.hold = anyio.Event()  # type: ignore[assignment]  # it has what is used of asyncio's
    with anyio.move_on_after(0.01):
        await rows_of(chains, engine, 5 * BLOCK)
    assert engine.aborted == 1
    assert engine.unfinished == 0
    engine.hold.set()
    assert await rows_of(chains, engine, 5 * BLOCK) == (await fresh(5 * BLOCK), 4)


async def test_an_engine_that_keeps_forgetting_is_unavailable() -> None:
    """After some tries, with the reason; never with rows of another shape."""
    engine, passes = FakeCache(), None
    engine.during = lambda _: engine.forget()
    passes = Passes(engine)
    with pytest.raises(ChainMisread, match="0 of 12 tokens instead of 8"):
        await Chains().score(wanted(4 * BLOCK), passes)
    assert passes.count == 3 * 2


async def test_what_is_remembered_is_bounded() -> None:
    """A chain or head that was forgotten is computed anew."""
    engine, chains = FakeCache(), Chains(most_chains=2, most_heads=100)
    for salt in ("a", "b", "a", "c"):
        await chains.score(wanted(3 * BLOCK, salt=salt), Passes(engine))
    taken = []
    for salt in ("a", "b"):
        passes = Passes(engine)
        await chains.score(wanted(3 * BLOCK, salt=salt), passes)
        taken.append(passes.count)
    assert taken == [1, 2]
    few = Chains(most_heads=1)
    assert [(await rows_of(few, engine, number * BLOCK))[1] for number in (3, 4, 5, 3)] == [2, 1, 1, 2]


async def test_what_goes_wrong_with_one_prompt_costs_no_other() -> None:
    """Short prompts have no tokens in a prefix, and may share a salt; nor are beginnings of two kinds mixed."""
    engine, chains = FakeCache(), Chains()
    others = [7, *IDS[1:]]

    async def ask(ids: list[int], prefix: int) -> tuple[object, int]:
        passes = Passes(engine)
        outcome = await chains.score(wanted(4 * BLOCK, ids, prefix=prefix), passes)
        fresh = await Chains().score(wanted(4 * BLOCK, ids, prefix=prefix), Passes(FakeCache()))
        assert outcome == fresh
        return outcome.rows, passes.count

    assert (await ask(others, 0))[1] == 4
    kept = len(engine._blocks)
    await ask(IDS, 0)
    engine.forget(keep=kept)
    assert (await ask(IDS, 0))[1] == 1 + 4
    assert (await ask(others, 0))[1] == 1
    assert (await ask(IDS, 2 * BLOCK))[1] == 3
    assert (await ask(IDS, 0))[1] == 1


async def test_requests_of_one_chain_take_turns() -> None:
    """Beside each other, neither reads what the other has written wrongly."""
    engine, chains = FakeCache(), Chains()
    for number in (3, 4):
        await rows_of(chains, engine, number * BLOCK)
    engine.forget()
    found: list[object] = []

    async def ask() -> None:
        found.append((await rows_of(chains, engine, 5 * BLOCK))[0])

    most = 0

    def look(_: list[int]) -> None:
        nonlocal most
        most = max(most, engine.unfinished)

    engine.during = look
    async with anyio.create_task_group() as group:
        for _ in range(3):
            group.start_soon(ask)
    assert most == 0
    assert found == [await fresh(5 * BLOCK)] * 3


steps = st.lists(
    st.tuples(st.integers(2 * BLOCK + 1, 6 * BLOCK), st.integers(0, 8), st.integers(0, 12), st.booleans()),
    min_size=1,
    max_size=12,
)


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps)
async def test_rows_are_a_function_of_the_tokens(
    moves: list[tuple[int, int, int, bool]],
) -> None:
    """Over wrong candidates, evictions and passes that were broken off, at any moment and in any order."""
    engine, chains = FakeCache(), Chains()
    for end, wrong, evicted, breaks in moves:
        ids = IDS[: end - wrong % end] + [7] * (wrong % end)
        if breaks:
            engine.hold = anyio.Event()  # type: ignore[assignment]  # as above
            with anyio.move_on_after(0):
                await chains.score(wanted(end, ids), Passes(engine))
            engine.hold.set()
        rows, _ = await rows_of(chains, engine, end, ids)
        assert rows == (await rows_of(Chains(), FakeCache(), end, ids))[0]
        if evicted:
            engine.forget(evicted)
