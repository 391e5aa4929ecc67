"""The grid: which pass of the verifier decides which token. It is the definition of a verified answer.

Positions are absolute. The prompt holds 0 to P-1, and output token n (from 0) is at P+n. The row that decides the
token at position p is the model's distribution after the tokens before p. What a row holds depends a little on the
shape of the pass that computes it, so the shape must depend on the position alone, never on the drafter, on its speed
or on how often a window was tried. With W the window and L the model's length, two grids do that:

* ``prompt``: windows of W positions from the prompt's end on. A pass reads its min(P + (w+1)W, L-1) tokens anew.
* ``chain``: windows end at absolute multiples of W. A pass over T tokens reads the whole blocks of the first T-1 from
  the cache, into which only earlier passes of the same chain wrote them, and computes the rest: at most one block.

The chain costs a block for each pass, however long the prompt. It needs a cache, and W must divide the block size:
only then has a pass the same cached part when it is tried again, since what it wrote itself is never read by it.

A pass ends at L-1 tokens, because one more must fit. So the token at L-1, the last that an answer can have, is decided
by the row after the last token of a pass, the one from which the engine itself would sample.
"""

from dataclasses import dataclass
from enum import StrEnum


class GridKind(StrEnum):
    """How windows lie, and what a pass reads."""

    CHAIN = "chain"
    PROMPT = "prompt"


def ruling(window: int, block: int, *, prefix_caching: bool) -> GridKind:
    """The grid that rules: the chain where the verifier caches prefixes and the window divides its block."""
    chain = prefix_caching and block >= 1 and window >= 1 and block % window == 0
    return GridKind.CHAIN if chain else GridKind.PROMPT


@dataclass(frozen=True, slots=True)
class Pass:
    """One pass over ``total`` tokens, alone; its rows decide the positions ``first`` to ``last``, both included.

    ``cached`` tokens are read from the chain's blocks; None: no cache is read. ``prefix`` tokens of the prompt are
    computed by a pass of their own before everything else (0: none). Where ``last`` equals ``total``, its row is the
    one after the last token.
    """

    total: int
    cached: int | None
    prefix: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Grid:
    """The grid of one answer: ``prompt`` tokens before it, ``length`` tokens at most in all, ``block`` in the cache.

    Raises ValueError where there is no room for a token, or the window does not divide the block of a chain.
    """

    kind: GridKind
    window: int
    prompt: int
    length: int
    block: int

    def __post_init__(self) -> None:
        if self.window < 1 or self.block < 1:
            raise ValueError("a window and a block have one token at least")
        if not 1 <= self.prompt < self.length:
            raise ValueError("a prompt has one token at least and leaves room for another")
        if self.kind is GridKind.CHAIN and self.block % self.window:
            raise ValueError("the window of a chain divides its block")

    @classmethod
    def of(cls, window: int, prompt: int, length: int, block: int, *, prefix_caching: bool) -> "Grid":
        """The grid of an answer, of the kind that rules."""
        return cls(ruling(window, block, prefix_caching=prefix_caching), window, prompt, length, block)

    def deciding(self, position: int) -> Pass:
        """The pass that decides the token at a position, with all that it decides.

        Raises ValueError for a position in the prompt or beyond the model's length.
        """
        if not self.prompt <= position < self.length:
            raise ValueError(f"position {position} is not in {self.prompt} to {self.length - 1}")
        if self.kind is GridKind.CHAIN:
            return self._link(position)
        first = position - (position - self.prompt) % self.window
        end = first + self.window
        return Pass(min(end, self.length - 1), None, 0, first, min(end, self.length) - 1)

    def _link(self, position: int) -> Pass:
        end = position + -position % self.window
        total = min(end, self.length - 1)
        return Pass(
            total,
            cached=self._whole_blocks(total - 1),
            prefix=self._whole_blocks(self.prompt - 1),
            first=max(self.prompt, end - self.window + 1),
            last=total,
        )

    def _whole_blocks(self, tokens: int) -> int:
        return tokens - tokens % self.block
