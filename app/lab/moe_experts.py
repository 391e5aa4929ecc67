"""A small layer of experts with real weights, in which nothing but the routing can differ.

A matrix product over a whole batch may change its last bits with the batch's shape (that is L2, and another
demonstration). Here every token is computed on its own, vector times matrix, element by element in one fixed order, and
its gate scores are computed once, when its request is made. What differs between two batches is who computed it.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from app.lab.moe_routing import DROPPED

HIDDEN: Final = 32
INNER: Final = 64
VOCABULARY: Final = 256

_TOPIC: Final = 0.5
"""How much of a token's state is its request's topic: requests differ in the experts that they favour."""

Vector = NDArray[np.float32]
Matrix = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Layer:
    """Router, experts of two matrices each, and a small unembedding.

    ``gate (hidden, experts)``, ``up (experts + 1, hidden, inner)``, ``down (experts + 1, inner, hidden)``, the last
    expert being the fallback, and ``unembedding (hidden, vocabulary)``.
    """

    gate: Matrix
    up: NDArray[np.float32]
    down: NDArray[np.float32]
    unembedding: Matrix

    @classmethod
    def drawn(cls, random: np.random.Generator, experts: int) -> "Layer":
        """Normal weights, scaled so that a state of unit size gives numbers of unit size."""
        return cls(
            _normal(random, HIDDEN, experts),
            _normal(random, experts + 1, HIDDEN, INNER),
            # ReLU halves the mean square of what it passes on.
            _normal(random, experts + 1, INNER, HIDDEN) * np.float32(2**0.5),
            _normal(random, HIDDEN, VOCABULARY),
        )

    def output(self, state: Vector, experts: NDArray[np.intp], weights: Vector) -> Vector:
        """One token: its state plus the weighted sum of its experts' outputs, in the order of its choices.

        A weight belongs to the choice, whichever expert computes it in the end; a dropped choice adds nothing.
        """
        total = state
        for expert, weight in zip(experts.tolist(), weights, strict=True):
            if expert != DROPPED:
                inner = np.maximum(_product(state, self.up[expert]), np.float32(0))
                total = total + weight * _product(inner, self.down[expert])
        return total

    def token(self, output: Vector) -> int:
        """The token whose logit is largest, the lowest of equals."""
        return int(np.argmax(_product(output, self.unembedding)))


@dataclass(frozen=True, slots=True)
class Request:
    """The states of a request's tokens ``(tokens, hidden)``, and what the gate says of them.

    ``ranked (tokens, experts)`` goes from the best expert to the worst; the ``weights (tokens, top_k)`` of the chosen
    ones add up to 1.
    """

    states: Matrix
    ranked: NDArray[np.intp]
    weights: Matrix

    @classmethod
    def drawn(cls, random: np.random.Generator, layer: Layer, tokens: int, top_k: int) -> "Request":
        """Tokens around one topic, with the gate's softmax over all experts, renormalised over the best ``top_k``."""
        topic = random.standard_normal(HIDDEN)
        noise = random.standard_normal((tokens, HIDDEN))
        states = (_TOPIC * topic + (1 - _TOPIC**2) ** 0.5 * noise).astype(np.float32)
        scores = np.stack([_product(state, layer.gate) for state in states]).astype(np.float64)
        ranked = np.argsort(-scores, axis=1, kind="stable")
        best = np.take_along_axis(scores, ranked[:, :top_k], axis=1)
        # The softmax's denominator cancels out in the renormalisation.
        odds = np.exp(best - best[:, :1])
        return cls(states, ranked, (odds / odds.sum(axis=1, keepdims=True)).astype(np.float32))


def outputs(layer: Layer, request: Request, assigned: NDArray[np.intp]) -> Matrix:
    """What the layer makes of a request whose tokens went to these experts, ``(tokens, hidden)``."""
    rows = zip(request.states, assigned, request.weights, strict=True)
    return np.stack([layer.output(state, experts, weights) for state, experts, weights in rows])


def _product(vector: Vector, matrix: Matrix) -> Vector:
    # BLAS would choose a kernel; a sum over the first axis adds row after row, whatever else is in the batch.
    product: Vector = np.add.reduce(vector[:, np.newaxis] * matrix, axis=0)
    return product


def _normal(random: np.random.Generator, *shape: int) -> NDArray[np.float32]:
    return random.standard_normal(shape, np.float32) / np.float32(shape[-2] ** 0.5)
