"""A real vLLM that runs one sequence at a time counts as isolated by construction, and its posture shows it."""

import secrets
import sys
from collections.abc import Iterator
from pathlib import Path

import anyio
import httpx
import pytest

from tests.engine.conftest import Engine, free_port, running, wait_for

pytestmark = [pytest.mark.anyio, pytest.mark.engine]


@pytest.fixture
def serial_gateway(engine_python: str, demo_model_dir: Path, tmp_path: Path) -> Iterator[str]:
    """A gateway before an engine that was launched with ``--max-num-seqs 1``."""
    key, port, own_port = secrets.token_hex(16), free_port(), free_port()
    argv = [engine_python, "-m", "app.cli", "engine", "--profile", "deterministic", "--target", "cpu"]
    argv += ["--model", str(demo_model_dir), "--served-model-name", "smollm2", "--port", str(port)]
    engine = Engine(f"http://127.0.0.1:{port}", "smollm2", key)
    serve = [sys.executable, "-m", "app.cli", "serve", "--port", str(own_port), "--upstream", engine.url]
    url = f"http://127.0.0.1:{own_port}"
    with running([*argv, "--", "--max-num-seqs", "1"], tmp_path / "log", REPRISE_GUARD_KEY=key) as check:
        wait_for(f"{engine.url}/reprise/posture", {"x-determinism-guard-key": key}, check)
        with running([*serve, "--state-dir", str(tmp_path)], tmp_path / "gateway", REPRISE_GUARD_KEY=key) as alive:
            wait_for(f"{url}/readyz", {}, alive)
            yield url


async def test_everybody_is_alone(serial_gateway: str) -> None:
    """Ordinary and isolated requests together: each has a peak of 1, and isolated ones repeat."""
    body = {"model": "smollm2", "prompt": "The sea is", "max_tokens": 16, "temperature": 0, "ignore_eos": True}
    answers: dict[str, list[httpx.Response]] = {"standard": [], "isolated": []}
    async with httpx.AsyncClient(trust_env=False, timeout=120, base_url=serial_gateway) as client:

        async def ask(mode: str) -> None:
            answer = await client.post("/v1/completions", json={**body, "determinism": mode})
            answers[mode].append(answer.raise_for_status())

        async with anyio.create_task_group() as group:
            for mode in ("standard", "isolated") * 4:
                group.start_soon(ask, mode)
        readiness = (await client.get("/readyz")).json()
    reason = readiness["replicas"][0]["mitigations"]["batch_isolation"]
    assert reason == "yes: by construction: the engine runs one sequence at a time"
    everybody = [*answers["standard"], *answers["isolated"]]
    assert {answer.headers["x-determinism-coresident-peak"] for answer in everybody} == {"1"}
    assert len({answer.json()["choices"][0]["text"] for answer in everybody}) == 1
