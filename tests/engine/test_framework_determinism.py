"""Framework determinism: what the plugin does to a real torch, and what the live worker says it has."""

import json
import os
import subprocess
from pathlib import Path
from typing import Protocol

import httpx
import pytest

from app.engine.plugin import TORCH_DETERMINISTIC

pytestmark = pytest.mark.engine

REPOSITORY = Path(__file__).resolve().parents[2]

OPERATION = """
import json, os, warnings

from app.engine.plugin import register

register()
register()
import torch

with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    try:
        # The order of these two writes to one place is the scheduler's choice; torch has no ordered form of it.
        torch.zeros(3).put_(torch.tensor([1, 1]), torch.tensor([1.0, 2.0]), accumulate=False)
        outcome = "ran"
    except RuntimeError as error:
        outcome = "refused" if "deterministic" in str(error) else str(error)
print(json.dumps({
    "outcome": outcome,
    "warned": any("deterministic" in str(warning.message) for warning in caught),
    "fresh_memory_is_nan": bool(torch.empty(1 << 12).isnan().all()),
    "cudnn": [torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark],
    "cublas": os.environ.get("CUBLAS_WORKSPACE_CONFIG"),
}))
"""


class Engine(Protocol):
    """The `engine` fixture, launched with the deterministic profile."""

    url: str
    guard_key: str
    model: str


def run_operation(engine_python: str, switch: str) -> subprocess.CompletedProcess[str]:
    """Run an operation without a deterministic form in the engine's environment."""
    environ = {name: value for name, value in os.environ.items() if name != "CUBLAS_WORKSPACE_CONFIG"}
    environ |= {TORCH_DETERMINISTIC: switch, "PYTHONPATH": str(REPOSITORY)}
    return subprocess.run(
        [engine_python, "-c", OPERATION], env=environ, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.parametrize(
    ("switch", "outcome", "warned"), [("off", "ran", False), ("on", "refused", False), ("warn_only", "ran", True)]
)
def test_the_switch_decides_what_torch_refuses(engine_python: str, switch: str, outcome: str, *, warned: bool) -> None:
    """An operation without a deterministic form runs, is refused or warns; memory, cuDNN and cuBLAS are pinned."""
    done = run_operation(engine_python, switch)
    assert done.returncode == 0, done.stderr[-2000:]
    seen = json.loads(done.stdout)
    pinned = switch != "off"
    assert (seen["outcome"], seen["warned"]) == (outcome, warned)
    assert seen["cudnn"] == [pinned, False]
    assert seen["cublas"] == (":4096:8" if pinned else None)
    assert seen["fresh_memory_is_nan"] is pinned


def test_a_switch_that_is_no_word_stops_the_engine(engine_python: str) -> None:
    """An engine must not start with less determinism than its operator thinks."""
    done = run_operation(engine_python, "yes please")
    assert done.returncode != 0
    assert f"{TORCH_DETERMINISTIC} must be on, warn_only or off" in done.stderr


def test_the_live_worker_has_what_the_deterministic_profile_asks_for(engine: Engine) -> None:
    """Posture is the worker's own word: eager, fixed split, no prefix cache, torch deterministic, nothing unknown."""
    headers = {"x-determinism-guard-key": engine.guard_key}
    page = httpx.get(f"{engine.url}/reprise/posture", headers=headers).raise_for_status().json()
    posture, provides = page["posture"], page["provides"]
    assert posture["torch_determinism"] == "on"
    assert posture["torch_fills_memory"] is True
    assert (posture["cudnn_deterministic"], posture["cudnn_benchmark"]) == (True, False)
    assert (posture["eager"], posture["prefix_caching"], posture["seed"]) == (True, False, 0)
    assert posture["threads"] >= 1
    assert posture["weights_digest"] is not None
    assert [name for name, value in posture.items() if value is None] == []
    held = {name for name, provision in provides.items() if provision["held"]}
    assert {"batch_isolation", "eager", "fixed_kv_split", "framework_determinism"} <= held
    if posture["device"] == "cpu":
        assert provides["batch_invariance"]["held"] is False
