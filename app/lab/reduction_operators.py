"""RMSNorm, MatMul and Attention: one reduction each, in the shape of prefill and in the shape of decode.

Sums accumulate in float32 and the result is stored in the format of the model, as kernels do.
"""

from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np

from app.lab.demonstration import Sheet
from app.lab.part import Part
from app.lab.precision import Array, changed, distance, rounded
from app.lab.summation import chunked, edges_by_number, partials, sequential

Reduce: TypeAlias = Callable[[Array], Array]
"""A sum along the last axis in some order."""

EPSILON: Final = np.float32(1e-6)

_TOKENS: Final = 64
_HEAD: Final = 32
_CACHED: Final = 512

_WORDS: Final = (
    ("RMSNorm", "the hidden size", "many rows: one block sums a row", "few rows: a row is cut", "number of rows"),
    ("MatMul", "K, the input features", "many tiles: K stays whole", "few tiles: split-K", "rows, tile sizes"),
    ("Attention", "the KV length", "many queries: KV in one pass", "one query: split-KV", "batch and KV length"),
)


class Effect(NamedTuple):
    """How the results of the two shapes differ: elements with other bits, of how many, and the largest difference."""

    operator: str
    name: str
    changed: int
    elements: int
    largest: float


def in_slices(slices: int) -> Reduce:
    """The order of a kernel that cuts the sum into so many slices; 1 is from left to right."""
    return lambda values: chunked(values, edges_by_number(values.shape[-1], slices))


def in_stored_slices(slices: int, name: str) -> Reduce:
    """As ``in_slices``, but each partial sum is rounded to the format before they are added in float32.

    PyTorch allows cuBLAS to do so with 16-bit products (``allow_bf16_reduced_precision_reduction`` is on unless it is
    switched off).
    """

    def reduce(values: Array) -> Array:
        edges = edges_by_number(values.shape[-1], slices)
        return sequential(rounded(partials(values, edges), name).astype(values.dtype))

    return reduce


def rms_norm(rows: Array, reduce: Reduce) -> Array:
    """``x / sqrt(mean(x ** 2) + epsilon)`` in float32; shape ``(..., n)`` to the same.

    Source: B. Zhang and R. Sennrich, "Root Mean Square Layer Normalization", NeurIPS 2019, without the gain.
    """
    x = rows.astype(np.float32)
    mean = reduce(x * x) / np.float32(x.shape[-1])
    return np.asarray(x / np.sqrt(mean + EPSILON)[..., np.newaxis])


def matmul(rows: Array, weights: Array, reduce: Reduce) -> Array:
    """``rows @ weights.T`` in float32; shapes ``(tokens, k)`` and ``(n, k)`` to ``(tokens, n)``."""
    return reduce(rows.astype(np.float32)[:, np.newaxis, :] * weights.astype(np.float32))


def attention(scores: Array, values: Array, reduce: Reduce) -> Array:
    """Softmax-weighted sums in float32; shapes ``(queries, cached)`` and ``(head, cached)`` to ``(queries, head)``."""
    weights = np.exp(scores.astype(np.float32) - np.max(scores.astype(np.float32), axis=-1, keepdims=True))
    above = reduce(weights[:, np.newaxis, :] * values.astype(np.float32))
    return np.asarray(above / reduce(weights)[:, np.newaxis])


class Inputs(NamedTuple):
    """What the three operators get, in the format of the model; shapes as their functions say."""

    rows: Array
    matrix: Array
    scores: Array
    values: Array

    def outputs(self, reduce: Reduce) -> dict[str, Array]:
        """The result of each operator, in float32."""
        return {
            "RMSNorm": rms_norm(self.rows, reduce),
            "MatMul": matmul(self.rows, self.matrix, reduce),
            "Attention": attention(self.scores, self.values, reduce),
        }


def operators(names: tuple[str, ...], width: int, splits: int, random: np.random.Generator) -> Part:
    """The table of operators, and for each the same inputs reduced in 1 slice (prefill) and in ``splits`` (decode)."""
    drawn = (
        random.standard_normal((_TOKENS, width)),
        random.standard_normal((width, width)) / np.sqrt(width),
        random.standard_normal((_TOKENS, _CACHED)),
        random.standard_normal((_HEAD, _CACHED)),
    )
    effects = [
        effect for name in names for effect in effects_of(Inputs(*(rounded(one, name) for one in drawn)), name, splits)
    ]
    return Part(
        (_words(), _figures(effects, splits)),
        tuple(_sentence(name, effects) for name in names),
        {"operators": [_plain(effect) for effect in effects]},
    )


def effects_of(inputs: Inputs, name: str, splits: int) -> list[Effect]:
    """What cutting each sum into ``splits`` slices changes in the results once they are stored in the format."""
    prefill, decode = inputs.outputs(in_slices(1)), inputs.outputs(in_slices(splits))
    found = [_effect(operator, name, prefill[operator], decode[operator]) for operator in prefill]
    if name != "float32":
        product = matmul(inputs.rows, inputs.matrix, in_stored_slices(splits, name))
        found.append(_effect("MatMul, 16-bit partial sums", name, prefill["MatMul"], product))
    return found


def _effect(operator: str, name: str, prefill: Array, decode: Array) -> Effect:
    one, other = rounded(prefill, name), rounded(decode, name)
    return Effect(operator, name, changed(one, other), one.size, distance(one, other))


def _words() -> Sheet:
    columns = ("operator", "reduces over", "prefill", "decode", "the split depends on")
    return Sheet("What is reduced, and what decides how it is split", columns, _WORDS)


def _figures(effects: list[Effect], splits: int) -> Sheet:
    cells = tuple((one.operator, one.name, f"{one.changed} of {one.elements}", f"{one.largest:.3g}") for one in effects)
    title = f"The same inputs in 1 slice (prefill) and in {splits} (decode), computed here"
    return Sheet(title, ("operator", "stored as", "elements with other bits", "largest difference"), cells)


def _sentence(name: str, effects: list[Effect]) -> str:
    own = [effect for effect in effects if effect.name == name]
    parts = "; ".join(f"{effect.operator} {effect.changed} of {effect.elements}" for effect in own)
    return f"{name}, elements that differ between the shapes of prefill and decode: {parts}."


def _plain(effect: Effect) -> dict[str, Any]:
    return {
        "operator": effect.operator,
        "format": effect.name,
        "elements_changed": effect.changed,
        "elements": effect.elements,
        "largest_difference": effect.largest,
    }
