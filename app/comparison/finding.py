"""What the comparison of two runs found: the pairs, each with its verdict and what else is known of it. Pure."""

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from app.comparison.entry import Entry, Side
from app.comparison.extraction import Extraction, extract
from app.comparison.pairing import match
from app.determinism.divergence import Closeness, Comparison, Verdict, compare
from app.determinism.semantic import Embedder, semantic_similarity
from app.determinism.similarity import edit_similarity

Extracted = tuple[str, ...] | None
"""The results within an answer, one per choice; None where one of them could not be found."""


@dataclass(frozen=True, slots=True)
class Pair:
    """Two answers to one request.

    ``problem`` says why they are incomparable. ``similarity`` (edit, 0 to 1) and ``semantic`` (cosine, -1 to 1) are
    known of diverged pairs whose texts are. ``extracted`` is None where nothing was asked for or there is no text.
    """

    left: Entry
    right: Entry
    comparison: Comparison
    problem: str | None = None
    similarity: float | None = None
    semantic: float | None = None
    extracted: tuple[Extracted, Extracted] | None = None

    @property
    def diverged(self) -> bool:
        """Whether the two answers differ."""
        return self.comparison.verdict is Verdict.DIVERGED

    @property
    def scored(self) -> bool:
        """Whether a result was found on both sides."""
        return self.extracted is not None and None not in self.extracted

    @property
    def flipped(self) -> bool:
        """Whether results were found on both sides, and differ."""
        return self.extracted is not None and self.scored and self.extracted[0] != self.extracted[1]


@dataclass(frozen=True, slots=True)
class Spread:
    """The median and the least of some figures."""

    median: float
    least: float

    @classmethod
    def of(cls, figures: Iterable[float | None]) -> "Spread | None":
        """That of those that are known; None if none is."""
        known = [figure for figure in figures if figure is not None]
        return cls(statistics.median(known), min(known)) if known else None


@dataclass(frozen=True, slots=True)
class Finding:
    """The whole finding. ``rule`` is what results were extracted by, None if none were asked for.

    ``interrupted`` says that the right side is a replay that was cut short.
    """

    left: Side
    right: Side
    pairs: tuple[Pair, ...]
    only_left: tuple[Entry, ...]
    only_right: tuple[Entry, ...]
    rule: str | None = None
    semantic: bool = False
    interrupted: bool = False

    @property
    def compared(self) -> tuple[Pair, ...]:
        """Pairs with a verdict."""
        return tuple(pair for pair in self.pairs if pair.problem is None)

    @property
    def diverged(self) -> tuple[Pair, ...]:
        """Pairs that differ, the worst first: flipped results, then the least alike, then the earliest forks."""
        return tuple(sorted((pair for pair in self.pairs if pair.diverged), key=_badness))

    @property
    def incomparable(self) -> Mapping[str, int]:
        """How many pairs have no verdict, by reason."""
        return Counter(pair.problem for pair in self.pairs if pair.problem is not None)

    @property
    def requests(self) -> int:
        """Distinct requests among the pairs with a verdict."""
        return len({pair.left.key for pair in self.compared})

    @property
    def against_one(self) -> int:
        """Pairs of a request that one side has once and the other several times: they share the one answer."""
        lefts, rights = (Counter(id(entry) for entry in side) for side in self._paired)
        return sum(lefts[id(pair.left)] > 1 or rights[id(pair.right)] > 1 for pair in self.pairs)

    @property
    def left_over(self) -> tuple[int, int]:
        """Answers on the left, and on the right, without a counterpart though others to their request have one."""
        keys = {entry.key for entry in self._paired[0]}
        left, right = (sum(entry.key in keys for entry in side) for side in (self.only_left, self.only_right))
        return left, right

    @property
    def similarity(self) -> Spread | None:
        """The edit similarity of the pairs that differ."""
        return Spread.of(pair.similarity for pair in self.pairs)

    @property
    def meaning(self) -> Spread | None:
        """The semantic similarity of the pairs that differ."""
        return Spread.of(pair.semantic for pair in self.pairs)

    @property
    def fork_tokens(self) -> Spread | None:
        """Where pairs fork, in shared tokens, of those of which it is known."""
        return Spread.of(pair.comparison.fork_tokens for pair in self.pairs)

    @property
    def fork_characters(self) -> Spread | None:
        """Where pairs fork, in shared characters."""
        return Spread.of(pair.comparison.fork_characters for pair in self.pairs)

    @property
    def closeness(self) -> Mapping[Closeness, int]:
        """How many pairs fork how close a choice."""
        counted = Counter(Closeness.of(pair.comparison.margin) for pair in self.diverged)
        return {closeness: counted[closeness] for closeness in Closeness}

    @property
    def scored(self) -> int:
        """Pairs of which a result was found on both sides."""
        return sum(pair.scored for pair in self.pairs)

    @property
    def flipped(self) -> int:
        """Pairs whose results differ."""
        return sum(pair.flipped for pair in self.pairs)

    @property
    def unparsable(self) -> tuple[int, int]:
        """Pairs in which no result was found on the left, and on the right."""
        known = [pair.extracted for pair in self.pairs if pair.extracted is not None]
        return sum(left is None for left, _ in known), sum(right is None for _, right in known)

    @property
    def _paired(self) -> tuple[list[Entry], list[Entry]]:
        return [pair.left for pair in self.pairs], [pair.right for pair in self.pairs]

    @property
    def equal(self) -> bool:
        """Whether every request of both sides has its counterpart, with an equal answer."""
        paired = bool(self.pairs) and not (self.only_left or self.only_right)
        return paired and all(pair.comparison.verdict is Verdict.MATCH for pair in self.pairs)


def find(
    left: Side,
    right: Side,
    *,
    extraction: Extraction | None = None,
    rule: str | None = None,
    embedder: Embedder | None = None,
    interrupted: bool = False,
) -> Finding:
    """Compare two sides. ``rule`` is how a reader knows the ``extraction``."""
    pairs, only_left, only_right = match(left.entries, right.entries)
    return Finding(
        left,
        right,
        tuple(_judge(first, second, extraction, embedder) for first, second in pairs),
        tuple(only_left),
        tuple(only_right),
        rule=rule,
        semantic=embedder is not None,
        interrupted=interrupted,
    )


def _judge(left: Entry, right: Entry, extraction: Extraction | None, embedder: Embedder | None) -> Pair:
    if left.digest is None or right.digest is None:
        said = [(name, entry.problem) for name, entry in (("A", left), ("B", right)) if entry.digest is None]
        return Pair(left, right, Comparison(Verdict.INCOMPARABLE), "; ".join(f"{name}: {why}" for name, why in said))
    first, second = left.output, right.output
    if first is None or second is None:
        return Pair(left, right, Comparison(_verdict(left, right)))
    extracted = (extract(first, extraction), extract(second, extraction)) if extraction is not None else None
    if left.digest == right.digest:
        return Pair(left, right, Comparison(Verdict.MATCH), extracted=extracted)
    comparison = compare(first, second)
    return Pair(
        left,
        right,
        # Kept texts can be equal where the answers were not: they were cut, or redacted.
        comparison if comparison.verdict is Verdict.DIVERGED else Comparison(Verdict.DIVERGED),
        similarity=edit_similarity(first, second),
        semantic=semantic_similarity(first, second, embedder) if embedder is not None else None,
        extracted=extracted,
    )


def _verdict(left: Entry, right: Entry) -> Verdict:
    return Verdict.MATCH if left.digest == right.digest else Verdict.DIVERGED


def _badness(pair: Pair) -> tuple[bool, float, float]:
    fork = pair.comparison.fork_characters
    return not pair.flipped, 0.0 if pair.similarity is None else pair.similarity, math.inf if fork is None else fork
