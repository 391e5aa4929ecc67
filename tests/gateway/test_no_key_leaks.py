"""No key is ever in anything that the gateway shows, logs, answers or keeps."""

import logging
import re
from pathlib import Path

import httpx
import pytest

from tests.support.running import running_gateway
from tests.support.scripted import ScriptedVllm, guarded

pytestmark = pytest.mark.anyio

CALLER, ENGINE, GUARD, PAGE = (f"{name}-key-0123456789" for name in ("caller", "engine", "guard", "page"))
SECRETS = re.compile(rb"(?:caller|engine|guard|page)-key-0123456789")
PAGES = (
    *("/readyz", "/healthz", "/metrics", "/v1/models", "/openapi.json", "/docs", "/observatory"),
    *("/observatory/api/state", "/observatory/api/timeline", "/observatory/api/cohorts", "/observatory/api/runs"),
)


def kept(folder: Path) -> dict[str, bytes]:
    """Every file below a folder."""
    return {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


async def used(base: str) -> list[bytes]:
    """What a gateway answers to requests of several modes, to questions about them, and to its pages."""
    seen: list[bytes] = []
    headers = {"authorization": f"Bearer {CALLER}", "x-determinism-guard-key": GUARD}
    async with httpx.AsyncClient(base_url=base, headers=headers, trust_env=False) as client:
        for number, mode in enumerate(["standard", "isolated", "isolated", "verified", "nonsense"]):
            body = {"model": "m", "determinism": mode, "x_script": {"text": f"answer {number}"}}
            answer = await client.post("/v1/chat/completions", json=body)
            receipt = await client.get(f"/v1/determinism/receipts/{answer.headers['x-determinism-request']}")
            seen += [answer.content, repr(answer.headers).encode(), receipt.content]
        plan = await client.post("/v1/determinism/plan", json={"model": "m@isolated", "messages": []})
        refused = await client.get("/observatory/api/state")
        assert refused.status_code == 401
        seen += [plan.content, refused.content]
        for page in PAGES:
            shown = await client.get(page, auth=("anyone", PAGE))
            assert shown.status_code == 200, page
            seen.append(shown.content)
    return seen


async def test_no_key_is_anywhere(upstream: ScriptedVllm, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """After answers, refusals, divergences and receipts: pages, headers, bodies, the log and every file."""
    guarded(upstream)
    with caplog.at_level(logging.DEBUG):
        async with running_gateway(
            tmp_path,
            upstream.url,
            ledger=True,
            keep_texts=True,
            upstream_api_key=ENGINE,
            guard_key=GUARD,
            observatory_key=PAGE,
        ) as gateway:
            seen = await used(f"http://127.0.0.1:{gateway.port}")
    files = kept(tmp_path)
    assert upstream.received[0].headers["authorization"] == f"Bearer {ENGINE}"
    assert "ledger.sqlite" in files
    assert caplog.text
    seen += [*files.values(), caplog.text.encode()]
    assert not [each[:300] for each in seen if SECRETS.search(each)]
