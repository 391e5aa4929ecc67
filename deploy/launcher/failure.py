"""How a launch ends early."""

import sys
from pathlib import Path

from launcher.layout import Layout


class LaunchError(Exception):
    """One clear line for the person at the terminal; ``log`` is where the last words of a failed program are."""

    def __init__(self, message: str, *, log: Path | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.log = log


class Interrupted(Exception):
    """A person or a service manager asked the launcher to stop."""

    def __init__(self, signal_number: int) -> None:
        super().__init__(signal_number)
        self.signal_number = signal_number


def end_badly(program: str, error: LaunchError, layout: Layout) -> int:
    """Print the last words of what failed and then the one line; return the exit code."""
    where = ""
    if error.log is not None:
        for line in tail(error.log):
            print(f"    | {line}", file=sys.stderr)
        where = f" (log: {layout.shown(error.log)})"
    print(f"{program}: {error.message}{where}", file=sys.stderr)
    return 1


def tail(log: Path, lines: int = 15) -> list[str]:
    """The last lines of a log, or none when it cannot be read."""
    try:
        return log.read_text(errors="replace").splitlines()[-lines:]
    except OSError:
        return []
