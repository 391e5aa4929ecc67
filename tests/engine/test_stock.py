"""A stock vLLM, without guard or plugin: the gate runs in the gateway, with drain proof from the engine's metrics."""

import os
from collections.abc import Iterator
from pathlib import Path

import anyio
import httpx
import pytest

from tests.engine.conftest import free_port, running, wait_for
from tests.support.running import running_gateway

pytestmark = [pytest.mark.anyio, pytest.mark.engine]

PATIENCE = 180.0
PROMPT = "The old lighthouse keeper wrote in his diary that"


@pytest.fixture(scope="module")
def stock_url(engine_python: str, demo_model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An engine as anybody starts it."""
    port = free_port()
    argv = [engine_python, "-m", "vllm.entrypoints.openai.api_server", "--model", str(demo_model_dir)]
    argv += ["--served-model-name", "smollm2", "--host", "127.0.0.1", "--port", str(port), "--enforce-eager"]
    url = f"http://127.0.0.1:{port}"
    pins = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "KMP_BLOCKTIME": "1"}
    assert "REPRISE_TORCH_DETERMINISTIC" not in os.environ
    with running(argv, tmp_path_factory.mktemp("stock") / "log", **pins) as check:
        wait_for(f"{url}/health", {}, check)
        yield url


async def test_isolation_holds_without_a_guard(stock_url: str, tmp_path: Path) -> None:
    """Isolated repeats under load all equal the answer given alone, and each was alone by the gateway's count."""
    body = {"model": "smollm2", "prompt": PROMPT, "max_tokens": 32, "temperature": 0, "ignore_eos": True}
    isolated: list[httpx.Response] = []

    async with running_gateway(tmp_path, stock_url, probe_interval=1) as gateway:
        url = f"http://127.0.0.1:{gateway.port}"
        async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=PATIENCE) as client:

            async def ask(mode: str, **more: object) -> httpx.Response:
                headers = {"x-determinism-mode": mode}
                answer = await client.post("/v1/completions", json={**body, **more}, headers=headers)
                return answer.raise_for_status()

            async def load(number: int) -> None:
                for turn in range(3):
                    await ask("standard", prompt=f"Story {number} of {turn}:", max_tokens=24 + 4 * number)

            alone = await ask("isolated")
            async with anyio.create_task_group() as group:
                for number in range(6):
                    group.start_soon(load, number)
                isolated.extend([await ask("isolated") for _ in range(6)])

        ready = (await gateway.get("/readyz")).json()

    assert not ready["replicas"][0]["guarded"]
    assert {answer.json()["choices"][0]["text"] for answer in isolated} == {alone.json()["choices"][0]["text"]}
    assert {answer.headers["x-determinism-coresident-peak"] for answer in isolated} == {"1"}
    assert {answer.headers["x-determinism-verdict"] for answer in isolated} == {"match"}
