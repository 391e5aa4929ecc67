"""``reprise lab funnel``: all four layers in one decoder, on and off, and what becomes of the answers."""

import argparse
from typing import Final

import numpy as np

from app.lab.demonstration import Demonstration, Result
from app.lab.funnel_decoder import ARBITER, LARGEST, LOWEST_ID, Setting, decode, effect, forks, margins_at, refer
from app.lab.funnel_judges import judge
from app.lab.funnel_layers import LAYERS, Traffic
from app.lab.funnel_model import Model
from app.lab.funnel_plot import draw
from app.lab.funnel_report import Outcome, Run, data, findings, sheets
from app.lab.precision import SUMMED, listed
from app.probe.arguments import integer

_EXPLANATION: Final = """
Between a request and its answer the four layers form a funnel. An expert that is full (L1) computes some tokens with
other weights: a large change, now and then. A kernel that splits a sum by the size of the batch (L2) and partial sums
that arrive in another order (L3) change the last bits of nearly every logit. All of that passes through one opening:
the largest logit names the token. Where the two largest are closer than the change, another token comes out (L4), and
as every later token depends on it, a change too small to see has become another text.

The simulated decoder below computes in exact arithmetic, so that the layers alone can make a difference. L1 routes each
token beside neighbours with contents of their own, L2 cuts the last product into 4, 2 or 1 slices per rank at batches
of 1, 2 and more, L3 adds four ranks in order of arrival. Each partial sum is stored in the number format. All rows of
the table meet the same traffic. L4 off means that an arbiter who knows the exact sums settles each near tie; a server
has none. Changes of the logits are measured after equal tokens, before any other one came out. The bounds of the rates
hold for repeats of these prompts.

Last, the answers with all layers on are judged verbatim, fuzzily and semantically. The semantic judge here is a
stand-in that compares topics of tokens. Likeness says what kind of divergence it is. It never makes a match of one.
"""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--layers",
        type=listed(LAYERS),
        default=LAYERS,
        metavar="LIST",
        help=f"the layers that are on, with commas between them (default {','.join(LAYERS)})",
    )
    whole = (
        ("prompts", 1, 8, 6, "different prompts"),
        ("repeats", 1, 64, 8, "repeats of each"),
        ("tokens", 1, 128, 32, "tokens per answer"),
        ("batch-max", 1, 64, 16, "the largest batch; sizes from 1 to it are equally likely"),
    )
    for name, low, high, default, text in whole:
        parser.add_argument(
            f"--{name}", type=integer(low, high), default=default, metavar="N", help=f"{text} (default %(default)s)"
        )
    parser.add_argument(
        "--dtype", choices=SUMMED, default="bfloat16", help="in which partial sums are stored (default %(default)s)"
    )


def _run(options: argparse.Namespace) -> Result:
    for_model, for_traffic, for_prompts = np.random.default_rng(options.seed).spawn(3)
    model = Model.drawn(for_model, options.tokens)
    traffic = Traffic.drawn(for_traffic, model, options.seed, options.batch_max)
    prompts = model.states_of(for_prompts, options.prompts)
    outcome = _outcome(Setting(model, traffic, prompts, options.repeats, options.tokens, options.dtype), options.layers)
    return Result(
        sheets=sheets(outcome),
        findings=tuple(findings(outcome)),
        data=data(outcome),
        draw=lambda figure: draw(outcome, figure),
    )


def _outcome(setting: Setting, chosen: tuple[str, ...]) -> Outcome:
    ties = "L4" in chosen
    rule = LARGEST if ties else ARBITER
    reference, settled = refer(setting, rule), refer(setting, ARBITER)
    causes = tuple(layer for layer in LAYERS if layer in chosen and layer != "L4")
    sets = ((), *((cause,) for cause in causes), *((causes,) if len(causes) > 1 else ()))
    runs = []
    answers = reference.answers
    for layers in sets:
        answers = decode(setting, layers, rule)
        found = forks(setting, reference, answers)
        off = forks(setting, settled, decode(setting, layers, ARBITER)) if ties else found
        margins = margins_at(setting, reference, found)
        runs.append(Run(layers, effect(setting, reference, layers), off, found, margins))
    rounding = tuple(cause for cause in causes if cause != "L1")
    lowest = forks(setting, refer(setting, LOWEST_ID), decode(setting, rounding, LOWEST_ID)) if rounding else None
    return Outcome(
        setting, ties, tuple(runs), float(np.median(reference.margins)), lowest, judge(reference.answers, answers)
    )


DEMONSTRATION: Final = Demonstration(explanation=_EXPLANATION, run=_run, add_arguments=_add_arguments)
