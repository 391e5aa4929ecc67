"""``reprise lab batch``: the kernels of this machine let the size of a batch into every row of it."""

import argparse
import importlib.util
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from app.lab.batch_libraries import (
    MATRIX_PRODUCT,
    MEAN_OF_SQUARES,
    RMS_NORM,
    numpy_name,
    numpy_operations,
    torch_name,
    torch_operations,
)
from app.lab.batch_rows import Operation, Survey, spans, survey
from app.lab.demonstration import Demonstration, NotDemonstrable, Result, Sheet
from app.probe.arguments import integer

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_EXPLANATION: Final = """
A server computes your tokens in one batch with those of others, and its kernels choose tile sizes and splits by the
shape of the whole batch. Each row of a matrix product or of RMSNorm depends on no other row, so in exact arithmetic the
size of the batch would not matter. In floating point it does: another split is another order of additions, and other
last bits (layer L2). How many others are with you is the server's load, which no request controls.

Below, the same rows go through the libraries of this machine, once alone and then as row 0 of batches of growing size.
What is compared are bits. Then the neighbours get other numbers at the same size: where that changes nothing, the shape
of the batch is to blame and not its contents, which is what tells L2 from L1. An operation without a difference is
reported as such; another library, size or number of threads may have one.
"""

_FIRST_ROWS: Final = 4
"""Rows that are row 0 in turn, of RMSNorm: whether another root of one sum survives rounding depends on the sum. A row
of the matrix product has hundreds of sums, and is the costly one: one row will do."""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--max-batch",
        type=integer(2, 512),
        default=64,
        metavar="N",
        help="the largest batch, in rows (default %(default)s)",
    )
    parser.add_argument(
        "--size",
        type=integer(8, 4096),
        default=576,
        metavar="N",
        help="numbers per row, the hidden size of a model (default %(default)s, that of SmolLM2-135M)",
    )
    parser.add_argument(
        "--columns",
        type=integer(1, 4096),
        default=192,
        metavar="N",
        help="numbers per row after the matrix product (default %(default)s, the keys of SmolLM2-135M)",
    )
    parser.add_argument(
        "--library",
        choices=("auto", "numpy", "torch"),
        default="auto",
        help="whose kernels; auto is NumPy, and PyTorch where it is installed (default %(default)s)",
    )


def _run(options: argparse.Namespace) -> Result:
    random = np.random.default_rng(options.seed)
    weights = random.standard_normal((options.size, options.columns), np.float32) / np.float32(options.size**0.5)
    firsts = random.standard_normal((_FIRST_ROWS, options.size), np.float32)
    neighbours, others = random.standard_normal((2, options.max_batch - 1, options.size), np.float32)
    names, operations = _libraries(options.library, weights)
    rows = {operation: firsts[:1] if operation.name == MATRIX_PRODUCT else firsts for operation in operations}
    return report(names, [survey(operation, rows[operation], neighbours, others) for operation in operations])


def _libraries(wanted: str, weights: Any) -> tuple[list[str], list[Operation]]:  # noqa: ANN401 - an array
    has_torch = importlib.util.find_spec("torch") is not None
    if wanted == "torch" and not has_torch:
        raise NotDemonstrable(
            "--library torch: PyTorch is not installed here; `.venv-engine/bin/reprise lab batch` has it"
        )
    names: list[str] = []
    operations: list[Operation] = []
    if wanted != "torch":
        names.append(numpy_name())
        operations += numpy_operations(weights)
    if wanted != "numpy" and has_torch:
        names.append(torch_name())
        operations += torch_operations(weights)
    return names, operations


def report(names: Sequence[str], surveys: Sequence[Survey]) -> Result:
    """What the surveys of these libraries say, as tables, sentences and data; at least one survey."""
    columns = ("library", "format", "operation", "other bits at batch", "results", "values changed", "largest change")
    return Result(
        sheets=(Sheet(f"row 0, {', '.join(names)}", columns, tuple(map(_row, surveys))),),
        findings=(*_found(surveys), *_beyond_the_sum(surveys), *_not_found(surveys), *_contents(surveys)),
        data={"libraries": list(names), "operations": [_data(one) for one in surveys]},
        draw=lambda figure: _draw(figure, surveys),
    )


def _row(one: Survey) -> tuple[str, ...]:
    of = one.operation
    changed = f"{max(one.changed)} of {one.values}"
    largest = f"{max(one.differences):.2g}" if one.sizes else "0"
    return (of.library, of.dtype, of.name, spans(one.sizes), str(one.distinct), changed, largest)


def _found(surveys: Sequence[Survey]) -> list[str]:
    return [
        f"{one.operation.label}: row 0 has other bits than alone at {len(one.sizes)} of {len(one.results)} batch sizes "
        f"({spans(one.sizes)}); up to {max(one.changed)} of {one.values} values change, by up to "
        f"{max(one.differences):.2g}."
        for one in surveys
        if one.sizes
    ]


def _not_found(surveys: Sequence[Survey]) -> list[str]:
    equal = [one.operation.label for one in surveys if not one.sizes]
    if not equal:
        return []
    return [f"None found with this library, at any batch size from 1 to {len(surveys[0].results)}: {'; '.join(equal)}."]


def _beyond_the_sum(surveys: Sequence[Survey]) -> list[str]:
    """Where RMSNorm changes and the reduction in it does not, it is no order of additions."""
    steady = {
        (one.operation.library, one.operation.dtype)
        for one in surveys
        if one.operation.name == MEAN_OF_SQUARES and not one.sizes
    }
    return [
        f"{one.operation.label}: its mean of squares has the same bits at every batch size, so what changes is how the "
        "root and the product are computed: element by element, or many at a time."
        for one in surveys
        if one.operation.name == RMS_NORM and one.sizes and (one.operation.library, one.operation.dtype) in steady
    ]


def _contents(surveys: Sequence[Survey]) -> list[str]:
    by_content = [f"{one.operation.label} at {spans(one.by_content)}" for one in surveys if one.by_content]
    if by_content:
        return [f"Other numbers in the neighbours, at the same batch size, changed row 0: {'; '.join(by_content)}."]
    if not any(one.sizes for one in surveys):
        return []
    sentence = (
        "Other numbers in the neighbours changed row 0 in no operation and at no batch size: the shape of the batch "
        "matters (L2), its contents do not (L1)."
    )
    return [sentence]


def _data(one: Survey) -> dict[str, Any]:
    return {
        "library": one.operation.library,
        "operation": one.operation.name,
        "dtype": one.operation.dtype,
        "values": one.values,
        "batch_sizes_that_differ": list(one.sizes),
        "result_by_batch_size": list(one.results),
        "largest_difference_by_batch_size": list(one.differences),
        "values_changed_by_batch_size": list(one.changed),
        "batch_sizes_where_contents_matter": list(one.by_content),
    }


def _draw(figure: "Figure", surveys: Sequence[Survey]) -> None:
    axes = figure.subplots()
    sizes = np.arange(len(surveys[0].results) + 1) + 0.5
    mesh = axes.pcolormesh(
        sizes,
        np.arange(len(surveys) + 1) - 0.5,
        np.array([one.results for one in surveys]),
        cmap="Greys",
        vmin=0,
        vmax=max(2, *(one.distinct for one in surveys)),
        edgecolors="0.85",
        linewidth=0.3,
    )
    axes.set_yticks(range(len(surveys)), [one.operation.label for one in surveys])
    axes.invert_yaxis()
    axes.set_xlabel("batch size (rows)")
    axes.set_title("The bits of row 0: white is the row alone, every other shade another result")
    bar = figure.colorbar(mesh, ax=axes, label="number of the result", boundaries=_shades(surveys))
    bar.set_ticks(list(range(max(one.distinct for one in surveys))))


def _shades(surveys: Sequence[Survey]) -> list[float]:
    return [number - 0.5 for number in range(max(one.distinct for one in surveys) + 1)]


DEMONSTRATION: Final = Demonstration(explanation=_EXPLANATION, run=_run, add_arguments=_add_arguments)
