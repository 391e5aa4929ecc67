"""Which expert computes which token of a batch, when an expert takes only so many.

Expert numbers: 0 to ``experts - 1`` are the router's, ``experts`` is the fallback, and ``DROPPED`` is none at all.
"""

import math
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

OVERFLOWS: Final = ("fallback", "next", "drop")
"""What becomes of an assignment that its expert has no room for: the fallback expert computes it; the next-best expert
with room does (the fallback where none has); nobody does, and the residual connection alone carries the token."""

DROPPED: Final = -1


class Routing(NamedTuple):
    """The expert of each token's choices, ``(tokens, top_k)``, and how many choices found their expert full."""

    assigned: NDArray[np.intp]
    overflowed: int


def capacity(tokens: int, experts: int, top_k: int, factor: float) -> int:
    """The assignments that one expert takes per batch: ``factor`` times its share if all had equally many, rounded up.

    Source: W. Fedus, B. Zoph and N. Shazeer, "Switch Transformers", JMLR 23 (2022), equation 3, there for a top-k of 1.
    """
    return math.ceil(factor * tokens * top_k / experts)


def route(ranked: NDArray[np.intp], top_k: int, room: int | None, overflow: str = OVERFLOWS[0]) -> Routing:
    """Admit the tokens in the order of the batch, each with its choices in order.

    ``ranked`` has the experts of every token from the best to the worst, ``(tokens, experts)``; ``room`` is the
    capacity per expert, None for unlimited; ``overflow`` is one of OVERFLOWS.
    """
    tokens, experts = ranked.shape
    taken = [0] * experts
    limit = tokens if room is None else room  # no token has the same expert twice
    assigned = np.full((tokens, top_k), DROPPED, np.intp)
    overflowed = 0
    for token, order in enumerate(ranked.tolist()):
        spare = order[top_k:]
        for slot, wanted in enumerate(order[:top_k]):
            expert = wanted
            if taken[wanted] >= limit:
                overflowed += 1
                expert = _instead(spare, taken, limit, overflow)
            if 0 <= expert < experts:
                taken[expert] += 1
            assigned[token, slot] = expert
    return Routing(assigned, overflowed)


def _instead(spare: list[int], taken: list[int], limit: int, overflow: str) -> int:
    """Takes what it gives out of ``spare``, so that a token's two overflows do not land on one expert."""
    if overflow == "drop":
        return DROPPED
    found = next((one for one in spare if taken[one] < limit), None) if overflow == "next" else None
    if found is None:
        return len(taken)
    spare.remove(found)
    return found
