"""`reprise replay` and `reprise compare` against a gateway before a real engine."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from app.probe.prompts import BUILT_IN

pytestmark = pytest.mark.engine

ROOT = Path(__file__).parents[2]
SECONDS = 420
TOKENS = 40
REPEATS = 3
COUNT = len(BUILT_IN) * REPEATS


def reprise(*words: str, status: int = 0) -> str:
    """Run the command as a person would; its exit status must be the given one."""
    done = subprocess.run(
        [sys.executable, "-m", "app.cli", *words],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == status, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def files(gateway_url: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A small file replayed three times: twice isolated, and once in standard, where its requests share batches."""
    folder = tmp_path_factory.mktemp("runs")
    asked = folder / "requests.jsonl"
    bodies = [
        {"model": "smollm2", "messages": [{"role": "user", "content": prompt}], "temperature": 0, "max_tokens": TOKENS}
        for prompt in BUILT_IN * REPEATS
    ]
    asked.write_text("".join(json.dumps({"path": "/v1/chat/completions", "request": body}) + "\n" for body in bodies))
    found = {}
    for name, mode, concurrency in (("one", "isolated", "2"), ("two", "isolated", "4"), ("mixed", "standard", "12")):
        found[name] = str(folder / f"{name}.jsonl")
        words = ("--url", gateway_url, "--mode", mode, "--concurrency", concurrency, "--run", f"compare-{name}")
        reprise("replay", str(asked), *words, "--out", found[name])
    return found


def compared(*words: str, status: int = 0) -> dict[str, Any]:
    """The document of a comparison."""
    document: dict[str, Any] = json.loads(reprise("compare", *words, "--json", "-", status=status))
    assert document["exit_code"] == status
    assert document["pairs"].items() >= {"matched": COUNT, "compared": COUNT, "requests": len(BUILT_IN)}.items()
    return document


def test_isolated_replays_agree_verbatim(files: dict[str, str]) -> None:
    """Two replays, each request alone on the engine, are equal to the last one."""
    document = compared(files["one"], files["two"], "--fail-on-difference")

    assert document["equal"]
    assert document["agree"] == COUNT
    assert document["a"]["modes"] == document["b"]["modes"] == {"isolated": COUNT}
    assert document["a"]["postures"] == document["b"]["postures"]
    for name in ("one", "two"):
        facts = [json.loads(line)["determinism"] for line in Path(files[name]).read_text().splitlines()]
        assert {each["coresident-peak"] for each in facts} == {"1"}


def test_a_standard_replay_under_load_is_compared(files: dict[str, str], tmp_path: Path) -> None:
    """Its requests shared batches: what differs has its fork at a token, with the margin there, and a page to read."""
    page = tmp_path / "page.html"
    document = compared(files["one"], files["mixed"], "--html", str(page), "--extract", r"\d+")

    assert document["b"]["modes"] == {"standard": COUNT}
    assert document["diverged"]["k"] == len(document["differences"]) > 0
    for pair in document["differences"]:
        assert 0 <= pair["fork_tokens"] < TOKENS
        assert pair["margin_nats"] >= 0
        assert 0 <= pair["edit_similarity"] < 1
    assert page.read_text().count("<details") == document["diverged"]["k"]


def test_the_same_runs_are_compared_from_the_ledger(files: dict[str, str], gateway_url: str) -> None:
    """The ledger's digests say what the files say: of two isolated runs, and of an isolated and a standard one."""
    alike = compared("run:compare-one", "run:compare-two", "--url", gateway_url)
    apart = compared("run:compare-one", "run:compare-mixed", "--url", gateway_url)

    assert alike["equal"]
    assert apart["agree"] == compared(files["one"], files["mixed"])["agree"]
    assert apart["b"]["modes"] == {"standard": COUNT}
