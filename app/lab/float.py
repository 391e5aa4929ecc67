"""``reprise lab float``: rounding, seen bit by bit."""

import argparse
from functools import partial
from typing import Final

import numpy as np

from app.lab.demonstration import Demonstration, NotDemonstrable, Result
from app.lab.float_associativity import associativity
from app.lab.float_formats import formats
from app.lab.float_fused import fused
from app.lab.float_plot import draw
from app.lab.float_scaling import scaling
from app.lab.float_toy import toy
from app.lab.part import joined
from app.lab.precision import SUMMED, listed
from app.probe.arguments import integer, number

_FUSED: Final = 2_000  # each of them costs exact fractions

_EXPLANATION: Final = """
A floating-point number keeps a fixed number of significant bits, so nearly every operation rounds, and the rounding
depends on what was added before: (a + b) + c is not a + (b + c). A kernel that splits one sum another way, because
the batch or the KV cache has another length, adds the same numbers in another order and gets other last bits. That is
layer L2, and nothing in it is random: the same order gives the same bits every time.

The fewer bits, the coarser the steps. They double with every power of two, which the five-bit number line shows, and
two logits that fall on the same step are a tie (L4). FP8 has to be scaled into its narrow range first: where the scale
is taken from the largest value of a tensor that spans the batch, another request's token changes how yours is rounded.
A scale twice as large shifts exponents only; any other ratio moves the whole grid.

A fused multiply-add rounds once where a multiplication and an addition round twice. Which of them runs is the
compiler's choice, so another build or another card may give other last bits: layer L3.
"""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    for name in ("a", "b", "c"):
        parser.add_argument(
            f"--{name}",
            type=number(-3.4e38, 3.4e38),
            metavar="X",
            help=f"operand {name} of the sum; give all three, -1e20 as --{name}=-1e20 (default: found by search)",
        )
    parser.add_argument(
        "--dtype",
        type=listed(SUMMED),
        default=SUMMED,
        metavar="LIST",
        help=f"formats of the sums, with commas between them (default {','.join(SUMMED)})",
    )
    parser.add_argument(
        "--trials",
        type=integer(1, 200_000),
        default=20_000,
        metavar="N",
        help="random triples and values to count over; at most 2000 are fused (default %(default)s)",
    )
    parser.add_argument(
        "--value",
        type=number(-1e3, 1e3),
        default=0.3,
        metavar="X",
        help="the value that is scaled into FP8 beside several neighbours (default %(default)g)",
    )


def _run(options: argparse.Namespace) -> Result:
    random = np.random.default_rng(options.seed)
    parts = (
        associativity(options.dtype, _operands(options), options.trials, random),
        toy(),
        formats(),
        scaling(options.value, options.trials, random),
        fused(min(options.trials, _FUSED), random),
    )
    whole = joined(parts)
    return Result(whole.sheets, whole.findings, whole.data, partial(draw, whole.data))


def _operands(options: argparse.Namespace) -> tuple[float, float, float] | None:
    given = [value for value in (options.a, options.b, options.c) if value is not None]
    if not given:
        return None
    if len(given) < 3:  # noqa: PLR2004 - a, b and c
        missing = next(name for name in ("a", "b", "c") if getattr(options, name) is None)
        raise NotDemonstrable(f"--{missing} is missing: --a, --b and --c go together")
    return options.a, options.b, options.c


DEMONSTRATION: Final = Demonstration(_EXPLANATION, _run, _add_arguments)
