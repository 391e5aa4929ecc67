"""Installations: done once, repeated when interrupted or out of date, never half believed."""

import io
import json
import os
import shlex
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.command import Command
from launcher.environments import STAMP, Installer
from launcher.failure import LaunchError
from launcher.layout import Layout
from launcher.processes import Supervisor
from launcher.recipe import Installation
from launcher.terminal import Progress


def note(path: Path, word: str, *, code: int = 0) -> Command:
    """A command that appends a word to a file and ends with ``code``."""
    script = f"import sys; open({str(path)!r}, 'a').write({word + ' '!r}); sys.exit({code})"
    return Command(f"note {word}", (sys.executable, "-c", script))


@pytest.fixture
def diary(tmp_path: Path) -> Path:
    """The file that the commands of these tests write to."""
    return tmp_path / "diary"


@pytest.fixture
def installation(tmp_path: Path, diary: Path) -> Installation:
    """An environment that is already made, so that only its stamp decides what runs."""
    directory = tmp_path / "environment"
    (directory / "bin").mkdir(parents=True)
    (directory / "bin" / "python").symlink_to(sys.executable)
    return Installation(
        name="test",
        directory=directory,
        packages=(note(diary, "packages"),),
        project=note(diary, "project"),
        digest="one",
        project_digest="first",
    )


def create(installation: Installation, *, clear: bool) -> Command:
    """A creation that takes no seconds: it notes whether it was to clear."""
    return note(installation.directory.parent / "diary", "clear" if clear else "keep")


def ensure(installation: Installation, root: Path) -> str:
    """Ensure it with a launcher of its own and return what a person saw."""
    layout, out = Layout(root), io.StringIO()
    progress = Progress(out)
    with Supervisor(progress, environment=os.environ, directory=root) as supervisor:
        installer = Installer(layout, supervisor, progress, creation=create)
        with installer.exclusive():
            installer.ensure(installation)
    return out.getvalue()


def test_an_installation_is_made_once(installation: Installation, diary: Path, tmp_path: Path) -> None:
    """The first run makes the environment and tells so; the second finds the stamp, runs nothing and says nothing."""
    assert "note packages: done" in ensure(installation, tmp_path)
    assert ensure(installation, tmp_path) == ""
    assert diary.read_text().split() == ["clear", "packages", "project"]


def test_a_changed_lock_installs_again_and_a_changed_project_only_itself(
    installation: Installation, diary: Path, tmp_path: Path
) -> None:
    """Other pins repeat everything; another pyproject.toml repeats our own package's installation alone."""
    ensure(installation, tmp_path)
    ensure(replace(installation, project_digest="second"), tmp_path)
    assert diary.read_text().split() == ["clear", "packages", "project", "project"]
    ensure(replace(installation, digest="two", project_digest="second"), tmp_path)
    assert diary.read_text().split()[4:] == ["clear", "packages", "project"]


def test_an_installation_that_failed_is_repeated(installation: Installation, diary: Path, tmp_path: Path) -> None:
    """A failure leaves no stamp, names the step and the log, and the next run starts over."""
    with pytest.raises(LaunchError, match="note broken failed: exit code 7") as caught:
        ensure(replace(installation, packages=(note(diary, "broken", code=7),)), tmp_path)
    assert caught.value.log == Layout(tmp_path).log("install")
    assert not (installation.directory / STAMP).exists()
    ensure(installation, tmp_path)
    assert diary.read_text().split() == ["clear", "broken", "clear", "packages", "project"]


def test_a_fallback_runs_only_when_the_first_failed(installation: Installation, diary: Path, tmp_path: Path) -> None:
    """The second source of a package is asked when the first has not got it, and not otherwise."""
    there = replace(note(diary, "first"), fallback=note(diary, "never"))
    missing = replace(note(diary, "missing", code=1), fallback=note(diary, "second"))
    ensure(replace(installation, packages=(there, missing)), tmp_path)
    assert diary.read_text().split() == ["clear", "first", "missing", "second", "project"]


def test_an_environment_that_has_more_is_left_alone(installation: Installation, diary: Path, tmp_path: Path) -> None:
    """After ``deploy/test`` the environment serves ``deploy/up`` as it is; the other way round it grows in place."""
    ensure(installation, tmp_path)
    development = replace(installation, digest="development", covers=frozenset({"one"}))
    ensure(development, tmp_path)
    ensure(installation, tmp_path)
    assert diary.read_text().split() == ["clear", "packages", "project", "keep", "packages", "project"]


def test_a_stamp_that_makes_no_sense_counts_as_none(installation: Installation, diary: Path, tmp_path: Path) -> None:
    """A stamp cut short, or written by something else, is not believed."""
    for content in ("", "[]", json.dumps({"packages": "one"}), "\x00"):
        (installation.directory / STAMP).write_text(content)
        diary.write_text("")
        ensure(installation, tmp_path)
        assert diary.read_text().split() == ["clear", "packages", "project"], shlex.quote(content)
