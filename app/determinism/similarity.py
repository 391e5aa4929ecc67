"""How much of two diverged outputs is alike all the same: the edit similarity.

Verbatim agreement is the verdict; this says what kind of divergence it is. Two answers that differ in one word are not
two different answers, and prefix agreement alone cannot tell.
"""

from typing import Final

from rapidfuzz.distance import Levenshtein

from app.determinism.output import Choice, Output

LONGEST: Final = 4096
"""Tokens or characters of each side that are compared; more would hold the interpreter for milliseconds."""


def edit_similarity(left: Output, right: Output) -> float | None:
    """One minus the edit distance over the longer length, 0 to 1, averaged over the choices.

    Of token ids where both have them, else of characters, in each case of the first 4,096; None where the two have
    different choices. Source: V. I. Levenshtein, "Binary codes capable of correcting deletions, insertions, and
    reversals", Soviet Physics Doklady 10 (1966) 707-710.
    """
    pairs = list(zip(left.choices, right.choices, strict=False))
    if not pairs or len(left.choices) != len(right.choices):
        return None
    return sum(_of(*pair) for pair in pairs) / len(pairs)


def _of(left: Choice, right: Choice) -> float:
    if left.token_ids is not None and right.token_ids is not None:
        return Levenshtein.normalized_similarity(left.token_ids[:LONGEST], right.token_ids[:LONGEST])
    return Levenshtein.normalized_similarity(left.flow[:LONGEST], right.flow[:LONGEST])
