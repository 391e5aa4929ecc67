"""Tensor parallelism: each rank multiplies its share of K, and the partial results are added in some order.

Every addition between ranks rounds to the format on the wire, as a collective that adds in the format does.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from app.lab.precision import Array, rounded
from app.lab.summation import tree


class Layer(NamedTuple):
    """A row-parallel linear layer for one token: the input of shape ``(k,)`` and the weights of shape ``(k, n)``."""

    x: Array
    weights: Array

    def exact(self) -> Array:
        """The result in float64, from the same rounded input and weights; shape ``(n,)``."""
        # Not the @ of BLAS, which may itself pick another order on another machine.
        return np.asarray(np.einsum("k,kn->n", self.x.astype(np.float64), self.weights.astype(np.float64)))


def layer_of(k: int, size: int, name: str, random: np.random.Generator) -> Layer:
    """Normally distributed; the weights are scaled so that a result has variance 1."""
    x, weights = random.standard_normal(k), random.standard_normal((k, size)) / np.sqrt(k)
    return Layer(rounded(x, name), rounded(weights, name))


def partial_sums(layer: Layer, ranks: int) -> Array:
    """What each rank contributes, of shape ``(ranks, n)``: added in float32 and rounded to the format of the weights.

    K is cut into ``ranks`` neighbouring shares, as even as it goes.
    """
    shares = zip(np.array_split(layer.x, ranks), np.array_split(layer.weights, ranks), strict=True)
    sums = [np.add.reduce(x.astype(np.float32)[:, np.newaxis] * w.astype(np.float32), axis=0) for x, w in shares]
    return np.stack(sums).astype(layer.weights.dtype)


def in_arrival_order(partials: Array, arrivals: Sequence[int]) -> Array:
    """Whoever comes is added at once; ``arrivals`` are the ranks in their order of arrival."""
    total: Array = partials[arrivals[0]]
    for rank in arrivals[1:]:
        total = total + partials[rank]
    return total


def in_fixed_tree(partials: Array, arrivals: Sequence[int]) -> Array:
    """Each arrival waits in the slot of its rank, and the slots are added by pairs once all are there."""
    slots = np.empty_like(partials)
    for rank in arrivals:
        slots[rank] = partials[rank]
    return tree(np.moveaxis(slots, 0, -1))


def in_ring(partials: Array) -> Array:
    """Reduce-scatter round a ring: chunk ``c`` of the elements starts at rank ``c + 1`` and ends at rank ``c``.

    Source: P. Patarasuk and X. Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", Journal of
    Parallel and Distributed Computing 69 (2009) 117-124.
    """
    ranks = len(partials)
    chunks = np.array_split(partials, ranks, axis=1)
    sums = [
        in_arrival_order(chunk, [(number + 1 + hop) % ranks for hop in range(ranks)])
        for number, chunk in enumerate(chunks)
    ]
    return np.concatenate(sums)


def by_one_tree(layer: Layer, ranks: int) -> Array:
    """One tree over K, inside the ranks and across them; every addition rounds to the format.

    Where the shares are equal and their size is a power of two, the tree inside a rank is a branch of the whole one,
    so its result does not depend on the number of ranks. Source of the idea: arXiv 2511.17826, tree-based invariant
    kernels.
    """
    shares = zip(np.array_split(layer.x, ranks), np.array_split(layer.weights, ranks), strict=True)
    branches = [tree(np.moveaxis(x[:, np.newaxis] * w, 0, -1)) for x, w in shares]
    return tree(np.stack(branches, axis=-1))
