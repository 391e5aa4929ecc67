"""`reprise lab` in the engine's environment: PyTorch's switches and PyTorch's kernels, as they are there."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.engine

ROOT = Path(__file__).resolve().parents[2]

AFTERWARDS = """
import argparse, torch

from app.lab.framework import DEMONSTRATION

def state():
    return (
        torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.utils.deterministic.fill_uninitialized_memory, torch.backends.cudnn.deterministic,
        torch.backends.cudnn.benchmark, torch.get_num_threads(), torch.get_rng_state().tolist(),
    )

torch.use_deterministic_algorithms(True, warn_only=True)
torch.utils.deterministic.fill_uninitialized_memory = False
torch.backends.cudnn.benchmark = True
torch.set_num_threads(1)
before = state()
DEMONSTRATION.run(argparse.Namespace(runs=2, elements=1000, threads=2, max_batch=2, seed=0))
print("as before" if state() == before else f"{before} became {state()}")
"""


def lab(engine_python: str, *words: str) -> subprocess.CompletedProcess[str]:
    """`reprise lab` there, with these words after it."""
    return run(engine_python, "-m", "app.cli", "lab", *words)


def run(*argv: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=300, check=False)


def document(done: subprocess.CompletedProcess[str]) -> Any:
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


def test_the_switches_keep_their_promises_and_no_others(engine_python: str) -> None:
    """The switch refuses, fills and ends the race; the batch, the threads and missing seeds still act."""
    words = ("framework", "--json", "--runs", "40", "--elements", "1048576", "--threads", "2")
    data = document(lab(engine_python, *words))["data"]
    off, warn, on = (data["by_setting"][name] for name in ("off", "warn_only", "on"))

    assert [one["put"] for one in (off, warn, on)] == ["ran", "ran, with a warning", "refused"]
    assert "put_ does not have a deterministic implementation" in data["refusal"]
    assert off["fresh_nan_share"] < 1.0
    assert data["unfilled_nan_share"] < 1.0
    assert on["fresh_nan_share"] == warn["fresh_nan_share"] == 1.0
    assert on["sum_results"] == warn["sum_results"] == 1
    # Two threads that never run at the same time do not race.
    assert off["sum_results"] > 1 or os.cpu_count() == 1
    assert on["batch_sizes_that_differ"] > 0
    assert any(gap > 0 for gap in on["thread_gaps"])
    assert on["unseeded_repeats"] is False
    assert on["row_differences"][0] == 0.0


def test_torch_is_left_as_it_was(engine_python: str) -> None:
    """Whatever was set before a run is set after it: switch, filling, flags, threads and random numbers."""
    done = run(engine_python, "-c", AFTERWARDS)
    assert (done.stdout.strip(), done.returncode) == ("as before", 0), done.stderr[-2000:]


def test_a_batch_is_surveyed_with_the_engines_own_kernels(engine_python: str) -> None:
    """Batch size 1 repeats itself, what is reported fits together, and the float32 product depends on its batch."""
    words = ("batch", "--json", "--library", "torch", "--max-batch", "40")
    data = document(lab(engine_python, *words))["data"]
    surveys = {(one["operation"], one["dtype"]): one for one in data["operations"]}

    assert data["libraries"][0].startswith("PyTorch ")
    assert {dtype for _, dtype in surveys} == {"float32", "bfloat16"}
    for one in surveys.values():
        differ = [size for size, changed in enumerate(one["values_changed_by_batch_size"], 1) if changed]
        assert one["batch_sizes_that_differ"] == differ
        assert 1 not in differ
    assert surveys["matrix product", "float32"]["batch_sizes_that_differ"]


def test_the_list_and_the_text_need_nothing_that_is_not_there(engine_python: str) -> None:
    """The frame and this demonstration work without the packages of the extras `lab` and `plot`."""
    assert "reprise lab framework" in lab(engine_python).stdout
    printed = lab(engine_python, "framework", "--runs", "2", "--elements", "1000", "--max-batch", "2")
    assert printed.returncode == 0, printed.stderr[-2000:]
    assert "What each switch promises" in printed.stdout
