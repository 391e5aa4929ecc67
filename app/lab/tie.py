"""``reprise lab tie``: two logits closer together than the rounding error, and the argmax that flips."""

import argparse
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from app.determinism.statistics import clopper_pearson_upper, rate_text
from app.lab.demonstration import Demonstration, Result, Sheet
from app.lab.tie_margins import Flips, Margins, Ties, answers_with_a_flip, expected_flip_share, measure
from app.lab.tie_pair import Pair, pairs
from app.probe.arguments import integer, number

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_EXPLANATION: Final = """
Greedy decoding takes the token with the largest logit. Where the two largest are closer together than the rounding
error of the computation, whatever moves the last bits (the batch, the cache, another kernel) decides which of them it
is (layer L4). One flipped token is enough: every later token is conditioned on it.

Below, noise first meets two single logits, in formats of different precision. Then it meets rows of random logits over
a whole vocabulary: how far apart the two largest are, how often noise of a given size exchanges them, and how often
bfloat16 makes them exactly equal, so that the lowest index wins whatever the exact values were. The random logits are
normal; those of a model are often further apart, and how far on yours is what the gateway measures at every fork.
"""

_NOISES: Final = (1e-7, 1e-5, 1e-3, 1e-2, 0.0625, 0.125)
"""The last two are the spacing of bfloat16 from 8 to 16 and from 16 to 32, where largest logits lie."""

_SAID: Final = (0.001, 0.01, 0.0625)
_ANSWER_TOKENS: Final = 1000
_NEARLY_ALL: Final = 99.9


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--noise",
        type=number(1e-9, 1.0),
        default=1e-7,
        metavar="X",
        help="the disturbance of the two single logits; the rows meet it too (default %(default)g)",
    )
    parser.add_argument(
        "--vocabulary",
        type=integer(2, 262_144),
        default=32_000,
        metavar="N",
        help="logits per row (default %(default)s)",
    )
    parser.add_argument(
        "--rows",
        type=integer(10, 20_000),
        default=2000,
        metavar="N",
        help="rows of logits, one per token decided (default %(default)s)",
    )
    parser.add_argument(
        "--scale",
        type=number(0.01, 100.0),
        default=3.0,
        metavar="X",
        help="standard deviation of the logits (default %(default)g)",
    )


def _run(options: argparse.Namespace) -> Result:
    noises = sorted({*_NOISES, options.noise})
    random = np.random.default_rng(options.seed)
    seen = measure(random, options.rows, options.vocabulary, options.scale, noises)
    two = pairs(options.noise)
    return Result(
        sheets=(_pair_sheet(two, options.noise), _flip_sheet(seen), _tie_sheet(seen)),
        findings=tuple(_findings(two, seen, options)),
        data=_data(two, seen),
        draw=lambda figure: _draw(figure, seen),
    )


def _pair_sheet(two: tuple[Pair, ...], noise: float) -> Sheet:
    columns = ("format", "first logit", "step there", "second, before", "second, after", "argmax")
    rows = tuple(
        (
            pair.format,
            f"{pair.level:g}",
            f"{pair.step:.3g}",
            f"{pair.second:.10g}",
            f"{pair.disturbed:.10g}",
            f"{pair.before} -> {pair.after}" if pair.flipped else f"{pair.after}, stays",
        )
        for pair in two
    )
    return Sheet(f"Two logits {noise / 2:g} apart, and noise of {noise:g} on the second", columns, rows)


def _flip_sheet(seen: Margins) -> Sheet:
    columns = ("noise up to", "margin in reach", "flips, float32 (95 %)", "flips, bfloat16 (95 %)", "expected share")
    rows = tuple(_flip_row(flips, seen) for flips in seen.flips)
    return Sheet(f"Noise on every logit of {seen.rows:,} rows: rows whose argmax flips", columns, rows)


def _flip_row(flips: Flips, seen: Margins) -> tuple[str, ...]:
    expected = expected_flip_share(flips.noise, seen.mean)
    return (
        f"{flips.noise:g}",
        f"{flips.in_reach} of {seen.rows}",
        _rate(flips.float32, seen.rows),
        _rate(flips.bfloat16, seen.rows),
        f"{expected:.2g}, one of {float(f'{1 / expected:.2g}'):,.0f}",
    )


def _tie_sheet(seen: Margins) -> Sheet:
    columns = ("format", "step at the largest", "largest two equal (95 %)", "argmax moved by rounding (95 %)")
    rows = tuple(
        (ties.format, f"{ties.step:.3g}", _rate(ties.equal, seen.rows), _rate(ties.moved, seen.rows))
        for ties in seen.ties
    )
    return Sheet(f"The same rows, rounded (the largest logit is {seen.largest_mean:.3g} on average)", columns, rows)


def _rate(count: int, rows: int) -> str:
    """As `rate_text`; the column names the confidence."""
    return rate_text(count, rows).removesuffix(" (95 %)")


def _findings(two: tuple[Pair, ...], seen: Margins, options: argparse.Namespace) -> list[str]:
    margin = (
        f"Over {options.vocabulary:,} tokens the two largest logits are {seen.mean:.2g} apart on average; in "
        f"{100 * seen.share_below(_NOISES[-1]):.2g} % of the rows it is less than {_NOISES[-1]:g}."
    )
    flips = (_flips_said(flips, seen) for flips in seen.flips if flips.noise in _SAID)
    return [_pair_said(two, options.noise), margin, *flips, *_ties_said(seen)]


def _pair_said(two: tuple[Pair, ...], noise: float) -> str:
    flipped = [f"{pair.format} at {pair.level:g}" for pair in two if pair.flipped]
    rest = "; in the others a step of the format is too large for it" if len(flipped) < len(two) else ""
    return (
        f"Noise of {noise:g} exchanges two logits {noise / 2:g} apart in {len(flipped)} of {len(two)} cases "
        f"({', '.join(flipped)}){rest}."
    )


def _flips_said(flips: Flips, seen: Margins) -> str:
    share = expected_flip_share(flips.noise, seen.mean)
    answers = 100 * answers_with_a_flip(share, _ANSWER_TOKENS)
    of_answers = f"{answers:.2g} %" if answers < _NEARLY_ALL else f"more than {_NEARLY_ALL:g} %"
    return (
        f"Noise of up to {flips.noise:g} flips {rate_text(flips.float32, seen.rows)}. By the margins "
        f"{100 * share:.2g} % are expected; at that, {of_answers} of all answers of {_ANSWER_TOKENS:,} tokens have a "
        "flip in them."
    )


def _ties_said(seen: Margins) -> list[str]:
    coarse, fine = seen.ties[-1], seen.ties[0]
    said = (
        f"Rounded to {coarse.format}, the two largest are exactly equal in {rate_text(coarse.equal, seen.rows)}; in "
        f"{coarse.moved} rows the winner, the lowest index, is not the token that had the largest logit."
    )
    lost = [flips.noise for flips in seen.flips if flips.noise < fine.step / 2]
    if not lost:
        return [said]
    away = (
        f"The step of {fine.format} at {seen.largest_mean:.3g} is {fine.step:.2g}, so noise of {max(lost):g} is mostly "
        "rounded away there; the share expected of it holds for exact sums."
    )
    return [said, away]


def _data(two: tuple[Pair, ...], seen: Margins) -> dict[str, Any]:
    return {
        "pairs": [pair._asdict() | {"flipped": pair.flipped} for pair in two],
        "rows": seen.rows,
        "margin_mean_logits": seen.mean,
        "margin_quantiles_logits": {f"{q:g}": float(np.quantile(seen.margins, q)) for q in (0.01, 0.1, 0.5, 0.9)},
        "largest_logit_mean": seen.largest_mean,
        "flips": [_flips_data(flips, seen) for flips in seen.flips],
        "ties": [_ties_data(ties, seen) for ties in seen.ties],
    }


def _flips_data(flips: Flips, seen: Margins) -> dict[str, Any]:
    return {
        "noise_logits": flips.noise,
        "rows_in_reach": flips.in_reach,
        "rows_flipped_float32": flips.float32,
        "rows_flipped_bfloat16": flips.bfloat16,
        "share_below_float32": clopper_pearson_upper(flips.float32, seen.rows),
        "share_expected": expected_flip_share(flips.noise, seen.mean),
    }


def _ties_data(ties: Ties, seen: Margins) -> dict[str, Any]:
    return {
        "format": ties.format,
        "step_logits": ties.step,
        "rows_equal": ties.equal,
        "rows_moved": ties.moved,
        "share_equal": ties.equal / seen.rows,
    }


def _draw(figure: "Figure", seen: Margins) -> None:
    left, right = figure.subplots(1, 2)
    shares = np.arange(1, seen.rows + 1) / seen.rows
    left.plot(seen.margins, shares, color="black", label="measured")
    grid = np.geomspace(max(float(seen.margins[0]), 1e-9), float(seen.margins[-1]), 100)
    left.plot(grid, -np.expm1(-grid / seen.mean), "--", color="0.5", label="exponential, same mean")
    left.axvline(seen.ties[-1].step, linestyle=":", color="black", label="one step of bfloat16")
    left.set(xscale="log", yscale="log", xlabel="margin between the two largest (logits)", ylabel="share of rows below")
    left.set_title("How close the two largest are")
    left.legend()
    noises = np.array([flips.noise for flips in seen.flips])
    right.plot(noises, [expected_flip_share(noise, seen.mean) for noise in noises], "--", color="0.5", label="expected")
    for style, name in (("o", "float32"), ("x", "bfloat16")):
        counts = np.array([getattr(flips, name) for flips in seen.flips])
        right.plot(noises[counts > 0], counts[counts > 0] / seen.rows, style, color="black", mfc="none", label=name)
    none = noises[[flips.float32 == 0 for flips in seen.flips]]
    bound = clopper_pearson_upper(0, seen.rows)
    right.plot(none, np.full(len(none), bound), "v", color="0.5", label="none seen in float32: below this (95 %)")
    right.set(xscale="log", yscale="log", xlabel="noise up to (logits)", ylabel="share of rows whose argmax flips")
    right.set_title("How often noise exchanges them")
    right.legend(fontsize="small")


DEMONSTRATION: Final = Demonstration(explanation=_EXPLANATION, run=_run, add_arguments=_add_arguments)
