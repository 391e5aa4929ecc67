"""What an engine must show once in its life before its passes decide anything: rows that repeat.

Seven short passes over fixed token ids. Rows before a cut must not depend on what follows it, bit by bit, at the same
length, and a pass must repeat; both for a pass that computes everything and for one that reads a block of a chain.
Quantisation with one scale for a whole step, kernels that are chosen by what the tokens are, or layers that look ahead
break that, and no flag of vLLM tells.

A verdict is for the engine's life, so only what the engine itself did is one: a chain that misread while others ran,
who may have evicted its blocks, leaves the question open, and the next request puts it again.
"""

import hashlib
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from app.engine.chain import ChainMisread, Chains, ChainWanted
from app.engine.model import Limits
from app.engine.passes import Outcome, Passes
from app.errors import DeterminismUnavailable

_LONGEST: Final = 192
"""Tokens of a pass that computes everything."""

_MOST_LOGPROBS: Final = 8


@dataclass(frozen=True, slots=True)
class Verdict:
    """``held`` is None while no test came to an end; ``reason`` says what failed."""

    held: bool | None = None
    reason: str = ""


async def self_test(passes: Passes, limits: Limits, alone: Callable[[], bool]) -> Verdict:
    """Make the test. An engine that cannot even be read fails it.

    ``alone`` says whether nobody else has run on the engine since the test began; it is asked where that matters.
    """
    try:
        reason = await _computed(passes, limits) or await _chained(passes, limits)
    except ChainMisread as exc:
        return Verdict(held=False if alone() else None, reason=exc.message)
    except DeterminismUnavailable as exc:
        reason = exc.message
    return Verdict(held=not reason, reason=reason)


async def _computed(passes: Passes, limits: Limits) -> str:
    total = min(_LONGEST, limits.length - 1)
    cut = total // 3
    k, salt = min(_MOST_LOGPROBS, limits.logprobs), secrets.token_hex(16)

    async def run(ids: list[int]) -> Outcome:
        return await passes.over(ids, salt=salt, reads=False, first=1, k=k)

    ids = _tokens(total, limits.vocabulary, "first")
    first, other, again = await run(ids), await run(_other(ids, cut, limits)), await run(ids)
    if first.cached or other.cached or again.cached:
        return "a pass that must compute everything read the prefix cache"
    return _differing("a pass that computes everything", first, other, again, cut)


async def _chained(passes: Passes, limits: Limits) -> str:
    """The same for a pass that reads one block; nothing where there is no cache, or no room for two blocks."""
    block = limits.block
    total = min(2 * block, limits.length - 1)
    if not limits.caches or total <= block + 1:
        return ""
    chains, salt, k = Chains(), secrets.token_hex(16), min(_MOST_LOGPROBS, limits.logprobs)

    async def run(ids: list[int]) -> Outcome:
        wanted = ChainWanted(ids, salt, cached=block, prefix=block, block=block, first=block + 1, k=k)
        return await chains.score(wanted, passes)

    ids = _tokens(total, limits.vocabulary, "second")
    cut = block + (total - block) // 3
    first, other, again = await run(ids), await run(_other(ids, cut, limits)), await run(ids)
    return _differing("a pass that reads a block of its chain", first, other, again, cut - block)


def _differing(which: str, first: Outcome, other: Outcome, again: Outcome, same: int) -> str:
    """Why the three do not fit: ``first`` and ``other`` had the same tokens before the last of the ``same`` rows."""
    if first.rows != again.rows:
        return f"{which} does not repeat"
    if first.rows[:same] != other.rows[:same]:
        return f"the rows of {which} depend on the tokens after them"
    return ""


def _other(ids: list[int], cut: int, limits: Limits) -> list[int]:
    return ids[:cut] + _tokens(len(ids) - cut, limits.vocabulary, "other")


def _tokens(count: int, vocabulary: int, name: str) -> list[int]:
    """Token ids that look random and are always the same."""
    digests = (hashlib.sha256(f"{name} {number}".encode()).digest() for number in range(count))
    return [int.from_bytes(digest[:8], "big") % vocabulary for digest in digests]
