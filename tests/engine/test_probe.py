"""The probe against a gateway before a real engine: the product's claim, measured.

Small numbers, so that the file takes about two minutes on two cores. The engine runs the deterministic profile, because
`hardened` needs it; `standard` forks there all the same, since nothing in a profile of a CPU engine cures the batch.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.engine

ROOT = Path(__file__).parents[2]
SECONDS = 420
LOAD = ("--load", "12", "--tokens", "32")


def probe(url: str, *words: str) -> dict[str, Any]:
    """Run the command as a person would and read its document; its exit status must be the one it prints."""
    done = subprocess.run(
        [sys.executable, "-m", "app.cli", "probe", "--url", url, "--json", *words],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.stdout, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    assert done.returncode == document["exit_code"]
    assert all(line.startswith("reprise probe: ") for line in done.stderr.splitlines())
    return document


def row(document: dict[str, Any], mode: str) -> dict[str, Any]:
    """The figures of one mode."""
    return next(row for row in document["modes"] if row["mode"] == mode)


def assert_repeats_alone(row: dict[str, Any], compared: int) -> None:
    """Every repeat was compared, none diverged, and the guard saw each request alone on the engine."""
    assert (row["status"], row["reason"]) == ("measured", None)
    assert row["confirmed"]
    assert (row["diverged"]["k"], row["diverged"]["n"]) == (0, compared)
    assert set(row["distinct_outputs"]) == {1}
    peak = row["coresident_peak"]
    assert (peak["max"], peak["known"]) == (1, peak["answers"])


@pytest.fixture(scope="module")
def measured(gateway_url: str) -> dict[str, Any]:
    """One run over three modes, under one background load."""
    return probe(gateway_url, "--modes", "standard,isolated,hardened", "--repeats", "3", *LOAD)


def test_standard_diverges_under_load(measured: dict[str, Any]) -> None:
    """An ordinary request shares its batch, and its answer is not the one that it gets alone."""
    standard = row(measured, "standard")

    assert standard["status"] == "measured"
    assert standard["diverged"]["n"] == 12
    assert standard["diverged"]["k"] > 0
    assert max(standard["distinct_outputs"]) > 1
    assert standard["fork_tokens"]["first"] < 32
    assert standard["coresident_peak"]["max"] > 1


def test_isolated_repeats_under_load(measured: dict[str, Any]) -> None:
    """Under the same load, every isolated answer repeats, each alone on the engine."""
    assert_repeats_alone(row(measured, "isolated"), 12)


def test_hardened_repeats_under_load(measured: dict[str, Any]) -> None:
    """So does every hardened one; the deterministic profile has what it needs."""
    assert_repeats_alone(row(measured, "hardened"), 12)


def test_the_load_was_real(measured: dict[str, Any]) -> None:
    """The background was served throughout and nothing of it failed; no deterministic mode raised the exit status."""
    assert measured["load"]["failed"] == 0
    assert measured["load"]["requests"] > 12
    assert measured["exit_code"] == 0


def test_isolated_sampling_repeats_with_a_seed(gateway_url: str) -> None:
    """At temperature 0.8 a seeded isolated request repeats as well: isolation keeps the caller's temperature."""
    document = probe(
        gateway_url, "--modes", "isolated", "--repeats", "2", "--temperature", "0.8", "--seed", "20261130", *LOAD
    )

    assert_repeats_alone(row(document, "isolated"), 8)


def test_an_isolated_list_of_prompts_repeats_as_a_whole(gateway_url: str) -> None:
    """Four prompts in one request are a fixed batch: the list repeats, and no other request shares the engine."""
    document = probe(gateway_url, "--modes", "isolated", "--repeats", "4", "--together", *LOAD)

    assert_repeats_alone(row(document, "isolated"), 4)
