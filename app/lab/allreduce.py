"""``reprise lab allreduce``: the same partial sums, added as they arrive or along a fixed tree."""

import argparse
from collections.abc import Callable
from functools import partial
from typing import Final

import numpy as np

from app.lab.allreduce_layouts import layout_by_layout
from app.lab.allreduce_plot import draw
from app.lab.allreduce_runs import run_by_run
from app.lab.allreduce_sums import layer_of
from app.lab.demonstration import Demonstration, Result
from app.lab.part import joined
from app.lab.precision import SUMMED, listed
from app.probe.arguments import integer

_K: Final = 512  # a power of two, so that equal shares are branches of one tree

_EXPLANATION: Final = """
With tensor parallelism every rank holds a share of a layer's weights and computes a part of each result; an all-reduce
adds the parts. Where parts are added as they arrive (atomic additions), the timing of the run decides the order, and
the same request repeats with other last bits on an idle server: layer L3. Two ranks are safe, since a + b is b + a;
from three on the order counts.

A fixed order repeats: a tree that waits for every rank, or a ring, in which each chunk of the elements starts at
another rank, but always at the same one. It is not exact either, only the same each time. And it depends on the number
of ranks, so a deployment on 2 cards and one on 8 are two postures. A single tree inside the ranks and across them does
not, as long as the shares are its branches (a power of two of ranks).

Below, one layer of random weights is really split over the ranks. Errors are against float64.
"""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    options: tuple[tuple[str, Callable[[str], int], int, str], ...] = (
        ("ranks", integer(2, 64), 8, "ranks that share the layer"),
        ("size", integer(16, 4096), 1024, "elements of its result"),
        ("runs", integer(2, 1000), 64, "runs, each with another order of arrival"),
    )
    for name, kind, default, text in options:
        parser.add_argument(f"--{name}", type=kind, default=default, metavar="N", help=f"{text} (default %(default)s)")
    parser.add_argument(
        "--dtype",
        type=listed(SUMMED),
        default=("bfloat16", "float32"),
        metavar="LIST",
        help="formats on the wire, with commas between them (default bfloat16,float32)",
    )


def _run(options: argparse.Namespace) -> Result:
    random = np.random.default_rng(options.seed)
    layers = {name: layer_of(_K, options.size, name, random) for name in options.dtype}
    whole = joined(
        (run_by_run(layers, options.ranks, options.runs, random), layout_by_layout(layers, options.ranks)),
    )
    return Result(whole.sheets, whole.findings, whole.data, partial(draw, whole.data))


DEMONSTRATION: Final = Demonstration(_EXPLANATION, _run, _add_arguments)
