"""Chains: blocks of the prefix cache that passes of one shape alone have written, so that a pass may read them.

The keys and values of a token depend, in their last bits, on the shape of the pass that computed them. A chain makes
the shape a part of its definition: the first tokens of a prompt (`ChainWanted.prefix`) come from one pass over just
them, and every further block from a pass over all tokens up to its end that reads exactly those before it. So what is
read is a function of the tokens, and neither of who came first nor of what was evicted meanwhile.

A chain is of one salt, one length of the first pass and the same first tokens, so that what goes wrong with one prompt
costs no other, and none that was begun in another way is ever read.

The engine tells how many tokens a pass read only when the pass is over, and by then a pass that read fewer has written
blocks of another shape under the same name, where later passes would find them. So each chain has a name of its own,
which nobody else can know and which salts its blocks. A pass that read another number of tokens than it should, or
that was broken off before it told, ends that name: the next one starts empty, and the chain is computed anew.
"""

import asyncio
import hashlib
import secrets
from array import array
from collections import OrderedDict
from collections.abc import AsyncIterator, Hashable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from app.engine.passes import Outcome, Passes
from app.errors import DeterminismUnavailable

ATTEMPTS: Final = 3
"""How often a chain is computed for one score. Alone, the second time succeeds; beside others, blocks may be evicted
again meanwhile."""

MOST_CHAINS: Final = 4096
MOST_HEADS: Final = 65_536
"""Remembered heads, about 200 bytes each."""


@dataclass(frozen=True, slots=True)
class ChainWanted:
    """A pass over ``ids`` that reads ``cached`` tokens, whole ``block`` s, of the chain that begins with ``prefix``."""

    ids: Sequence[int]
    salt: str
    cached: int
    prefix: int
    block: int
    first: int
    k: int


class ChainMisread(DeterminismUnavailable):
    """Every attempt at a chain read another number of tokens than its place says.

    Beside others that may be their doing: they evict blocks between any two passes. Alone it is the engine's.
    """


class _Misread(Exception):
    """A pass read another number of tokens than its place in the chain says."""


class _Chain:
    __slots__ = ("lock", "name")

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.renew()

    def renew(self) -> None:
        self.name = "reprise-chain-" + secrets.token_hex(16)


class Chains:
    """The chains of one engine. Which heads were computed only saves passes: it is the engine's count that decides."""

    def __init__(self, *, most_chains: int = MOST_CHAINS, most_heads: int = MOST_HEADS) -> None:
        self._chains: _Recent[tuple[str, int, bytes], _Chain] = _Recent(most_chains)
        self._heads: _Recent[tuple[str, int, bytes], bool] = _Recent(most_heads)

    async def score(self, wanted: ChainWanted, passes: Passes) -> Outcome:
        """The outcome of the pass, after those that the chain lacked.

        Raises ChainMisread where the engine keeps reading another number of tokens.
        """
        heads, misread = _digests(wanted.ids, wanted.block), ""
        # Where there is not even one whole block, nothing is written and nothing read.
        beginning = (wanted.salt, wanted.prefix, heads.get(max(wanted.prefix, wanted.block), b""))
        chain = self._chains.get(beginning) or _Chain()
        self._chains.keep(beginning, chain)
        # Beside others two requests may have one chain; when a pass misreads, nobody else may be reading.
        async with chain.lock:
            for _ in range(ATTEMPTS):
                try:
                    return await self._attempt(chain, wanted, heads, passes)
                except _Misread as exc:
                    misread = str(exc)
        raise ChainMisread(f"the engine does not read its prefix cache as a chain needs: {misread}")

    async def _attempt(self, chain: _Chain, wanted: ChainWanted, heads: dict[int, bytes], passes: Passes) -> Outcome:
        ids, block = wanted.ids, wanted.block
        at = self._known(chain, wanted, heads)
        if at is None and wanted.prefix:
            async with self._step(chain, wanted.prefix, heads):
                prefix = await passes.over(ids[: wanted.prefix], salt=chain.name, reads=False)
                _check(prefix, 0, wanted.prefix)
        for end in range((wanted.prefix if at is None else at) + block, wanted.cached + 1, block):
            async with self._step(chain, end, heads):
                _check(await passes.over(ids[:end], salt=chain.name, reads=True), end - block, end)
        async with self._step(chain, len(ids), heads):
            outcome = await passes.over(ids, salt=chain.name, reads=True, first=wanted.first, k=wanted.k)
            _check(outcome, wanted.cached, len(ids))
        return outcome

    def _known(self, chain: _Chain, wanted: ChainWanted, heads: dict[int, bytes]) -> int | None:
        """How many of the tokens that the pass will read are known to have been computed."""
        self._heads.get((chain.name, wanted.prefix, heads.get(wanted.prefix, b"")))  # every answer starts there again
        for end in range(wanted.cached, max(wanted.prefix, 1) - 1, -wanted.block):
            if self._heads.get((chain.name, end, heads[end])):
                return end
        return None

    @asynccontextmanager
    async def _step(self, chain: _Chain, end: int, heads: dict[int, bytes]) -> AsyncIterator[None]:
        """One pass: a name under which it went wrong, or was broken off, is not used again."""
        try:
            yield
        except BaseException:
            chain.renew()
            raise
        if end in heads:
            self._heads.keep((chain.name, end, heads[end]), True)  # noqa: FBT003 - a set's member


def _check(outcome: Outcome, expected: int, total: int) -> None:
    if outcome.cached != expected:
        raise _Misread(f"{outcome.cached} of {total} tokens instead of {expected}")


def _digests(ids: Sequence[int], block: int) -> dict[int, bytes]:
    """The digest of the first n tokens, for every n that is a whole number of blocks."""
    digest, found = hashlib.sha256(), {}
    for end in range(block, len(ids) + 1, block):
        digest.update(array("q", ids[end - block : end]).tobytes())
        found[end] = digest.copy().digest()[:16]
    return found


_K = TypeVar("_K", bound=Hashable)
_V = TypeVar("_V")


class _Recent(Generic[_K, _V]):
    """A mapping of the ``most`` keys that were used last."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._items: OrderedDict[_K, _V] = OrderedDict()

    def get(self, key: _K) -> _V | None:
        if key not in self._items:
            return None
        self._items.move_to_end(key)
        return self._items[key]

    def keep(self, key: _K, value: _V) -> None:
        self._items[key] = value
        self._items.move_to_end(key)
        if len(self._items) > self._most:
            self._items.popitem(last=False)
