"""Importing any module of ours does nothing but define things. The contracts between packages are import-linter's."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MODULES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for path in (ROOT / "app").rglob("*.py")
)
IMPORT_ALL = """
import importlib, json, os, signal, sys, threading

def world():
    return {
        "threads": threading.active_count(),
        "sockets": sum(os.readlink(f"/proc/self/fd/{fd}").startswith("socket:") for fd in os.listdir("/proc/self/fd")
                       if os.path.lexists(f"/proc/self/fd/{fd}")),
        "handlers": [str(signal.getsignal(number)) for number in sorted(signal.valid_signals())],
        "children": open(f"/proc/self/task/{os.getpid()}/children").read(),
        "environment": dict(os.environ),
        "directory": sorted(os.listdir()),
    }

before = world()
for name in json.loads(sys.argv[1]):
    importlib.import_module(name)
after = world()
json.dump({"changed": {key: [before[key], after[key]] for key in before if before[key] != after[key]},
           "modules": sorted(sys.modules)}, sys.stdout)
"""


@pytest.mark.parametrize("module", ["all of them", *MODULES])
def test_importing_has_no_effect(module: str, tmp_path: Path) -> None:
    """No thread, socket, signal handler, child, variable or file comes from an import; vLLM and torch stay out."""
    names = MODULES if module == "all of them" else [module]
    done = subprocess.run(
        [sys.executable, "-I", "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{IMPORT_ALL}", json.dumps(names)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    result = json.loads(done.stdout)
    assert result["changed"] == {}
    assert not {"vllm", "torch", "transformers"} & {name.partition(".")[0] for name in result["modules"]}


@pytest.mark.parametrize(
    "module",
    [
        *("app.engine.asgi", "app.engine.guard", "app.engine.observer", "app.engine.plugin"),
        *("app.engine.demo_model", "app.cli"),
    ],
)
def test_what_runs_beside_vllm_needs_the_standard_library_alone(module: str) -> None:
    """The wheel is installed into engines with ``--no-deps``: these modules load where nothing else is installed."""
    bare = f"import sys; sys.path.insert(0, {str(ROOT)!r}); import {module}"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", bare], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
