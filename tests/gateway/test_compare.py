"""`reprise replay` and `reprise compare` against a running gateway, and runs that live traffic was labelled with."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio.to_thread
import pytest

from app.cli import main
from tests.support.running import CHAT, RunningGateway, running_gateway, start
from tests.support.scripted import ScriptedVllm, guarded, unary_body

pytestmark = pytest.mark.anyio

KEY = "observatory-key"


@pytest.fixture(params=[True, False], ids=["texts", "digests"])
async def recording(
    request: pytest.FixtureRequest, upstream: ScriptedVllm, tmp_path: Path
) -> AsyncIterator[RunningGateway]:
    """A gateway with a ledger in SQLite, with and without texts, and a key before its observatory."""
    guarded(upstream)
    async with running_gateway(
        tmp_path, upstream.url, ledger=True, keep_texts=request.param, observatory_key=KEY
    ) as running:
        yield running


async def reprise(*words: str) -> int:
    """Run a command as a person would, beside the loop that serves."""
    return await anyio.to_thread.run_sync(main, words)


def body(name: str, text: str, **members: Any) -> dict[str, Any]:
    return {
        "model": "m",
        "temperature": 0,
        "messages": [{"role": "user", "content": name}],
        "x_script": {"text": text},
        **members,
    }


def line(asked: dict[str, Any], text: str) -> str:
    return json.dumps({"path": CHAT, "request": asked, "answer": json.loads(unary_body(text))})


async def test_a_replay_is_compared(
    gateway: RunningGateway, upstream: ScriptedVllm, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file with one answer of another kind: one flip, with the mode and posture that answered now."""
    file, again = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    file.write_text("\n".join(line(body(str(n), f"is {n}"), f"is {max(n, 1)}") for n in range(4)))
    url = f"http://127.0.0.1:{gateway.port}"

    assert await reprise("replay", str(file), "--url", url, "--mode", "isolated", "--out", str(again)) == 0
    assert await reprise("compare", str(file), str(again), "--extract", r"\d", "--json", "-") == 0
    document = json.loads(capsys.readouterr().out)

    assert (document["agree"], document["diverged"]["k"]) == (3, 1)
    assert document["differences"][0]["results"] == {"a": ["1"], "b": ["0"], "flipped": True}
    assert document["b"]["modes"] == {"isolated": 4}
    facts = [json.loads(each)["determinism"] for each in again.read_text().splitlines()]
    assert {each["coresident-peak"] for each in facts} == {"1"}
    assert {each.peak for each in upstream.received} == {1}


async def test_a_refused_mode_is_told_per_line(
    gateway: RunningGateway, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A gateway that cannot honour the mode refuses, and the comparison says so and compares nothing."""
    file = tmp_path / "a.jsonl"
    file.write_text(line(body("q", "x"), "x"))

    url = f"http://127.0.0.1:{gateway.port}"
    assert await reprise("compare", str(file), "--replay", "--url", url, "--mode", "invariant") == 2
    out = capsys.readouterr().out
    assert "B: HTTP 503" in out
    assert "batch_invariance" in out


async def test_two_runs_of_live_traffic_are_compared(
    recording: RunningGateway,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    upstream: ScriptedVllm,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What clients sent under two labels meets by cohort: with texts there is a fork, else the verdict alone."""
    asked = {"model": "m", "temperature": 0}
    await recording.post(asked, x_determinism_run="quiet")
    await recording.post(body("other", "same"), x_determinism_run="quiet")
    holding = start(recording.post({"model": "m", "x_script": {"hold": 1}}))
    await upstream.until(3)
    await recording.post(asked, x_determinism_run="busy")
    await recording.post(body("other", "same", stream=True), x_determinism_run="busy", x_determinism_mode="seeded")
    upstream.release.set()
    await holding

    page = tmp_path / "page.html"
    words = ["compare", "run:quiet", "run:busy", "--url", f"http://127.0.0.1:{recording.port}", "--key", KEY]
    assert await reprise(*words, "--json", "-", "--html", str(page), "--extract", "with|alone") == 0
    document = json.loads(capsys.readouterr().out)

    texts = "digests" not in request.node.callspec.id
    alone = {"one_to_several": 0, "left_over": {"a": 0, "b": 0}}
    assert document["pairs"] == {"matched": 2, "compared": 2, "requests": 2, **alone}
    assert (document["agree"], document["diverged"]["k"]) == (1, 1)
    assert document["a"]["modes"] == {"standard": 2}
    assert document["b"]["modes"] == {"standard": 1, "seeded": 1}
    assert document["a"]["postures"] == document["b"]["postures"] == {"p-1": 2}
    assert document["differences"][0]["fork_characters"] == (0 if texts else None)
    assert document["results"]["flipped"]["k"] == texts
    assert any("keeps no text" in note for note in document["notes"]) is not texts
    assert ("<mark>" in page.read_text()) is texts


async def test_what_the_observatory_refuses_is_told(
    recording: RunningGateway, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without its key, and for a run that nobody labelled."""
    await recording.post(body("q", "x"), x_determinism_run="here")
    words = ["compare", "run:here", "run:nowhere", "--url", f"http://127.0.0.1:{recording.port}"]

    assert await reprise(*words, "--key", "wrong") == 2
    assert "refuses the key" in capsys.readouterr().err
    assert await reprise(*words, "--key", KEY) == 2
    assert "run:nowhere: the ledger of" in capsys.readouterr().err
