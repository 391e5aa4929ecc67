"""A checkout in a folder of its own, in which everything seems installed and ``reprise`` is a fake."""

import json
import os
import shutil
import socket
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest

from launcher import recipe
from launcher.environments import STAMP, Stamp
from launcher.layout import Layout

ROOT = Path(__file__).resolve().parents[2]
FILES = ("pyproject.toml", "requirements-lab.lock", "requirements-dev.lock")


@dataclass(frozen=True, slots=True)
class Checkout:
    """A copy of what ``deploy/up`` needs; nothing of it is shared with the real checkout."""

    layout: Layout
    notes: Path

    def start(self, *arguments: str, **environment: str) -> "subprocess.Popen[str]":
        """Start ``deploy/up`` here, its output readable line by line."""
        return subprocess.Popen(
            [self.layout.root / "deploy" / "up", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "REPRISE_PYTHON": sys.executable, "FAKE_NOTES": str(self.notes), **environment},
        )

    def note(self, command: str) -> dict[str, Any]:
        """What the fake ``reprise`` was given."""
        content: dict[str, Any] = json.loads((self.notes / f"{command}.json").read_text())
        return content

    def install(self, installation: recipe.Installation) -> None:
        """Make an environment look complete."""
        binaries = installation.directory / "bin"
        binaries.mkdir(parents=True)
        (binaries / "python").symlink_to(sys.executable)
        fake = binaries / "reprise"
        fake.write_text(f'#!/bin/sh\nexec {sys.executable} {ROOT}/tests/deploy/fake_reprise.py "$@"\n')
        fake.chmod(0o755)
        stamp = Stamp(packages=installation.digest, project=installation.project_digest)
        (installation.directory / STAMP).write_text(json.dumps(asdict(stamp)))


@pytest.fixture
def empty_checkout(tmp_path: Path) -> Checkout:
    """A fresh clone, as far as ``deploy/up`` looks at it."""
    root = tmp_path / "a checkout"  # a space, because people have them
    shutil.copytree(ROOT / "deploy", root / "deploy", ignore=shutil.ignore_patterns("__pycache__"))
    for name in FILES:
        shutil.copy(ROOT / name, root)
    notes = tmp_path / "notes"
    notes.mkdir()
    return Checkout(Layout(root), notes)


@pytest.fixture
def checkout(empty_checkout: Checkout) -> Checkout:
    """A checkout in which a run finds everything installed."""
    empty_checkout.install(recipe.gateway(empty_checkout.layout, development=False))
    empty_checkout.install(recipe.engine(empty_checkout.layout, "cpu"))
    return empty_checkout


@pytest.fixture
def ports() -> tuple[str, str]:
    """Two ports that were free a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as first, socket.create_server(("127.0.0.1", 0)) as second:
        return str(first.getsockname()[1]), str(second.getsockname()[1])
