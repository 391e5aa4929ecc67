"""What one answer of the ladder was, under which circumstances, and how far two of them are apart. Pure."""

import math
from dataclasses import dataclass
from typing import Final, NamedTuple

from app.determinism.divergence import first_difference
from app.determinism.output import Choice

DISTANCE_POWER: Final = 0.25
"""Of a difference in nats. A power between 0 and 2 makes a valid energy distance (G. J. Szekely and M. L. Rizzo,
"Energy statistics", Journal of Statistical Planning and Inference 143, 2013); one this low lets many differences in the
last bits (another kernel) weigh about as much as a few large ones (another expert), so that neither hides the other."""

_MOST: Final = 1.0
"""Nats above which a difference counts no further."""

_LEAST_AT_FORK: Final = 0.0625
"""Nats, half a step of bfloat16: where both sides saw an exact tie, something still broke it in two ways."""


class Setting(NamedTuple):
    """What was around a request, in the members that a rung changes.

    ``size`` is how many prompts the batch held, itself included; ``content`` which of several contents the neighbours
    had; ``kv`` the neighbours' length in tokens, where it was told; ``warm`` that the prefix cache could hold the
    prompt; ``replica`` which server of those that were named; ``seeded`` that the sampler's seed was pinned, or that
    nothing was sampled.
    """

    size: int = 1
    content: int = 0
    kv: int = 0
    warm: bool = False
    replica: int = 0
    seeded: bool = True


@dataclass(frozen=True, slots=True)
class Sample:
    """One answer: to which prompt (its position), under which setting, and what it was.

    ``peak`` is the co-resident peak and ``cached`` the prompt tokens that came from the prefix cache, by the server's
    word; None where it said nothing.
    """

    prompt: int
    setting: Setting
    choice: Choice
    peak: int | None = None
    cached: int | None = None


@dataclass(frozen=True, slots=True)
class Fork:
    """Where two answers to one prompt part, which tokens they took there, and the margin in nats (None unknown)."""

    prompt: int
    token: int
    taken: tuple[str, ...]
    margin: float | None


def same_tokens(one: Sample, other: Sample) -> bool:
    """Whether two answers are the same tokens (the same text, where ids are not known)."""
    left, right = _units(one.choice, other.choice)
    return left == right


def same_bits(one: Sample, other: Sample) -> bool:
    """Whether two answers are the same tokens with the same logprobs, to the last bit; without logprobs, the tokens."""
    return same_tokens(one, other) and largest_delta(one, other) in {0.0, None}


def largest_delta(one: Sample, other: Sample) -> float | None:
    """The largest difference in nats between the logprobs of a token that both share; None where that is not known."""
    return max(deltas_of(one, other), default=None)


def deltas_of(one: Sample, other: Sample) -> list[float]:
    """The differences in nats between the logprobs of the tokens that both share; empty where they are not known."""
    return _shared_deltas(one.choice, other.choice)


def distance(one: Sample, other: Sample) -> float:
    """How far two answers to one prompt are apart, 0 (equal to the last bit) to 1.

    The mean, over the tokens that both share and the one at which they part, of the difference in nats to the power of
    `DISTANCE_POWER`. What comes after a fork answers another prompt, so it does not count. At the fork the difference
    is at least the sum of both margins, since the lead changed hands. Without logprobs only equality is known.
    """
    left, right = one.choice, other.choice
    forked = not same_tokens(one, other)
    if left.logprobs is None or right.logprobs is None or not _have_tokens(left, right):
        return 1.0 if forked else 0.0
    deltas = _shared_deltas(left, right)
    if forked:
        at = shared_tokens(one, other)
        margins = [_margin(left, at), _margin(right, at)]
        known = [margin for margin in margins if margin is not None]
        deltas.append(max(sum(known), _LEAST_AT_FORK) if known else _MOST)
    return _mean(deltas)


def prefix_distance(one: Sample, other: Sample) -> float:
    """As `distance`, over the tokens that both share alone: what moved an answer before it took another token."""
    return _mean(deltas_of(one, other))


def _mean(deltas: list[float]) -> float:
    return sum(min(delta, _MOST) ** DISTANCE_POWER for delta in deltas) / len(deltas) if deltas else 0.0


def shared_tokens(one: Sample, other: Sample) -> int:
    """How many tokens (characters, where ids are not known) two answers share before they part."""
    return first_difference(*_units(one.choice, other.choice))


def fork_of(one: Sample, other: Sample) -> Fork | None:
    """Where two answers to one prompt part; None where they do not, or where their tokens are not told alike."""
    if same_tokens(one, other) or not _have_tokens(one.choice, other.choice):
        return None
    at = shared_tokens(one, other)
    margins = [margin for side in (one, other) if (margin := _margin(side.choice, at)) is not None]
    taken = sorted(str(unit) for units in _units(one.choice, other.choice) for unit in units[at : at + 1])
    return Fork(one.prompt, at, tuple(taken), max(margins, default=None))


def _have_tokens(left: Choice, right: Choice) -> bool:
    ids = left.token_ids is not None and right.token_ids is not None
    return ids or (left.tokens is not None and right.tokens is not None)


def _units(left: Choice, right: Choice) -> tuple[tuple[int | str, ...], tuple[int | str, ...]]:
    """The tokens as ids, else as texts, else the characters: the best that both sides tell."""
    if left.token_ids is not None and right.token_ids is not None:
        return tuple(left.token_ids), tuple(right.token_ids)
    if left.tokens is not None and right.tokens is not None:
        return left.tokens, right.tokens
    return tuple(left.flow), tuple(right.flow)


def _shared_deltas(left: Choice, right: Choice) -> list[float]:
    if left.logprobs is None or right.logprobs is None or not _have_tokens(left, right):
        return []
    shared = first_difference(*_units(left, right))
    pairs = zip(left.logprobs[:shared], right.logprobs[:shared], strict=False)
    return [delta for here, there in pairs if not math.isnan(delta := abs(here - there))]


def _margin(choice: Choice, token: int) -> float | None:
    if choice.margins is None or token >= len(choice.margins) or math.isnan(choice.margins[token]):
        return None
    return choice.margins[token]
