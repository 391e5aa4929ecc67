"""POST /v1/determinism/plan: what would happen, and that nothing does."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.running import RunningGateway, running_gateway
from tests.support.scripted import ScriptedVllm, guarded

pytestmark = pytest.mark.anyio

PLAN = "/v1/determinism/plan"


async def test_it_tells_and_sends_nothing(upstream: ScriptedVllm, tmp_path: Path) -> None:
    """Mitigations, edits, pool, replica and wait of a request that a guarded replica would serve alone."""
    guarded(upstream, gate={"expected_wait_exclusive": 7.5, "exclusive_run_seconds": 2.5})
    async with running_gateway(tmp_path, upstream.url, guard_key="k") as gateway:
        answer = await gateway.post({"model": "m@isolated", "messages": [], "temperature": 0}, PLAN)
        plan = answer.json()
        pools = (await gateway.get("/readyz")).json()["pools"]

    assert answer.status == 200
    assert (plan["path"], plan["model"], plan["mode"]) == ("/v1/chat/completions", "m", "isolated")
    assert plan["admission"] == "exclusive"
    assert {each["mitigation"]: each["available"] for each in plan["mitigations"]} == dict.fromkeys(
        ["batch_isolation", "cache_bypass", "pinned_seed"], True
    )
    assert plan["edits"]["changed"] == ["cache_salt", "model", "seed"]
    assert isinstance(plan["edits"]["seed"], int)
    assert (plan["posture"], plan["expected_wait_seconds"], plan["would_be_served"]) == ("p-1", 7.5, True)
    assert (plan["replica"], plan["error"]) == (upstream.url.removeprefix("http://"), None)
    assert upstream.received == []
    assert pools == []


async def test_what_is_unavailable_is_told_with_the_reason(gateway: RunningGateway) -> None:
    """200 all the same: the question was answered; the error is the one that the request would get."""
    answer = await gateway.post({"model": "m", "prompt": "x"}, PLAN, x_determinism_mode="hardened")
    plan: dict[str, Any] = answer.json()

    assert (answer.status, plan["path"], plan["would_be_served"]) == (200, "/v1/completions", False)
    assert plan["error"]["code"] == "determinism_unavailable"
    by_name = {each["mitigation"]: each for each in plan["mitigations"]}
    assert by_name["batch_isolation"]["available"] is True
    assert (by_name["eager"]["available"], bool(by_name["eager"]["reason"])) == (False, True)
    assert plan["replica"] is None
    assert "eager" in plan["replicas"][0]["missing"]


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        (b"nonsense", 400, None),
        (b'{"model":"m","determinism":"strict"}', 400, "determinism"),
        (b'{"model":"m","priority":1.5}', 400, "priority"),
        (b'{"model":"nobody"}', 404, "model"),
        (b'{"model":"m","determinism":{"mode":"verified","window":0}}', 400, "determinism.window"),
        (b'{"model":"m","x":"' + b"x" * 10_000 + b'"}', 413, None),
    ],
)
async def test_a_bad_body_is_the_same_error_as_on_the_way(
    gateway: RunningGateway, body: bytes, status: int, param: str | None
) -> None:
    """In OpenAI's shape, naming the field."""
    answer = await gateway.post(body, PLAN)
    assert (answer.status, answer.error["param"]) == (status, param)


async def test_headers_are_read_as_on_the_way(gateway: RunningGateway) -> None:
    """What a generating path would refuse by its head is refused here too."""
    unknown = await gateway.post({"model": "m"}, PLAN, x_determinism_strictness="11")
    compressed = await gateway.post({"model": "m"}, PLAN, content_encoding="gzip")
    assert (unknown.status, unknown.error["code"]) == (400, "unknown_header")
    assert compressed.status == 415


async def test_a_body_that_never_ends_is_refused_in_time(gateway: RunningGateway) -> None:
    """408, like everywhere."""
    async with gateway.connection() as (reader, writer):
        writer.write(b"POST /v1/determinism/plan HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{")
        assert (await reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 408")


async def test_what_would_run_in_company_is_said_to(upstream: ScriptedVllm, tmp_path: Path) -> None:
    """Asked to report, a request whose isolation is missing would be admitted shared."""
    guarded(upstream, batch_isolation=False)
    wish = {"mode": "isolated", "on_unavailable": "report"}
    async with running_gateway(tmp_path, upstream.url, guard_key="k") as gateway:
        plan = (await gateway.post({"model": "m", "determinism": wish}, PLAN)).json()
    assert (plan["admission"], plan["would_be_served"]) == ("shared", True)


async def test_before_any_replica_was_ready(tmp_path: Path) -> None:
    """There is no prospect to tell of, and the error says why."""
    async with running_gateway(tmp_path, "http://127.0.0.1:9", wait=False) as gateway:
        plan = (await gateway.post({"model": "m"}, PLAN)).json()
    assert (plan["would_be_served"], plan["error"]["code"], plan["replicas"]) == (False, "not_ready", [])
