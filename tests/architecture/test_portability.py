"""What is in the repository works anywhere: no path, host or secret of the machine that it was written on."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TRACKED = sorted(
    path
    for name in subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],  # noqa: S607 - git is wherever it is
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split("\0")
    if name and (path := ROOT / name).is_file()
)
MACHINE_PATH = re.compile(r"(?<![\w.$}/-])/(?:work|root|tmp|opt|home/(?!vllm\b)\w+|Users)(?:/|\b)")
HOSTS = {"download.pytorch.org"}  # public; deploy/up asks it where the configured index has no CPU build of torch
PINS = ("*.lock", "requirements*.txt", "requirements*.in", "torch-cpu.txt", "pyproject.toml", "Dockerfile")


def texts() -> list[tuple[str, str]]:
    """Every tracked text file by name, this one left out: it has to spell what it forbids."""
    return [
        (str(path.relative_to(ROOT)), path.read_text(errors="replace")) for path in TRACKED if path != Path(__file__)
    ]


def test_no_path_of_a_machine_is_tracked() -> None:
    """No file names a place outside the repository that only some machine has."""
    found = [
        f"{name}:{number}: {line.strip()}"
        for name, text in texts()
        for number, line in enumerate(text.splitlines(), 1)
        if MACHINE_PATH.search(line)
    ]
    assert not found


def test_no_package_index_is_tracked() -> None:
    """Which index packages come from is the machine's own business; the pins name none, PyTorch's public one aside."""
    for name, text in texts():
        assert not re.search(r"file://|--(?:index-url|find-links|trusted-host)\b", text), name
        assert set(re.findall(r"--extra-index-url[\"', =]+https?://([^/\s\"']+)", text)) <= HOSTS, name
    for path in {path for pattern in PINS for path in ROOT.rglob(pattern) if path in TRACKED}:
        assert not re.findall(r"https?://(?!127\.0\.0\.1)[^/\s\"']+", path.read_text()), path


@pytest.mark.parametrize("pattern", [r"\b(?:sk-|hf_)[A-Za-z0-9]{20,}", r"-----BEGIN [A-Z ]*PRIVATE KEY"])
def test_no_secret_is_tracked(pattern: str) -> None:
    """Nothing looks like a key."""
    assert not [name for name, text in texts() if re.search(pattern, text)]
