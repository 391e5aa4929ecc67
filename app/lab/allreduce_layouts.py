"""The same layer on other numbers of ranks: each fixed order repeats, and another number makes another order."""

from collections.abc import Callable
from itertools import combinations
from typing import Any, Final, NamedTuple

from app.lab.allreduce_sums import Layer, by_one_tree, in_fixed_tree, in_ring, partial_sums
from app.lab.demonstration import Sheet
from app.lab.part import Part
from app.lab.precision import Array, changed, distance

COMPARED: Final = (2, 4, 8)

_LAYOUTS: Final[dict[str, Callable[[Layer, int], Array]]] = {
    "ring": lambda layer, ranks: in_ring(partial_sums(layer, ranks)),
    "fixed tree": lambda layer, ranks: in_fixed_tree(partial_sums(layer, ranks), range(ranks)),
    "one tree over K": by_one_tree,
}


class Pair(NamedTuple):
    """The same layer on two numbers of ranks: elements that differ and the largest difference, by method."""

    name: str
    ranks: tuple[int, int]
    elements: dict[str, int]
    apart: dict[str, float]


def pairs(name: str, layer: Layer, ranks: tuple[int, ...]) -> list[Pair]:
    """Each two of these numbers of ranks."""
    results = {method: {count: add(layer, count) for count in ranks} for method, add in _LAYOUTS.items()}
    return [
        Pair(
            name,
            (few, many),
            {method: changed(by_count[few], by_count[many]) for method, by_count in results.items()},
            {method: distance(by_count[few], by_count[many]) for method, by_count in results.items()},
        )
        for few, many in combinations(ranks, 2)
    ]


def layout_by_layout(layers: dict[str, Layer], ranks: int) -> Part:
    """2, 4, 8 and ``ranks`` ranks, two by two."""
    compared = tuple(sorted({*COMPARED, ranks}))
    found = [pair for name, layer in layers.items() for pair in pairs(name, layer, compared)]
    (size,) = {len(layer.exact()) for layer in layers.values()}
    return Part(
        (_sheet(found, size),),
        tuple(_sentence(name, found) for name in layers),
        {"layouts": [_plain(pair) for pair in found]},
    )


def _sheet(found: list[Pair], size: int) -> Sheet:
    cells = tuple(
        (
            pair.name,
            f"{pair.ranks[0]} and {pair.ranks[1]}",
            *(_cell(pair.elements[method], pair.apart[method]) for method in _LAYOUTS),
        )
        for pair in found
    )
    title = f"The same layer on two numbers of ranks: elements of {size} that differ"
    return Sheet(title, ("format", "ranks", *_LAYOUTS), cells)


def _cell(elements: int, apart: float) -> str:
    return f"{elements} (by {apart:.2g})" if elements else "0"


def _sentence(name: str, found: list[Pair]) -> str:
    own = [pair for pair in found if pair.name == name]
    parts = (f"{sum(pair.elements[method] > 0 for pair in own)} by {method}" for method in _LAYOUTS)
    counts = ", ".join(map(str, sorted({count for pair in own for count in pair.ranks})))
    return f"{name}: of {len(own)} pairs of {counts} ranks, so many give different results: {', '.join(parts)}."


def _plain(pair: Pair) -> dict[str, Any]:
    return {
        "format": pair.name,
        "ranks": list(pair.ranks),
        "elements_that_differ": pair.elements,
        "largest_difference": pair.apart,
    }
