"""``reprise lab reduction``: one sum, many orders."""

import argparse
from collections.abc import Callable
from functools import partial
from typing import Final

import numpy as np

from app.lab.demonstration import Demonstration, NotDemonstrable, Result
from app.lab.part import joined
from app.lab.precision import SUMMED, listed
from app.lab.reduction_layers import layers
from app.lab.reduction_operators import operators
from app.lab.reduction_plot import draw
from app.lab.reduction_split_kv import split_kv
from app.lab.reduction_sums import sums
from app.probe.arguments import integer

_MOST_SIZES: Final = 4
_MOST_TOKENS: Final = 1 << 20  # of the KV cache; the longest row holds twice as many as splits times size
_MOST_PRODUCTS: Final = 1 << 23  # layers times width squared: what the stack costs

_EXPLANATION: Final = """
Every layer of a model adds long lists of numbers, and each addition rounds. In which order they are added is a choice
of the kernel: to keep all of a GPU busy, it cuts a sum into chunks when there are few rows (decode, a small batch) and
leaves it whole when there are many (prefill, a large batch). So the same request gets other last bits at another load:
layer L2. The order itself repeats, bit for bit; what does not repeat is the load that picks it.

Attention is the hard case, because its sum grows with every token. Cut into a fixed number of slices, all boundaries
move as the cache grows or as the batch leaves room for another number. Cut into slices of a fixed size, a boundary
stays where it is and closed slices keep the bits of their sum, whoever else is in the batch.

One rounding is small. A residual stack stores its state once per layer, so a sum that fell on the other side of a
rounding step in one element reaches every element a layer later. Errors below are root mean squares relative to the
state; "differ" counts elements with other bits. The first table accumulates in the format itself; the operators and
the stack accumulate in float32 and store in the format, as GPU kernels do. Split-K may store its partial sums in the
format too: PyTorch allows that for 16-bit products by default, and the difference then shows at the first layer.
"""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--size",
        type=_sizes,
        default=(256, 4096, 65_536),
        metavar="LIST",
        help=f"how many numbers to add, at most {_MOST_SIZES} sizes with commas between them (default 256,4096,65536)",
    )
    parser.add_argument(
        "--dtype",
        type=listed(SUMMED),
        default=SUMMED,
        metavar="LIST",
        help=f"formats, with commas between them; the KV cache is in the first (default {','.join(SUMMED)})",
    )
    options: tuple[tuple[str, Callable[[str], int], int, str], ...] = (
        ("layers", integer(1, 256), 32, "layers of the residual stack"),
        ("width", integer(16, 512), 256, "its hidden size, and that of the operators"),
        ("splits", integer(2, 64), 4, "the fixed number of slices; also the chunks of decode"),
        ("split-size", integer(2, 65_536), 256, "the fixed size of a slice, in tokens"),
    )
    for name, kind, default, text in options:
        parser.add_argument(f"--{name}", type=kind, default=default, metavar="N", help=f"{text} (default %(default)s)")


def _sizes(text: str) -> tuple[int, ...]:
    read = integer(8, 1 << 20)
    sizes = tuple(dict.fromkeys(read(part.strip()) for part in text.split(",")))
    if len(sizes) > _MOST_SIZES:
        raise argparse.ArgumentTypeError(f"{text!r} has more than {_MOST_SIZES} sizes")
    return sizes


def _run(options: argparse.Namespace) -> Result:
    _check(options)
    random = np.random.default_rng(options.seed)
    whole = joined(
        (
            sums(options.dtype, options.size, random),
            split_kv(options.dtype[0], options.splits, options.split_size, random),
            operators(options.dtype, options.width, options.splits, random),
            layers(options.dtype, options.layers, options.width, options.splits, random),
        )
    )
    return Result(whole.sheets, whole.findings, whole.data, partial(draw, whole.data))


def _check(options: argparse.Namespace) -> None:
    if 2 * options.splits * options.split_size > _MOST_TOKENS:
        raise NotDemonstrable(f"--splits times --split-size is more than {_MOST_TOKENS // 2} tokens")
    if options.layers * options.width**2 > _MOST_PRODUCTS:
        raise NotDemonstrable(f"--layers times the square of --width is more than {_MOST_PRODUCTS}")
    if options.width < options.splits:
        raise NotDemonstrable("--width is less than --splits: nothing is left to cut")


DEMONSTRATION: Final = Demonstration(_EXPLANATION, _run, _add_arguments)
