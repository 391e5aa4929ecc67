"""``reprise lab moe``: an expert takes so many tokens per batch, and neighbours decide whether yours are among them."""

import argparse
from typing import Final

import numpy as np

from app.lab.demonstration import Demonstration, NotDemonstrable, Result
from app.lab.moe_batches import PHASES, Batch, Rules, compare, crowding, draw_batches, watch, whole_batch
from app.lab.moe_experts import Layer, Request
from app.lab.moe_plot import draw
from app.lab.moe_report import WHOLE_BATCH_RUNS, Outcome, data, findings, sheets
from app.lab.moe_routing import OVERFLOWS
from app.probe.arguments import integer, number

_EXPLANATION: Final = """
In a mixture-of-experts model a router sends each token to its best few experts. Where an expert takes only so many
tokens per batch (its capacity), those that come too late go elsewhere: to a fallback expert, to the next-best one, or
past all of them. Who came before is a matter of the other requests in the batch. So other people's words choose the
weights that compute yours (layer L1). That is no rounding error, and no number format or kernel cures it. vLLM 0.32
drops no tokens at capacity, as far as its source shows; other engines and expert load balancing can.

Below, one request goes through a layer of experts alone, and then in batches that all have one shape and in which it
always has the same place: only the neighbours' contents change. Every token is computed on its own and in one order, so
nothing but the routing can differ. The whole batch, repeated, gives the same bits; the single request in another batch
does not. That is determinism of the batch, not of the sequence. With unlimited capacity nothing moves.
"""

_FACTORS: Final = (0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 3.0)


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    whole = (
        ("experts", 2, 64, 8, "experts of the layer, besides the fallback"),
        ("top-k", 1, 16, 2, "experts per token"),
        ("batch", 1, 64, 16, "requests per batch, yours among them"),
        ("tokens", 1, 64, 24, "tokens per request"),
        ("trials", 1, 32, 8, "batches, with other neighbours each time"),
    )
    for name, low, high, default, text in whole:
        parser.add_argument(
            f"--{name}", type=integer(low, high), default=default, metavar="N", help=f"{text} (default %(default)s)"
        )
    parser.add_argument(
        "--capacity-factor",
        type=number(0.05, 64.0),
        default=1.25,
        metavar="X",
        help="an expert's capacity, as a multiple of an equal share of the batch (default %(default)s)",
    )
    parser.add_argument(
        "--place",
        type=integer(1, 64),
        metavar="N",
        help="where your request stands in the batch; the first is admitted first (default: last)",
    )
    parser.add_argument(
        "--phase",
        choices=PHASES,
        default=PHASES[0],
        help="what shares a batch: one token of each request, or all tokens of all (default %(default)s)",
    )
    parser.add_argument(
        "--overflow", choices=OVERFLOWS, default=OVERFLOWS[0], help="where overflow goes (default %(default)s)"
    )


def _run(options: argparse.Namespace) -> Result:
    if options.top_k > options.experts:
        raise NotDemonstrable(f"--top-k {options.top_k} is more than the {options.experts} of --experts")
    if options.place is not None and options.place > options.batch:
        raise NotDemonstrable(f"--place {options.place} is behind the {options.batch} requests of --batch")
    outcome = _outcome(options)
    return Result(
        sheets=sheets(outcome),
        findings=tuple(findings(outcome)),
        data=data(outcome),
        draw=lambda figure: draw(outcome.trials, outcome.sweep, options.capacity_factor, figure),
    )


def _outcome(options: argparse.Namespace) -> Outcome:
    for_layer, for_request, for_neighbours = np.random.default_rng(options.seed).spawn(3)
    layer = Layer.drawn(for_layer, options.experts)
    request = Request.drawn(for_request, layer, options.tokens, options.top_k)
    place = (options.place or options.batch) - 1
    batches = draw_batches(for_neighbours, layer, request, options.batch - 1, place, options.trials)
    rules = Rules(options.top_k, options.capacity_factor, options.phase, options.overflow)
    unlimited = rules._replace(factor=None)
    alone, freely = (watch(layer, Batch(request, (), 0), which) for which in (rules, unlimited))
    factors = (*sorted({*_FACTORS, options.capacity_factor}), None)
    front = crowding([batch._replace(place=0) for batch in batches], rules)
    runs = {whole_batch(layer, batches[0], rules) for _ in range(WHOLE_BATCH_RUNS)}
    return Outcome(
        options,
        rules.room(1, options.tokens, options.experts) or 0,
        rules.room(options.batch, options.tokens, options.experts) or 0,
        alone,
        tuple(compare(alone, watch(layer, batch, rules)) for batch in batches),
        tuple(compare(freely, watch(layer, batch, unlimited)) for batch in batches),
        len(runs),
        tuple(crowding(batches, rules._replace(factor=factor)) for factor in factors),
        front.moved_share,
    )


DEMONSTRATION: Final = Demonstration(explanation=_EXPLANATION, run=_run, add_arguments=_add_arguments)
