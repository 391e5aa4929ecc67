"""The same layer run after run on the same ranks: what is added as it arrives does not repeat, a fixed order does."""

import math
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from app.lab.allreduce_sums import Layer, in_arrival_order, in_fixed_tree, in_ring, partial_sums
from app.lab.demonstration import Sheet
from app.lab.part import Part
from app.lab.precision import Array

ARRIVAL: Final = "order of arrival"
TREE: Final = "fixed tree"

_FEW: Final = (2, 3, 4)
_METHODS: Final[dict[str, Callable[[Array, Sequence[int]], Array]]] = {
    ARRIVAL: in_arrival_order,
    "ring": lambda partials, _arrivals: in_ring(partials),
    TREE: in_fixed_tree,
}


class Repeats(NamedTuple):
    """What the runs of one method gave.

    ``elements`` are those whose value is not the same in all runs, ``apart`` is the largest spread of one of them,
    ``error`` the largest deviation from float64 in any run.
    """

    name: str
    method: str
    ranks: int
    distinct: int
    elements: int
    apart: float
    error: float


def repeats(name: str, layer: Layer, ranks: int, arrivals: Sequence[Sequence[int]]) -> list[Repeats]:
    """Every method in every run; a run is an order in which the ranks arrive."""
    partials, exact = partial_sums(layer, ranks), layer.exact()
    found = []
    for method, add in _METHODS.items():
        results = [add(partials, order) for order in arrivals]
        wide = np.stack(results).astype(np.float64)
        spread = wide.max(axis=0) - wide.min(axis=0)
        found.append(
            Repeats(
                name,
                method,
                ranks,
                len({result.tobytes() for result in results}),
                int(np.count_nonzero(spread)),
                float(spread.max()),
                float(np.max(np.abs(wide - exact))),
            )
        )
    return found


def run_by_run(layers: dict[str, Layer], ranks: int, runs: int, random: np.random.Generator) -> Part:
    """The layer of each format on ``ranks`` ranks, and on a few, each time with ``runs`` orders of arrival."""
    found: dict[int, list[Repeats]] = {}
    for count in sorted({*_FEW, ranks}):
        arrivals = [random.permutation(count).tolist() for _ in range(runs)]
        found[count] = [one for name, layer in layers.items() for one in repeats(name, layer, count, arrivals)]
    (size,) = {len(layer.exact()) for layer in layers.values()}
    return Part(
        (_sheet(found[ranks], runs, size), _by_ranks_sheet(found, runs)),
        tuple(_sentence(name, found, ranks, runs) for name in layers),
        {"repeats": [_plain(one, runs) for many in found.values() for one in many]},
    )


def orders_that_can_differ(ranks: int) -> int:
    """All orders of arrival, without those that only swap the first two: a + b is b + a."""
    return math.factorial(ranks) // 2


def _sheet(repeated: list[Repeats], runs: int, size: int) -> Sheet:
    cells = tuple(
        (
            one.name,
            one.method,
            f"{one.distinct} in {runs} runs",
            f"{one.elements} of {size}",
            f"{one.apart:.3g}",
            f"{one.error:.3g}",
        )
        for one in repeated
    )
    columns = ("format", "added in", "distinct results", "elements that vary", "by up to", "largest error")
    return Sheet(f"One layer on {repeated[0].ranks} ranks, which arrive in another order in each run", columns, cells)


def _by_ranks_sheet(found: dict[int, list[Repeats]], runs: int) -> Sheet:
    orders = ("any", "orders that can differ", *(f"{orders_that_can_differ(ranks):.6g}" for ranks in found))
    cells = tuple(
        (many[0].name, many[0].method, *(str(one.distinct) for one in many))
        for many in zip(*found.values(), strict=True)
    )
    columns = ("format", "added in", *(f"{ranks} ranks" for ranks in found))
    return Sheet(f"Distinct results of {runs} runs, by the number of ranks", columns, (orders, *cells))


def _sentence(name: str, found: dict[int, list[Repeats]], ranks: int, runs: int) -> str:
    own = {one.method: one for one in found[ranks] if one.name == name}
    arrival, tree = own[ARRIVAL], own[TREE]
    fixed = f"the fixed tree gave {tree.distinct}"
    if arrival.distinct == 1:
        return f"{name}: {runs} runs on {ranks} ranks gave one result in order of arrival too; {fixed}."
    return (
        f"{name}: {runs} runs on {ranks} ranks gave {arrival.distinct} distinct results in order of arrival, with "
        f"{arrival.elements} elements that vary, by up to {arrival.apart:.3g}; {fixed}."
    )


def _plain(one: Repeats, runs: int) -> dict[str, Any]:
    return {
        "format": one.name,
        "method": one.method,
        "ranks": one.ranks,
        "runs": runs,
        "distinct": one.distinct,
        "elements_that_vary": one.elements,
        "largest_difference": one.apart,
        "largest_error": one.error,
    }
