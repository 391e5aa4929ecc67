"""The options of ``reprise simulate``. Standard library only, so that every other command can list this one."""

import argparse
from typing import Final

from app.probe.arguments import integer, number, percentages
from app.scheduling.gate import GatePolicy

DEFAULT_REPLICAS: Final = (1, 10, 100, 1000)
DEFAULT_SPILL: Final = 5.0
"""Seconds, as the gateway's own: see `app.scheduling.scheduler.Queueing`."""

GATES: Final = ("phase-fair", "fifo")

_EPILOG: Final = """\
The engine is a model: the time of a step by the size of its batch, fitted from the calibration in the document of
`reprise probe --mix 0,5,10,25,50 --json`. Replicas admit by the product's own gate in simulated time, requests are
routed as the gateway routes them, and the measured sweep is simulated first: how far that is from what was measured is
how far to trust the rest.

exit status: 0 simulated; 2 the document cannot be used; 130 interrupted.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.description = "Simulate what isolation costs on fleets of replicas, from one measured run."
    parser.epilog = _EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "--from", dest="source", required=True, metavar="FILE", help="the document of `reprise probe --mix ... --json`"
    )
    parser.add_argument(
        "--replicas",
        type=_sizes,
        default=DEFAULT_REPLICAS,
        metavar="LIST",
        help=f"sizes of fleet, with commas between them (default {','.join(map(str, DEFAULT_REPLICAS))})",
    )
    parser.add_argument(
        "--clients-per-replica",
        type=integer(1, 1024),
        metavar="N",
        help="clients that send one request after the other, per replica (default: as measured)",
    )
    parser.add_argument(
        "--mix", type=percentages, metavar="LIST", help="percentages of isolated requests (default: as measured)"
    )
    parser.add_argument(
        "--gate",
        choices=GATES,
        default=GATES[0],
        help="how a replica admits: the product's gate, or a plain FIFO writer lock (default %(default)s)",
    )
    parser.add_argument(
        "--spill",
        type=number(0.0, 86_400.0),
        default=DEFAULT_SPILL,
        metavar="S",
        help="the expected wait over which isolated requests go to another replica (default %(default)g)",
    )
    parser.add_argument(
        "--share",
        type=number(0.01, 1.0),
        default=GatePolicy().exclusive_share,
        metavar="S",
        help="the most of contended time that exclusive phases get (default %(default)g)",
    )
    parser.add_argument(
        "--phase-seconds",
        type=number(0.0, 86_400.0),
        default=GatePolicy().phase_seconds,
        metavar="S",
        help="how long an exclusive phase lasts while shared requests wait (default %(default)g)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of the tables")


def _sizes(text: str) -> tuple[int, ...]:
    read = integer(1, 10_000)
    return tuple(dict.fromkeys(read(part.strip()) for part in text.split(",")))
