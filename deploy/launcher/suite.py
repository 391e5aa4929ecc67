"""``deploy/test``: installs what the tests need and runs every check, for people and for CI alike."""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from types import FrameType

from launcher import layout as layouts
from launcher import machine, recipe
from launcher.environments import Installer
from launcher.failure import Interrupted, LaunchError, end_badly
from launcher.layout import Layout
from launcher.options import DEVICES, LineParser
from launcher.processes import STOP_SIGNALS, Supervisor
from launcher.terminal import Progress

SKIPPED = "NOTE: --no-engine: the tests on the real engine (marker `engine`) were skipped."


def main(arguments: Sequence[str]) -> int:
    """Run the checks. Returns 0 when all passed, 1 when one failed, 128 + the signal's number when stopped."""
    chosen, extra = _parser().parse_known_args(arguments)
    layout = layouts.find()
    progress = Progress(sys.stdout)
    try:
        _install(layout, progress, engine=not chosen.no_engine, device=chosen.device)
        failed = [
            name
            for name, argv in checks(layout, engine=not chosen.no_engine, extra=extra)
            if _fails(layout, name, argv)
        ]
    except LaunchError as exc:
        return end_badly("deploy/test", exc, layout)
    except Interrupted as exc:
        print(f"deploy/test: stopped by {signal.Signals(exc.signal_number).name}", file=sys.stderr)
        return 128 + exc.signal_number
    if chosen.no_engine:
        print(SKIPPED)
    print(f"deploy/test: failed: {', '.join(failed)}" if failed else "deploy/test: all checks passed", flush=True)
    return 1 if failed else 0


def checks(layout: Layout, *, engine: bool, extra: Sequence[str]) -> list[tuple[str, tuple[str, ...]]]:
    """Every check by name, pytest last. ``extra`` goes to pytest."""
    binaries = layout.gateway_environment / "bin"
    selection = () if engine else ("-m", "not engine")
    return [
        ("ruff check", (str(binaries / "ruff"), "check")),
        ("ruff format", (str(binaries / "ruff"), "format", "--check")),
        ("mypy", (str(binaries / "mypy"), "--strict")),
        ("import contracts", (str(binaries / "lint-imports"),)),
        ("pytest", (str(binaries / "python"), "-m", "pytest", *selection, *extra)),
    ]


def _parser() -> LineParser:
    parser = LineParser(
        prog="deploy/test",
        description="Install what the tests need and run style, types, import contracts and tests.",
        epilog="Everything else on the command line goes to pytest.",
        allow_abbrev=False,
    )
    parser.add_argument("--no-engine", action="store_true", help="install no engine and skip the tests that need one")
    parser.add_argument(
        "--device", choices=DEVICES, default=DEVICES[0], help="which build of vLLM to install (%(default)s)"
    )
    return parser


def _install(layout: Layout, progress: Progress, *, engine: bool, device: str) -> None:
    with Supervisor(progress, environment=os.environ, directory=layout.root) as supervisor:
        installer = Installer(layout, supervisor, progress)
        with installer.exclusive():
            installer.ensure(recipe.gateway(layout, development=True))
            if engine:
                installer.ensure(recipe.engine(layout, machine.resolve(device)))
                installer.make(recipe.model(layout))


def _fails(layout: Layout, name: str, argv: tuple[str, ...]) -> bool:
    """Run one check with its output here and say whether it failed. Raises Interrupted when asked to stop meanwhile.

    It shares our terminal, so Ctrl-C reaches it directly; other signals are handed on as one. Either way we wait, so
    that pytest can end what its fixtures started.
    """
    print(f"== {name}", flush=True)
    environment = os.environ | {
        "REPRISE_TEST_ENGINE_PYTHON": str(layout.engine_environment / "bin" / "python"),
        "REPRISE_TEST_MODEL": str(layout.bundled_model),
    }
    asked: list[int] = []
    with subprocess.Popen(argv, cwd=layout.root, env=environment, stdin=subprocess.DEVNULL) as process:

        def stop(number: int, _frame: FrameType | None) -> None:
            asked.append(number)
            if number != signal.SIGINT:
                process.send_signal(signal.SIGINT)

        for number in STOP_SIGNALS:
            signal.signal(number, stop)
        code = process.wait()
    if asked:
        raise Interrupted(asked[0])
    return code != 0
