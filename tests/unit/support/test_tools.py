"""Programs that pip does not bring are found, skipped, or demanded."""

import re
import sys
from pathlib import Path

import pytest

from tests.support import tools


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine that has no program at all, and demands none."""
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv(tools.REQUIRE, raising=False)
    return tmp_path


def program(path: Path) -> Path:
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def test_a_missing_tool_skips_and_names_its_package(nowhere: Path) -> None:
    """A person without the program reads which package has it."""
    with pytest.raises(pytest.skip.Exception, match=r"promtool is not installed \(Debian's package prometheus\)"):
        tools.tool("promtool")
    assert nowhere.exists()


def test_a_missing_tool_fails_where_it_is_demanded(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """CI says that everything is installed, so nothing is skipped there in silence."""
    monkeypatch.setenv(tools.REQUIRE, "1")
    with pytest.raises(pytest.fail.Exception, match="REPRISE_REQUIRE_TOOLS=1 says that it must be"):
        tools.tool("redis-server")
    assert nowhere.exists()


def test_a_tool_on_the_search_path_is_found(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program of the system is taken from the search path."""
    system = nowhere / "system"
    system.mkdir()
    monkeypatch.setenv("PATH", str(system))
    installed = program(system / "promtool")
    assert tools.tool("promtool") == installed


def test_a_tool_of_the_environment_comes_first(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pinned program beside this Python is preferred to whatever the system has."""
    system = nowhere / "system"
    system.mkdir()
    monkeypatch.setenv("PATH", str(system))
    program(system / "hadolint")
    pinned = program(nowhere / "hadolint")
    assert tools.tool("hadolint") == pinned


def test_only_declared_tools_can_be_asked_for() -> None:
    """A tool that is not in the list would be missing from what CI installs."""
    with pytest.raises(KeyError):
        tools.find("sh")


def test_ci_installs_every_tool_of_debian() -> None:
    """What CI demands it has installed: the list in ``.ci/run`` holds each package with the program it brings."""
    script = (Path(__file__).resolve().parents[3] / ".ci" / "run").read_text()
    wanted = re.search(r"^wanted=\((.*)\)$", script, re.MULTILINE)
    assert wanted is not None
    installed = {pair.split(":")[0] for pair in wanted[1].split()}
    declared = {text.rpartition(" ")[2] for text in tools.PACKAGES.values() if text.startswith("Debian's package ")}
    assert installed == declared
    assert "export REPRISE_REQUIRE_TOOLS=1\n" in script
