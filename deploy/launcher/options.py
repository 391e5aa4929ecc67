"""The command line of ``deploy/up``."""

import argparse
import urllib.parse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

PROFILES = ("deterministic", "throughput", "verifier")
DEVICES = ("auto", "cpu", "cuda")
ENGINE_FLAGS = ("engine_port", "profile", "model", "device")
EPILOG = """\
environment:
  REPRISE_UPSTREAM_API_KEY, REPRISE_UPSTREAM_API_KEY_FILE  the key of the servers given by --upstream
  REPRISE_GUARD_KEY  the guard's key; without it each run with an engine makes its own
  REPRISE_PYTHON     the Python (3.11 or newer) to make the environments with
Every other REPRISE_* variable reaches the gateway as it is.
"""


class LineParser(argparse.ArgumentParser):
    """A parser whose complaint is one line."""

    def error(self, message: str) -> NoReturn:
        """End with exit code 2 and one line."""
        self.exit(2, f"{self.prog}: {message} (see --help)\n")


@dataclass(frozen=True, slots=True)
class Options:
    """What was asked of ``deploy/up``. ``model`` None is the bundled one; no upstreams means an own engine."""

    host: str
    port: int
    engine_port: int
    profile: str
    model: str | None
    device: str
    upstreams: tuple[str, ...]
    dry_run: bool
    start_timeout: float | None
    """Seconds until a start that shows no end is given up; None leaves that to the program that starts."""


def parse(arguments: Sequence[str]) -> Options:
    """The options of a command line. Exits with code 2 and one line when they cannot be meant."""
    parser = _parser()
    given = parser.parse_args(arguments)
    if given.upstream:
        for name in ENGINE_FLAGS:
            if getattr(given, name) is not None:
                parser.error(
                    f"--{name.replace('_', '-')} is about an engine started here; with --upstream there is none"
                )
    options = Options(
        host=given.host,
        port=given.port,
        engine_port=given.engine_port or 8001,
        profile=given.profile or PROFILES[0],
        model=_absolute(given.model) if given.model else None,
        device=given.device or DEVICES[0],
        upstreams=tuple(given.upstream),
        dry_run=given.dry_run,
        start_timeout=given.start_timeout,
    )
    if not options.upstreams and options.port == options.engine_port:
        parser.error(f"--port and --engine-port are both {options.port}")
    return options


def _parser() -> LineParser:
    parser = LineParser(
        prog="deploy/up",
        description="Start a real vLLM and a gateway before it, or with --upstream the gateway alone. Ctrl-C ends it.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--host", default="127.0.0.1", help="address that the gateway listens on (%(default)s)")
    parser.add_argument("--port", type=_port, default=8000, help="the gateway's port (%(default)s)")
    parser.add_argument("--engine-port", type=_port, help="the engine's port, on 127.0.0.1 (8001)")
    parser.add_argument("--profile", choices=PROFILES, help=f"how the engine is launched ({PROFILES[0]})")
    parser.add_argument("--model", metavar="DIR|ID", help="a model folder or a Hub id instead of the bundled model")
    parser.add_argument("--device", choices=DEVICES, help=f"which build of vLLM to install ({DEVICES[0]})")
    parser.add_argument(
        "--upstream",
        action="append",
        default=[],
        type=_url,
        metavar="URL",
        help="stand before a vLLM server that exists and install no engine; may be repeated",
    )
    parser.add_argument("--dry-run", action="store_true", help="print every command that would run, and run none")
    parser.add_argument(
        "--start-timeout",
        type=_seconds,
        metavar="SECONDS",
        help="give up when a program is not ready after this long (engine: 1800, gateway: 60)",
    )
    return parser


def _port(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 0 < int(text) <= 65535:  # noqa: PLR2004 - the ports there are
        message = f"{text!r} is no port from 1 to 65535"
        raise argparse.ArgumentTypeError(message)
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        message = f"{text!r} is no number of seconds above 0"
        raise argparse.ArgumentTypeError(message)
    return seconds


def _url(text: str) -> str:
    try:
        parts = urllib.parse.urlsplit(text)
        usable = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        message = f"{text!r} is no http:// or https:// URL"
        raise argparse.ArgumentTypeError(message)
    if "@" in text:
        message = "a URL with credentials would be shown to everybody; use REPRISE_UPSTREAM_API_KEY"
        raise argparse.ArgumentTypeError(message)
    return text


def _absolute(model: str) -> str:
    folder = Path(model).expanduser()
    return str(folder.resolve()) if folder.is_dir() else model
