"""Sums along the last axis in a stated order. Every single addition rounds to the format of the array."""

import math
from itertools import pairwise

import numpy as np

from app.lab.precision import Array


def sequential(values: Array) -> Array:
    """From left to right, as one thread would; shape ``(..., n)`` to ``(...)``."""
    # NumPy's sum() may go by pairs or in a wider format. A running sum has no choice but to round at each step.
    return np.add.accumulate(values, axis=-1)[..., -1]


def tree(values: Array) -> Array:
    """Neighbours by pairs, then the sums by pairs, until one is left; an odd one out waits for the next round."""
    while values.shape[-1] > 1:
        even = values.shape[-1] // 2 * 2
        sums = values[..., 0:even:2] + values[..., 1:even:2]
        values = np.concatenate((sums, values[..., even:]), axis=-1)
    return values[..., 0]


def partials(values: Array, edges: tuple[int, ...]) -> Array:
    """The sum of each slice between two neighbouring edges, each from left to right; shape ``(..., slices)``."""
    return np.stack([sequential(values[..., start:stop]) for start, stop in pairwise(edges)], axis=-1)


def chunked(values: Array, edges: tuple[int, ...]) -> Array:
    """Each slice from left to right, then the partial sums from left to right: split-K, and split-KV in attention."""
    return sequential(partials(values, edges))


def edges_by_number(length: int, slices: int) -> tuple[int, ...]:
    """The boundaries of at most ``slices`` slices of one size, the last one shorter: they move with the length."""
    return edges_by_size(length, math.ceil(length / slices))


def edges_by_size(length: int, size: int) -> tuple[int, ...]:
    """The boundaries of slices of ``size`` elements, the last one shorter: they stay where they are."""
    return (*range(0, length, size), length)
