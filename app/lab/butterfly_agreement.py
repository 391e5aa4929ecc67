"""Two answers to each of many prompts, one of them with a flipped token: where they agree, verbatim and fuzzily."""

from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from app.determinism.output import Choice, Output
from app.determinism.similarity import edit_similarity
from app.lab.butterfly_chain import Answers, Chain, Tokens

BLOCK: Final = 16
"""Tokens over which a local edit similarity is taken."""


class Fates(NamedTuple):
    """What becomes of the prompts after the flip, as counts.

    ``in_step``: the model's contexts are equal at the end, so the answers are and stay equal. ``out_of_step``: the
    flipped answer came into a context that the plain one had at another position: the same text from there on, shifted.
    ``apart``: it never did.
    """

    in_step: int
    out_of_step: int
    apart: int


@dataclass(frozen=True, slots=True)
class Agreement:
    """The two answers of every prompt and how alike they are; shares are means over the prompts.

    ``verbatim`` has a share for every position, ``fuzzy`` the edit similarity of every whole block of 16 tokens after
    the flip. ``rest_verbatim`` and ``rest_fuzzy`` cover all that comes after the flipped token, and the two
    ``unrelated`` say the same of answers to different prompts: what agreement by chance is.
    """

    chain: Chain
    flip_at: int
    plain: Answers
    flipped: Answers
    fates: tuple[int, ...]
    verbatim: NDArray[np.float64]
    fuzzy: NDArray[np.float64]
    rest_fuzzy: float
    unrelated_verbatim: float
    unrelated_fuzzy: float

    @property
    def counts(self) -> Fates:
        """How many prompts met which fate."""
        return Fates(*(self.fates.count(number) for number in range(len(Fates._fields))))

    @property
    def rest_verbatim(self) -> float:
        """The share of the positions after the flip that have the same token."""
        return float(np.mean(self.verbatim[self.flip_at + 1 :]))

    @property
    def blocks(self) -> range:
        """The first position of every block."""
        start = self.flip_at + 1
        return range(start, start + BLOCK * len(self.fuzzy), BLOCK)


def agreement(chain: Chain, prompts: int, tokens: int, flip_at: int) -> Agreement:
    """Decode random prompts, two at least, with and without a flip, at least 16 tokens beyond it, and compare them."""
    random = np.random.default_rng(chain.seed)
    starts = random.integers(0, chain.vocabulary, (prompts, chain.order))
    plain, flipped = chain.decode(starts, tokens), chain.decode(starts, tokens, flip_at)
    rest, other = plain.tokens[:, flip_at + 1 :], flipped.tokens[:, flip_at + 1 :]
    unrelated = np.roll(rest, 1, axis=0)
    blocks = range(0, rest.shape[1] - BLOCK + 1, BLOCK)
    return Agreement(
        chain,
        flip_at,
        plain,
        flipped,
        tuple(_fates(chain, starts, plain.tokens, flipped.tokens, flip_at)),
        np.mean(plain.tokens == flipped.tokens, axis=0),
        np.array([_similarity(rest[:, at : at + BLOCK], other[:, at : at + BLOCK]) for at in blocks]),
        _similarity(rest, other),
        float(np.mean(rest == unrelated)),
        _similarity(rest, unrelated),
    )


def _similarity(left: Tokens, right: Tokens) -> float:
    values = [edit_similarity(_output(one), _output(other)) for one, other in zip(left, right, strict=True)]
    return float(np.mean([value for value in values if value is not None]))


def _output(tokens: Tokens) -> Output:
    # Without a digest: what is compared are the ids alone.
    return Output((Choice(0, token_ids=array("q", tokens.tobytes())),), digest="", complete=True)


def _fates(chain: Chain, starts: Tokens, plain: Tokens, flipped: Tokens, flip_at: int) -> Iterator[int]:
    """For every prompt its fate, as an index into `Fates`."""
    for start, one, other in zip(starts, plain, flipped, strict=True):
        left, right = _contexts(chain.order, start, one), _contexts(chain.order, start, other)
        if left[-1] == right[-1]:
            yield 0
        else:
            # Those before the flip count too: from there the flipped answer repeats what the plain one said.
            yield 1 if set(left).intersection(right[flip_at + 1 :]) else 2


def _contexts(order: int, start: Tokens, answer: Tokens) -> list[tuple[int, ...]]:
    """What the model saw before each token of an answer, and after its last."""
    text = [*start.tolist(), *answer.tolist()]
    return [tuple(text[at : at + order]) for at in range(len(answer) + 1)]
