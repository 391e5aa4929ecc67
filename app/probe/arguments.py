"""The options of ``reprise probe``. Standard library only, so that every other command can list this one."""

import argparse
from collections.abc import Callable
from typing import Final

from app.determinism.mode import REQUESTABLE_MODES, Mode, did_you_mean

DEFAULT_MODES: Final = (Mode.STANDARD, Mode.SEEDED, Mode.ISOLATED, Mode.HARDENED)

_DIVERGENCE_ONLY: Final = ("modes", "repeats", "tokens", "prompts", "temperature", "seed", "together", "concurrency")
_MIX_ONLY: Final = ("seconds", "warmup", "calibrate")

_EPILOG: Final = """\
In each mode the first answer to a prompt is its reference: it is asked for while the background load pauses.
Then every prompt is repeated under load, and an answer counts as diverged when its token ids or its finish
reason differ from the reference's.

exit status: 0 no deterministic mode diverged; 1 one did; 2 it could not be measured (bad arguments, server unreachable,
failed requests, or no mode that the server offers); 130 interrupted. One mode that is not offered changes nothing.

With --mix it measures what isolation costs instead: --load clients (default 16) send requests of varying length one
after the other, and at each percentage so many of them are isolated. Exit status 1 is then an isolated request that was
not alone on the engine. `reprise simulate` sizes a fleet from the document of --mix --json.
"""


class Unset(int):
    """A default that nobody chose: it counts as a number, and can be told from the same number given."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options; `app.probe.experiment.Experiment.of` gives them their meaning."""
    parser.description = "Measure how often repeated requests diverge, mode by mode, under a background load."
    parser.epilog = _EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "--url", default="http://127.0.0.1:8000", help="a gateway or any OpenAI-compatible server (default %(default)s)"
    )
    parser.add_argument("--model", help="the model to ask (default: the first of /v1/models)")
    parser.add_argument(
        "--modes",
        "--mode",
        type=_modes,
        default=DEFAULT_MODES,
        metavar="LIST",
        help=f"modes to measure, in order, with commas between them (default {','.join(DEFAULT_MODES)})",
    )
    parser.add_argument(
        "--repeats", type=integer(1, 100_000), default=16, metavar="N", help="repeats per prompt (default %(default)s)"
    )
    parser.add_argument(
        "--tokens", type=integer(1, 100_000), default=48, metavar="N", help="tokens per answer (default %(default)s)"
    )
    parser.add_argument("--prompts", metavar="FILE", help="prompts, one per line (default: four built in)")
    parser.add_argument(
        "--temperature", type=number(0.0, 2.0), default=0.0, metavar="T", help="sampling temperature (default 0)"
    )
    parser.add_argument("--seed", type=int, metavar="N", help="the seed to send (default: none)")
    parser.add_argument(
        "--together",
        action="store_true",
        help="send all prompts as one list in one /v1/completions request; what repeats is the list as a whole",
    )
    parser.add_argument(
        "--concurrency",
        type=integer(1, 1024),
        default=4,
        metavar="N",
        help="how many repeats are in flight at once (default %(default)s)",
    )
    parser.add_argument(
        "--load",
        type=integer(0, 1024),
        default=Unset(8),
        metavar="N",
        help="other requests kept in flight meanwhile, in standard mode (default %(default)s; 0 = none)",
    )
    parser.add_argument("--api-key", metavar="KEY", help="the server's API key (default: $OPENAI_API_KEY)")
    parser.add_argument(
        "--timeout",
        type=number(0.1, 86_400.0),
        default=300.0,
        metavar="SECONDS",
        help="how long one answer may take, its time in the queue included (default %(default)g)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of the table")
    _add_mix(parser.add_argument_group("mixed traffic"))


def misplaced(arguments: argparse.Namespace) -> tuple[str, ...]:
    """The options that were given and have no meaning beside, or without, ``--mix``."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    names = _MIX_ONLY if arguments.mix is None else _DIVERGENCE_ONLY
    return tuple(f"--{name}" for name in names if getattr(arguments, name) != parser.get_default(name))


def _add_mix(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--mix",
        type=percentages,
        metavar="LIST",
        help="percentages of isolated requests to measure, in order, with commas between them: 0,5,10,25,50",
    )
    group.add_argument(
        "--seconds",
        type=number(0.1, 86_400.0),
        default=60.0,
        metavar="S",
        help="how long each percentage is measured (default %(default)g)",
    )
    group.add_argument(
        "--warmup",
        type=number(0.0, 3_600.0),
        default=5.0,
        metavar="S",
        help="how long each percentage runs before that, at least; not counted (default %(default)g)",
    )
    group.add_argument(
        "--calibrate",
        action=argparse.BooleanOptionalAction,
        help="measure ordinary traffic of 1, 2, 4 ... clients first, a quarter of --seconds each: `reprise simulate` "
        "needs it (default: with --json)",
    )


def _modes(text: str) -> tuple[Mode, ...]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in REQUESTABLE_MODES]
    if unknown or not names:
        known = ", ".join(REQUESTABLE_MODES)
        raise argparse.ArgumentTypeError(
            f"unknown mode {', '.join(map(repr, unknown)) or repr(text)}; known are {known}"
            f"{did_you_mean(unknown[0]) if unknown else ''}"
        )
    return tuple(dict.fromkeys(map(Mode, names)))


def percentages(text: str) -> tuple[float, ...]:
    """Percentages with commas between them, each once, in the order given. Raises ArgumentTypeError."""
    read = number(0.0, 100.0)
    return tuple(dict.fromkeys(read(part.strip()) for part in text.split(",")))


def integer(low: int, high: int) -> Callable[[str], int]:
    """The type of an option that is a whole number from ``low`` to ``high``."""

    def read(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = low - 1
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {low} to {high}")
        return value

    return read


def number(low: float, high: float) -> Callable[[str], float]:
    """The type of an option that is a number from ``low`` to ``high``."""

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = low - 1.0
        # Written so that NaN fails too.
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number from {low:g} to {high:g}")
        return value

    return read
