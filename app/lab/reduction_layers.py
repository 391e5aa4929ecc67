"""A residual stack with one rounding per layer, run with several orders of reduction: the error layer by layer."""

from typing import Any, Final, NamedTuple

import numpy as np

from app.lab.demonstration import Sheet
from app.lab.part import Part
from app.lab.precision import Array, changed, distance, rounded
from app.lab.reduction_operators import EPSILON, Reduce, in_slices, in_stored_slices, matmul, rms_norm

_TOKENS: Final = 8
_ROWS_SHOWN: Final = 6


class Order(NamedTuple):
    """How a layer's two sums are reduced."""

    name: str
    norm: Reduce
    product: Reduce


class Gap(NamedTuple):
    """How the states of two orders differ: elements with other bits, the largest difference, and the relative one."""

    changed: int
    largest: float
    relative: float


class Layer(NamedTuple):
    """The states after a layer: the error of each order, and the gap of each to the first order.

    An error is the root mean square of the deviation from float64, relative to the root mean square of the state.
    """

    number: int
    elements: int
    errors: dict[str, float]
    gaps: dict[str, Gap]


def orders_of(name: str, splits: int) -> tuple[Order, ...]:
    """From left to right, in ``splits`` chunks, and where the format is narrower, in chunks whose sums are stored."""
    whole, cut = in_slices(1), in_slices(splits)
    orders = (Order("in order", whole, whole), Order(f"{splits} chunks", cut, cut))
    if name == "float32":
        return orders
    return (*orders, Order(f"{splits} stored chunks", cut, in_stored_slices(splits, name)))


def stack(name: str, layers: int, width: int, orders: tuple[Order, ...], random: np.random.Generator) -> list[Layer]:
    """Layer ``l`` is ``h = h + W_l norm(h)``: norm and product accumulate in float32, ``h`` is stored in the format.

    The truth runs beside it in float64, from the same rounded weights and input.
    """
    start = rounded(random.standard_normal((_TOKENS, width)), name)
    truth = start.astype(np.float64)
    states = {order.name: start for order in orders}
    found = []
    for number in range(1, layers + 1):
        weights = rounded(random.standard_normal((width, width)) / np.sqrt(width), name)
        # Not the @ of BLAS, which may itself pick another order on another machine.
        truth = truth + np.einsum("tk,nk->tn", _normed(truth), weights.astype(np.float64))
        states = {order.name: _layer(states[order.name], weights, order, name) for order in orders}
        first = states[orders[0].name]
        errors = {order: _relative(state, truth, truth) for order, state in states.items()}
        gaps = {order.name: _gap(first, states[order.name], truth) for order in orders[1:]}
        found.append(Layer(number, start.size, errors, gaps))
    return found


def layers(names: tuple[str, ...], number: int, width: int, splits: int, random: np.random.Generator) -> Part:
    """One stack per format, in three orders."""
    runs = {name: stack(name, number, width, orders_of(name, splits), random) for name in names}
    return Part(
        (_sheet(runs),),
        tuple(_sentence(name, run) for name, run in runs.items()),
        {"layers": {name: [_plain(layer) for layer in run] for name, run in runs.items()}},
    )


def _layer(state: Array, weights: Array, order: Order, name: str) -> Array:
    normed = rounded(rms_norm(state, order.norm), name)
    return rounded(state.astype(np.float32) + matmul(normed, weights, order.product), name)


def _normed(state: Array) -> Array:
    return np.asarray(state / np.sqrt(np.mean(state * state, axis=-1, keepdims=True) + float(EPSILON)))


def _gap(one: Array, other: Array, scale: Array) -> Gap:
    return Gap(changed(one, other), distance(one, other), _relative(one, other, scale))


def _relative(one: Array, other: Array, scale: Array) -> float:
    gap = one.astype(np.float64) - other.astype(np.float64)
    return float(np.sqrt(np.mean(gap * gap) / np.mean(scale * scale)))


def _sheet(runs: dict[str, list[Layer]]) -> Sheet:
    # The most orders that a format has; float32 has one less, and an empty place for it.
    widest = max((run[-1] for run in runs.values()), key=lambda layer: len(layer.errors))
    cells = []
    for name, run in runs.items():
        for layer in _shown(run):
            errors = (f"{layer.errors[order]:.3g}" if order in layer.errors else "" for order in widest.errors)
            differ = (str(layer.gaps[order].changed) if order in layer.gaps else "" for order in widest.gaps)
            cells.append((name, str(layer.number), *errors, *differ))
    columns = (
        "stored as",
        "layer",
        *(f"error {order}" for order in widest.errors),
        *(f"differ {order}" for order in widest.gaps),
    )
    title = f"A residual stack: error against float64; elements of {widest.elements} that differ from the first order"
    return Sheet(title, columns, tuple(cells))


def _shown(run: list[Layer]) -> list[Layer]:
    """The layers of a doubling row, and the last."""
    doubling = [layer for layer in run if layer.number & (layer.number - 1) == 0][:_ROWS_SHOWN]
    return doubling if run[-1] in doubling else [*doubling[: _ROWS_SHOWN - 1], run[-1]]


def _sentence(name: str, run: list[Layer]) -> str:
    last = run[-1]
    error = next(iter(last.errors.values()))
    stories = "; ".join(_story(order, run) for order in last.gaps)
    return f"{name}, {last.number} layers, at the end {100.0 * error:.2g} % from float64: {stories}."


def _story(order: str, run: list[Layer]) -> str:
    first = next((layer for layer in run if layer.gaps[order].changed), None)
    if first is None:
        return f"{order} gave the same bits throughout"
    start, end = first.gaps[order], run[-1].gaps[order]
    now = f"in {end.changed}, by up to {end.largest:.3g}" if end.changed else "in none: rounding has swallowed it again"
    return f"{order} first differ at layer {first.number}, in {start.changed} of {first.elements}, and at the end {now}"


def _plain(layer: Layer) -> dict[str, Any]:
    return {
        "number": layer.number,
        "elements": layer.elements,
        "error_relative": layer.errors,
        "differs_from_first_order": {
            order: {"elements": gap.changed, "largest": gap.largest, "relative": gap.relative}
            for order, gap in layer.gaps.items()
        },
    }
