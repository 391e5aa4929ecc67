"""The same answers judged verbatim, fuzzily and by what they are about."""

from array import array
from collections.abc import Callable
from itertools import permutations
from typing import Final, NamedTuple

import numpy as np

from app.determinism.output import Choice, Output
from app.determinism.similarity import edit_similarity
from app.lab.funnel_model import TOPICS, Numbers, Tokens

ALIKE: Final = 0.8
"""From this score on a table calls two answers alike."""


class Judgement(NamedTuple):
    """One way to compare: a score from 0 to 1 for each answer against its prompt's reference.

    ``other_prompts`` is the median score of two references to different prompts, None with one prompt: what the score
    says of answers that have nothing to do with each other.
    """

    judge: str
    looks_at: str
    scores: Numbers
    other_prompts: float | None


def judge(references: Tokens, answers: Tokens) -> tuple[Judgement, ...]:
    """``references (prompts, tokens)`` and ``answers (prompts * repeats, tokens)``, prompt by prompt.

    The semantic judge is a stand-in that needs no model: the overlap of the two answers' mixtures of topics.
    """
    expected = np.repeat(references, len(answers) // len(references), axis=0)
    return tuple(
        Judgement(name, looks_at, np.array(list(map(score, expected, answers))), _unrelated(score, references))
        for name, looks_at, score in _JUDGES
    )


def _unrelated(score: Callable[[Tokens, Tokens], float], references: Tokens) -> float | None:
    scores = [score(one, other) for one, other in permutations(references, 2)]
    return float(np.median(scores)) if scores else None


def _verbatim(one: Tokens, other: Tokens) -> float:
    return float(np.array_equal(one, other))


def _fuzzy(one: Tokens, other: Tokens) -> float:
    return edit_similarity(_output(one), _output(other)) or 0.0


def _topics(one: Tokens, other: Tokens) -> float:
    """The share that two histograms have in common: the sum over the topics of the smaller share."""
    first, second = (np.bincount(tokens % TOPICS, minlength=TOPICS) / len(tokens) for tokens in (one, other))
    return float(np.minimum(first, second).sum())


def _output(tokens: Tokens) -> Output:
    return Output.of((Choice(0, token_ids=array("q", tokens.tolist())),))


_JUDGES: Final = (
    ("verbatim", "every token", _verbatim),
    ("fuzzy", "edit distance of the tokens", _fuzzy),
    ("semantic (stand-in)", "mixture of topics", _topics),
)
