"""Whether two outputs of one cohort agree, and where they fork.

The verdict is that of the digests, so it does not depend on what else an answer happened to carry. The fork is placed
by the best evidence that both sides have: exact token ids, else the token texts from logprobs, else characters only;
and where one side is known by its block digests alone, by the first block that differs. A fork is counted from 0: it
is the number of units that both outputs share. Where several choices differ, the earliest fork is reported.

Two outputs are comparable when both are complete. An answer that was cut short says nothing about the rest of it.

What a margin tells: logits in bfloat16 between 16 and 32 lie 0.125 apart, and each of the two may be rounded by a step,
so up to two steps (`TIE_NATS`) a flip is what rounding does. Far beyond that (`NEAR_NATS`) it is not, and the weights,
the template or the seed are the suspects.
"""

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from operator import attrgetter
from typing import Final

from app.determinism.output import BLOCK_DIGEST_BYTES, Blocks, Choice, Output


class Verdict(StrEnum):
    """What a comparison says."""

    MATCH = "match"
    DIVERGED = "diverged"
    INCOMPARABLE = "incomparable"


TIE_NATS: Final = 0.25
NEAR_NATS: Final = 1.0


class Closeness(StrEnum):
    """How close the two likeliest tokens were where two outputs fork."""

    TIE = "tie"
    NEAR = "near"
    CLEAR = "clear"
    UNKNOWN = "unknown"

    @classmethod
    def of(cls, margin: float | None) -> "Closeness":
        """That of a margin in nats."""
        if margin is None:
            return cls.UNKNOWN
        if margin <= TIE_NATS:
            return cls.TIE
        return cls.NEAR if margin <= NEAR_NATS else cls.CLEAR


@dataclass(frozen=True, slots=True)
class Comparison:
    """A verdict with its evidence.

    ``fork_tokens`` and ``fork_characters`` are shared lengths, None where unknown or where nothing forked. ``shared``
    is the part of the longer text that both have in common before the fork, 0 to 1, averaged over the choices.
    ``margin`` is the distance in nats between the two likeliest tokens at the fork, the larger of the two sides', and
    ``logprob_delta`` the largest difference in nats between the two sides' logprobs of a token that they share; both
    are None where logprobs do not say, and the margin where the fork's token is not known. Whether the likeliest token
    was the one to be taken is not looked at: see `app.determinism.sampling.takes_likeliest`.
    """

    verdict: Verdict
    fork_tokens: int | None = None
    fork_characters: int | None = None
    shared: float | None = None
    margin: float | None = None
    logprob_delta: float | None = None


@dataclass(frozen=True, slots=True)
class Bracket:
    """A fork known to lie in ``start <= fork < stop``, counted in ``unit`` ("tokens" or "characters")."""

    unit: str
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class _Fork:
    tokens: int | None
    characters: int
    shared: float
    margin: float | None


def compare(reference: Output, candidate: Output) -> Comparison:
    """The verdict on ``candidate``, with the fork where they diverged."""
    if not (reference.complete and candidate.complete):
        return Comparison(Verdict.INCOMPARABLE)
    if reference.digest == candidate.digest:
        return Comparison(Verdict.MATCH, shared=1.0, logprob_delta=_logprob_delta(reference, candidate))
    if [choice.position for choice in reference.choices] != [choice.position for choice in candidate.choices]:
        return Comparison(Verdict.DIVERGED)
    pairs = list(zip(reference.choices, candidate.choices, strict=True))
    forks = [_fork(left, right) for left, right in pairs if _readable(left) != _readable(right)]
    # One unknown token position could be the earliest, so the earliest is known only when all are.
    known = all(fork.tokens is not None for fork in forks)
    earliest = min(forks, key=attrgetter("tokens", "characters")) if known else None
    return Comparison(
        Verdict.DIVERGED,
        fork_tokens=None if earliest is None else earliest.tokens,
        fork_characters=min(fork.characters for fork in forks),
        shared=(sum(fork.shared for fork in forks) + len(pairs) - len(forks)) / len(pairs),
        margin=None if earliest is None else earliest.margin,
        logprob_delta=_logprob_delta(reference, candidate),
    )


def bracket(reference: Blocks, candidate: Blocks) -> Bracket | None:
    """Where the fork lies when only block digests are known; None when the blocks do not differ or cannot be compared.

    An output that ends on a block's edge where the other goes on forks at that edge, the start of the bracket.
    """
    if reference.unit != candidate.unit or len(reference.choices) != len(candidate.choices):
        return None
    starts = []
    for left, right in zip(reference.choices, candidate.choices, strict=True):
        if left == right:
            continue
        starts.append(first_difference(left, right) // BLOCK_DIGEST_BYTES)
    if not starts:
        return None
    return Bracket(reference.unit, min(starts) * reference.size, (min(starts) + 1) * reference.size)


def first_difference(left: Sequence[object], right: Sequence[object]) -> int:
    """How many leading items two sequences share; where one is the start of the other, that is its length.

    Halves the range and compares slices, which the interpreter does in C, so a long text costs no loop per item.
    """
    low, high = 0, min(len(left), len(right))
    if left[:high] == right[:high]:
        return high
    while high - low > 1:
        middle = (low + high) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle
    return low


def _fork(reference: Choice, candidate: Choice) -> _Fork:
    left, right = reference.flow, candidate.flow
    characters = first_difference(left, right)
    longer = max(len(left), len(right))
    tokens = _token_fork(reference, candidate)
    if tokens is None:
        # One side alone may know its tokens, a shadow against its client's answer for one: it tells whose token it was.
        known = [_token_at(side, characters) for side in (reference, candidate)]
        tokens = next((place for place in known if place is not None), None)
    margins = [side for side in (_margin_at(reference, tokens), _margin_at(candidate, tokens)) if side is not None]
    return _Fork(tokens, characters, characters / longer if longer else 1.0, max(margins, default=None))


def _token_at(choice: Choice, characters: int) -> int | None:
    """How many whole tokens lie in the first characters; None where the tokens do not spell the text."""
    if choice.tokens is None or choice.flow != choice.text or not "".join(choice.tokens).startswith(choice.text):
        return None
    end = 0
    for place, token in enumerate(choice.tokens):
        end += len(token)
        if end > characters:
            return place
    return len(choice.tokens)


def _margin_at(choice: Choice, token: int | None) -> float | None:
    if token is None or choice.margins is None or token >= len(choice.margins) or math.isnan(choice.margins[token]):
        return None
    return choice.margins[token]


def _logprob_delta(reference: Output, candidate: Output) -> float | None:
    deltas: list[float] = []
    for left, right in zip(reference.choices, candidate.choices, strict=False):
        shared = _token_fork(left, right)
        if shared and left.logprobs is not None and right.logprobs is not None:
            pairs = map(operator.sub, left.logprobs[:shared], right.logprobs[:shared])
            deltas.append(max(map(abs, pairs), default=0.0))
    known = [delta for delta in deltas if not math.isnan(delta)]
    return max(known, default=None)


def _token_fork(reference: Choice, candidate: Choice) -> int | None:
    if reference.token_ids is not None and candidate.token_ids is not None:
        return first_difference(reference.token_ids, candidate.token_ids)
    if reference.tokens is not None and candidate.tokens is not None:
        return first_difference(reference.tokens, candidate.tokens)
    return None


def _readable(choice: Choice) -> tuple[object, ...]:
    return choice.reasoning, choice.text, choice.refusal, choice.tool_calls, choice.finish_reason
