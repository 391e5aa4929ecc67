"""The options of ``reprise diagnose``. Standard library alone, as `app.cli` imports it for every command."""

import argparse
import re
from typing import Final

from app.probe.arguments import integer, number

FAIL_ON: Final = ("diverged", "never")

_UNITS: Final = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([smh]?)")
_SHORTEST, _LONGEST = 5.0, 24 * 3600.0
_LARGEST_BATCH: Final = 256


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add them to a parser."""
    parser.description = (
        "Find out which layer makes answers to one request differ on a server: the blame ladder. The same prompts are "
        "asked again and again, and each rung changes one thing: nothing, the prefix cache, the batch, its contents, "
        "the neighbours' length, the replica. Then the cheapest cure is looked for among the gateway's modes. Be the "
        "server's only client meanwhile: what others send shares the batch."
    )
    parser.add_argument(
        "--url", default="http://127.0.0.1:8000", help="a gateway or a vLLM server (default %(default)s)"
    )
    parser.add_argument("--model", help="the model to ask (default: the first of /v1/models)")
    parser.add_argument(
        "--budget",
        type=duration,
        default=290.0,
        metavar="TIME",
        help="how long the run may take: 90s, 5m, 1h. Tokens per answer and repeats follow from it (default 290s)",
    )
    parser.add_argument(
        "--tokens", type=integer(4, 4096), metavar="N", help="tokens per answer (default: what the budget allows)"
    )
    parser.add_argument(
        "--repeats",
        type=integer(2, 64),
        metavar="N",
        help="rounds of a rung at most, where it needs no more for its test (default: what the budget allows)",
    )
    parser.add_argument("--prompts", metavar="FILE", help="prompts, one per line, four are used (default: built in)")
    parser.add_argument(
        "--batch-sizes",
        type=batch_sizes,
        default=(2, 4, 8),
        metavar="LIST",
        help="sizes of batches to compare with an answer given alone (default 2,4,8)",
    )
    parser.add_argument(
        "--replica",
        action="append",
        default=[],
        metavar="URL",
        help="another server that should give the same answers; repeat it for several",
    )
    parser.add_argument(
        "--temperature", type=number(0.0, 2.0), default=0.0, metavar="T", help="sampling temperature (default 0)"
    )
    parser.add_argument("--seed", type=int, metavar="N", help="the seed to send where something is sampled")
    parser.add_argument(
        "--no-cures", dest="cures", action="store_false", help="find the layer alone; spend nothing on measuring modes"
    )
    parser.add_argument(
        "--fail-on", choices=FAIL_ON, default="never", help="exit with 1 if tokens changed (default never)"
    )
    parser.add_argument("--api-key", metavar="KEY", help="the server's API key (default: $OPENAI_API_KEY)")
    parser.add_argument(
        "--timeout",
        type=number(0.1, 86_400.0),
        default=120.0,
        metavar="SECONDS",
        help="how long one answer may take (default %(default)g)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of the tables")
    parser.add_argument("--html", metavar="FILE", help="write a report with plots, one file that needs nothing else")


def duration(text: str) -> float:
    """Seconds of ``90``, ``90s``, ``5m`` or ``1h``. Raises ArgumentTypeError."""
    found = _DURATION.fullmatch(text.strip())
    seconds = float(found[1]) * _UNITS[found[2]] if found else 0.0
    if not _SHORTEST <= seconds <= _LONGEST:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time from 5s to 24h, such as 90s or 5m")
    return seconds


def batch_sizes(text: str) -> tuple[int, ...]:
    """Sizes with commas between them, in ascending order. Raises ArgumentTypeError."""
    read = integer(2, _LARGEST_BATCH)
    return tuple(sorted({read(part.strip()) for part in text.split(",")}))
