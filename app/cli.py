"""The command line: ``reprise serve | engine | probe | compare | replay | simulate | receipt | diagnose | lab``.

Each command imports what it needs when it runs, so that ``reprise engine`` works with the standard library alone,
inside the official vLLM image for example.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import Final

from app import __version__
from app.engine.command import add_arguments as add_engine_arguments
from app.engine.command import run as run_engine

_INTERRUPTED: Final = 130
"""What a shell says of a program that Ctrl-C ended: 128 and the number of SIGINT."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; the exit status is returned, 130 after Ctrl-C. Errors are one line on standard error."""
    parser = argparse.ArgumentParser(prog="reprise", description="Deterministic LLM serving at the gateway.")
    parser.add_argument("--version", action="version", version=f"reprise {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_serve(commands.add_parser("serve", help="run the gateway"))
    add_engine_arguments(
        commands.add_parser("engine", help="run (or print) a vLLM with the guard and an engine profile")
    )
    _add_probe(commands.add_parser("probe", help="measure how often repeated requests diverge, mode by mode"))
    _add_compare(commands.add_parser("compare", help="compare two runs of the same requests, answer by answer"))
    _add_replay(commands.add_parser("replay", help="send the requests of a file again, and write the new answers"))
    _add_simulate(commands.add_parser("simulate", help="what isolation costs on a fleet, from one measured run"))
    _add_receipt(commands.add_parser("receipt", help="check a signed receipt, or print the key that signs them"))
    _add_diagnose(commands.add_parser("diagnose", help="find out which layer makes answers differ, and the cure"))
    _add_lab(commands.add_parser("lab", help="runnable demonstrations of why a server does not repeat itself"))
    arguments = parser.parse_args(argv)
    run: Callable[[argparse.Namespace], int] = {
        "serve": _serve,
        "engine": run_engine,
        "probe": _probe,
        "compare": _compare,
        "replay": _replay,
        "simulate": _simulate,
        "receipt": _receipt,
        "diagnose": _diagnose,
        "lab": _lab,
    }[arguments.command]
    try:
        return run(arguments)
    except KeyboardInterrupt:
        # The gateway comes here too, once everything in it has ended: uvicorn then raises the signal again.
        return _INTERRUPTED


def _add_serve(parser: argparse.ArgumentParser) -> None:
    parser.description = "Run the gateway. Every setting can also be given as REPRISE_NAME or in a TOML file."
    parser.add_argument("--config", metavar="FILE", help="a TOML file with settings")
    parser.add_argument("--host", help="the address to listen on (default 127.0.0.1)")
    parser.add_argument("--port", type=int, help="the port to listen on (default 8000)")
    parser.add_argument(
        "--upstream", action="append", dest="upstreams", metavar="URL", help="a vLLM server; repeat it for several"
    )
    parser.add_argument("--default-mode", metavar="MODE", help="the mode of requests that name none (default standard)")
    parser.add_argument("--state-dir", metavar="DIR", help="where ledger and installation key live (default .reprise)")
    parser.add_argument(
        "--check", action="store_true", help="look at the settings and the files that they name, and serve nothing"
    )


def _serve(arguments: argparse.Namespace) -> int:
    from pydantic import ValidationError  # noqa: PLC0415 - see the module's docstring

    from app.serve import check, serve  # noqa: PLC0415 - see the module's docstring
    from app.settings import Settings  # noqa: PLC0415 - see the module's docstring

    own = {"command", "check"}
    given = {name: value for name, value in vars(arguments).items() if value is not None and name not in own}
    try:
        settings = Settings(**given)
    except ValidationError as exc:
        for error in exc.errors(include_url=False, include_input=False):
            where = ".".join(str(part) for part in error["loc"])
            sys.stderr.write(f"reprise serve: {where}: {error['msg'].removeprefix('Value error, ')}\n")
        return 2
    except (OSError, ValueError) as exc:
        sys.stderr.write(f"reprise serve: {exc}\n")
        return 2
    return check(settings) if arguments.check else serve(settings)


def _add_probe(parser: argparse.ArgumentParser) -> None:
    from app.probe.arguments import add_arguments  # noqa: PLC0415 - see the module's docstring

    add_arguments(parser)


def _probe(arguments: argparse.Namespace) -> int:
    from app.probe.command import run  # noqa: PLC0415 - see the module's docstring

    return run(arguments)


def _add_compare(parser: argparse.ArgumentParser) -> None:
    from app.comparison.arguments import add_compare_arguments  # noqa: PLC0415 - see the module's docstring

    add_compare_arguments(parser)


def _compare(arguments: argparse.Namespace) -> int:
    from app.comparison.command import run  # noqa: PLC0415 - see the module's docstring

    return run(arguments)


def _add_replay(parser: argparse.ArgumentParser) -> None:
    from app.comparison.arguments import add_replay_arguments  # noqa: PLC0415 - see the module's docstring

    add_replay_arguments(parser)


def _replay(arguments: argparse.Namespace) -> int:
    from app.comparison.replay_command import run  # noqa: PLC0415 - see the module's docstring

    return run(arguments)


def _add_simulate(parser: argparse.ArgumentParser) -> None:
    from app.simulation.arguments import add_arguments  # noqa: PLC0415 - see the module's docstring

    add_arguments(parser)


def _simulate(arguments: argparse.Namespace) -> int:
    from app.simulation.command import run  # noqa: PLC0415 - see the module's docstring

    return run(arguments)


def _add_receipt(parser: argparse.ArgumentParser) -> None:
    from app.receipts.arguments import add_arguments  # noqa: PLC0415 - see the module's docstring

    add_arguments(parser)


def _receipt(arguments: argparse.Namespace) -> int:
    from app.receipts.command import run  # noqa: PLC0415 - see the module's docstring

    return run(arguments)


def _add_diagnose(parser: argparse.ArgumentParser) -> None:
    from app.diagnose.arguments import add_arguments  # noqa: PLC0415 - see the module's docstring

    add_arguments(parser)


def _diagnose(arguments: argparse.Namespace) -> int:
    from app.diagnose.command import run  # noqa: PLC0415 - see the module's docstring

    return run(arguments)


def _add_lab(parser: argparse.ArgumentParser) -> None:
    from app.lab.arguments import add_arguments  # noqa: PLC0415 - see the module's docstring

    add_arguments(parser)


def _lab(arguments: argparse.Namespace) -> int:
    from app.lab.command import run  # noqa: PLC0415 - see the module's docstring

    return run(arguments)


if __name__ == "__main__":
    sys.exit(main())
