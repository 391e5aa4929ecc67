"""Makes the environments, once: a stamp says what is there, and is written only when all of it is.

An interrupted installation leaves no stamp and is repeated from an empty environment; so is one whose pins changed.
"""

import fcntl
import importlib.util
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Protocol

from launcher import recipe
from launcher.command import Command
from launcher.failure import LaunchError, tail
from launcher.layout import Layout
from launcher.processes import TICK, Supervisor
from launcher.recipe import Installation
from launcher.terminal import Progress

STAMP = "reprise-stamp.json"
UNREACHABLE = re.compile(r"No matching distribution found|Max retries exceeded|Connection(Timeout|Reset)?Error")


@dataclass(frozen=True, slots=True)
class Stamp:
    """What an environment holds: the digest of its packages, those of smaller sets that it covers, and our own's."""

    packages: str = ""
    covers: tuple[str, ...] = ()
    project: str = ""


class Creation(Protocol):
    """How the command that makes an environment comes about; `recipe.creation` but in tests."""

    def __call__(self, installation: Installation, *, clear: bool) -> Command:
        """The command; with ``clear`` it leaves nothing of what was there."""


class Installer:
    """Brings a checkout to the state that an installation describes."""

    def __init__(
        self, layout: Layout, supervisor: Supervisor, progress: Progress, *, creation: Creation = recipe.creation
    ) -> None:
        self._layout = layout
        self._creation = creation
        self._supervisor = supervisor
        self._progress = progress
        self._log = layout.log("install")

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Keep two launchers from installing into one checkout; the later one waits."""
        self._layout.state.mkdir(mode=0o700, exist_ok=True)
        self._log.parent.mkdir(mode=0o700, exist_ok=True)
        with (self._layout.state / "install.lock").open("w") as lock:
            if not _try_lock(lock.fileno()):
                with self._progress.step("waiting for another installation in this checkout"):
                    while not _try_lock(lock.fileno()):
                        self._supervisor.wait(TICK)
                        self._progress.tick()
            self._log.unlink(missing_ok=True)
            yield

    def ensure(self, installation: Installation) -> None:
        """Make or complete the environment; do nothing when its stamp says that it is there. Raises LaunchError."""
        path = installation.directory / STAMP
        stamp = _read(path) if (installation.directory / "bin" / "python").exists() else Stamp()
        if installation.digest not in {stamp.packages, *stamp.covers}:
            if importlib.util.find_spec("ensurepip") is None:
                raise LaunchError(
                    "this Python cannot make environments; on Debian and Ubuntu: apt install python3-venv"
                )
            path.unlink(missing_ok=True)
            self.make(self._creation(installation, clear=stamp.packages not in installation.covers))
            for command in installation.packages:
                self.make(command)
            stamp = Stamp(packages=installation.digest, covers=tuple(installation.covers))
            _write(path, stamp)
        if stamp.project != installation.project_digest:
            self.make(installation.project)
            _write(path, replace(stamp, project=installation.project_digest))

    def make(self, command: Command) -> None:
        """Run one step to its end, or its fallback when it fails. Raises LaunchError when that fails too."""
        with self._progress.step(command.label):
            code = self._supervisor.run(command, self._log)
            if code != 0 and command.fallback is not None:
                command = command.fallback
                code = self._supervisor.run(command, self._log)
            if code != 0:
                unreachable = UNREACHABLE.search("\n".join(tail(self._log, 60)))
                reason = "no package index that has it could be reached" if unreachable else f"exit code {code}"
                raise LaunchError(f"{command.label} failed: {reason}", log=self._log)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _read(path: Path) -> Stamp:
    """The stamp, or an empty one where there is none that can be read."""
    try:
        content = json.loads(path.read_text())
        return Stamp(str(content["packages"]), tuple(map(str, content["covers"])), str(content["project"]))
    except (OSError, ValueError, KeyError, TypeError):
        return Stamp()


def _write(path: Path, stamp: Stamp) -> None:
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps(asdict(stamp)))
    part.replace(path)
