"""The README's tour, pasted: every block marked as part of it runs as it stands against a real engine."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

pytestmark = pytest.mark.engine

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}
BLOCKS = re.findall(r"<!-- tour -->\n```(bash|python)\n(.*?)```", README, re.DOTALL)
ADDRESS = "http://127.0.0.1:8000"


def run(gateway_url: str, folder: Path, language: str, block: str) -> str:
    """Run a block against the gateway under test, in an empty folder, and return what it printed."""
    assert ADDRESS in block
    text = block.replace(ADDRESS, gateway_url).replace(".venv/bin/reprise", f"{sys.executable} -m app.cli")
    argv = ["bash", "-euo", "pipefail", "-c", text] if language == "bash" else [sys.executable, "-c", text]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=180, check=False, cwd=folder, env=ENVIRONMENT)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_tour(gateway_url: str, tmp_path: Path) -> None:
    """Isolation with its proof, modes in body and suffix, the openai package, a verified stream, a plan, a receipt."""
    printed = [run(gateway_url, tmp_path, language, block) for language, block in BLOCKS]

    assert [language for language, _ in BLOCKS] == ["bash", "bash", "python", "bash", "bash", "bash", "bash"]
    assert "x-determinism-mode: isolated" in printed[0]
    assert "x-determinism-coresident-peak: 1" in printed[0]
    assert printed[1].count('"text":') == 2
    assert [line.split()[0] for line in printed[2].splitlines()] == ["1", "1", "1"]
    assert "match" in printed[2]
    assert '"rollbacks":' in printed[3]
    assert printed[3].endswith("data: [DONE]\n\n")
    assert 'mode="isolated",model="smollm2",origin="client",verdict="match"' in printed[4]
    assert json.loads(printed[5])["would_be_served"] is True
    assert printed[6].startswith("valid")
    assert "co-resident peak 1" in printed[6]


def test_the_fingerprint_is_the_posture(gateway_url: str) -> None:
    """`system_fingerprint` in the body and the posture header are the same digest, and the readiness page shows it."""
    body = {"model": "smollm2", "prompt": "x", "max_tokens": 1}
    with httpx.Client(base_url=gateway_url, trust_env=False, timeout=60) as client:
        answer = client.post("/v1/completions", json=body).raise_for_status()
        ready = client.get("/readyz").raise_for_status().json()

    digest = answer.headers["x-determinism-posture"]
    assert digest == answer.json()["system_fingerprint"] == ready["replicas"][0]["posture"]
    assert ready["replicas"][0]["mitigations"]["fixed_kv_split"].startswith("yes")
    assert ready["replicas"][0]["mitigations"]["batch_invariance"].startswith("no")


def test_invariant_fails_closed(gateway_url: str) -> None:
    """A CPU engine has no batch-invariant kernels, so the mode is refused with the reason, and sent nowhere."""
    body = {"model": "smollm2", "prompt": "x", "max_tokens": 1, "determinism": "invariant"}
    with httpx.Client(base_url=gateway_url, trust_env=False, timeout=60) as client:
        answer = client.post("/v1/completions", json=body)

    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "determinism_unavailable")
    assert "'batch_invariance' is unavailable" in answer.json()["error"]["message"]
