"""What each mode does to a request, and what the answer says of it."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from app.determinism.mode import MODE_MITIGATIONS, Mitigation, Mode
from tests.support.running import CHAT, RunningGateway, running_gateway, start
from tests.support.scripted import ScriptedVllm, guarded

pytestmark = pytest.mark.anyio

GUARD_KEY = "guard-key-of-this-test"


async def test_standard_forwards_the_callers_bytes(gateway: RunningGateway, upstream: ScriptedVllm) -> None:
    """White space, number spellings, escapes, unknown members and key order reach the engine untouched."""
    body = (
        b'{ "model":"m",\n "t":0.12345678901, "seed":9223372036854775807, "z":-0.0, "u":"\\u00e9", "x":{"b":1,"a":2} }'
    )

    answer = await gateway.post(body)

    assert body == upstream.received[0].body
    assert (answer.headers["x-determinism-mode"], answer.headers["x-determinism-applied"]) == ("standard", "")


async def test_the_body_loses_only_the_determinism_member(gateway: RunningGateway, upstream: ScriptedVllm) -> None:
    """Naming `standard` in the body changes nothing else."""
    await gateway.post(b'{"model":"m", "determinism":"standard" , "t":1.0e-7}')
    assert upstream.received[0].body == b'{"model":"m" , "t":1.0e-7}'


@pytest.mark.parametrize("way", ["header", "body", "suffix"])
async def test_seeded(gateway: RunningGateway, upstream: ScriptedVllm, way: str) -> None:
    """Tiny temperature and a pinned seed, whichever way the mode was named; both temperatures are reported."""
    members: dict[str, Any] = {"model": "m@seeded" if way == "suffix" else "m", "temperature": 0}
    if way == "body":
        members["determinism"] = {"mode": "seeded"}

    answer = await gateway.post(members, **({"x_determinism_mode": "seeded"} if way == "header" else {}))

    sent = json.loads(upstream.received[0].body)
    assert {"model", "temperature", "seed"} == sent.keys()
    assert (sent["model"], sent["temperature"]) == ("m", 1e-5)
    assert answer.headers["x-determinism-applied"] == "tiny_temperature,pinned_seed"
    assert answer.headers["x-determinism-temperature-requested"] == "0"
    assert answer.headers["x-determinism-temperature-effective"] == "0.01"


async def test_isolated_runs_alone(gateway: RunningGateway, upstream: ScriptedVllm) -> None:
    """Among ordinary requests an isolated one waits for them, runs alone, and holds the next ones back."""
    before = [start(gateway.post({"model": "m", "x_script": {"hold": 1}})) for _ in range(3)]
    await upstream.until(3)
    isolated = start(gateway.post({"model": "m", "determinism": "isolated", "temperature": 0.8}))
    upstream.release.set()
    answer = await isolated
    await asyncio.gather(*before)

    assert answer.json()["choices"][0]["message"]["content"] == "alone"
    assert answer.headers["x-determinism-coresident-peak"] == "1"
    assert answer.headers["x-determinism-applied"] == "batch_isolation,cache_bypass,pinned_seed"
    assert answer.headers["x-determinism-temperature-effective"] == "0.8"
    sent = json.loads(upstream.received[3].body)
    assert {"cache_salt", "seed", "temperature", "model", "return_token_ids"} == sent.keys()
    assert sent["temperature"] == 0.8
    assert upstream.received[3].peak == 1


async def test_isolated_waits_for_other_clients_of_a_stock_engine(upstream: ScriptedVllm, tmp_path: Path) -> None:
    """Without a guard, work that the engine's metrics show is waited for; a replica that stays busy is a 503."""
    async with running_gateway(tmp_path, upstream.url, drain_timeout=0.2) as gateway:
        upstream.waiting_elsewhere = 1
        refused = await gateway.post({"model": "m", "determinism": "isolated"})
        upstream.waiting_elsewhere = 0
        served = await gateway.post({"model": "m", "determinism": "isolated"})

    assert (refused.status, refused.error["code"]) == (503, "determinism_unavailable")
    assert "did not run empty" in refused.error["message"]
    assert served.status == 200
    assert len(upstream.received) == 1


async def test_a_mitigation_that_is_unknown_fails_closed(gateway: RunningGateway, upstream: ScriptedVllm) -> None:
    """A stock engine does not tell its posture, so `hardened` and `invariant` are refused by name and reason."""
    for mode, mitigation in (("hardened", "fixed_kv_split"), ("invariant", "batch_invariance")):
        answer = await gateway.post({"model": "m", "determinism": mode})
        assert (answer.status, answer.error["code"]) == (503, "determinism_unavailable")
        assert f"'{mitigation}' is unavailable" in answer.error["message"]
    assert upstream.received == []


async def test_report_serves_and_says_what_was_missing(gateway: RunningGateway, upstream: ScriptedVllm) -> None:
    """With on_unavailable=report the answer names what could not be honoured, and applies the rest."""
    answer = await gateway.post({"model": "m", "determinism": {"mode": "hardened", "on_unavailable": "report"}})

    assert answer.status == 200
    assert "fixed_kv_split" in answer.headers["x-determinism-unavailable"]
    assert "fixed_kv_split" not in answer.headers["x-determinism-applied"]
    assert "batch_isolation" in answer.headers["x-determinism-applied"]
    assert upstream.received[0].peak == 1


@pytest.mark.parametrize("mode", [Mode.ISOLATED, Mode.HARDENED, Mode.INVARIANT])
async def test_a_guarded_replica_gets_the_admission(upstream: ScriptedVllm, tmp_path: Path, mode: Mode) -> None:
    """Before a guard the gateway asks for the admission with its key and applies what the posture holds."""
    guarded(upstream)
    async with running_gateway(tmp_path, upstream.url, guard_key=GUARD_KEY) as gateway:
        answer = await gateway.post({"model": "m", "determinism": mode})

    wanted = MODE_MITIGATIONS[mode] | ({Mitigation.BATCH_INVARIANCE} if mode is Mode.HARDENED else set())
    headers = upstream.received[0].headers
    assert wanted == set(answer.headers["x-determinism-applied"].split(","))
    assert answer.headers["x-determinism-posture"] == "p-1"
    assert GUARD_KEY == headers["x-determinism-guard-key"] == upstream.probe_headers["x-determinism-guard-key"]
    assert ("shared" if mode is Mode.INVARIANT else "exclusive") == headers["x-determinism-admission"]


@pytest.mark.parametrize(
    ("word", "reason"),
    [
        ({}, "the guard did not confirm it"),
        ({"x-determinism-coresident-peak": "2", "x-determinism-posture": "p-1"}, "the guard counted 2 co-resident"),
        ({"x-determinism-posture": "p-1"}, "the guard counted None co-resident"),
        (
            {"x-determinism-coresident-peak": "1", "x-determinism-posture": "p-2"},
            "the engine that answered has another posture, p-2",
        ),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_nothing_is_claimed_without_the_guards_word(
    upstream: ScriptedVllm, tmp_path: Path, word: dict[str, str], reason: str, stream: bool
) -> None:
    """An engine that came back without its guard, or as another one, between two probes: 503, or a report."""
    guarded(upstream)
    upstream.word = word
    async with running_gateway(tmp_path, upstream.url, guard_key=GUARD_KEY) as gateway:
        body = {"model": "m", "stream": stream}
        refused = await gateway.post({**body, "determinism": "isolated"})
        wish = {"mode": "isolated", "on_unavailable": "report"}
        reported = await gateway.post({**body, "determinism": wish})
        ordinary = await gateway.post(body)

    assert (refused.status, refused.error["code"]) == (503, "determinism_unavailable")
    assert reason in refused.error["message"]
    assert (reported.status, ordinary.status) == (200, 200)
    assert f"batch_isolation: {reason}" in reported.headers["x-determinism-unavailable"]
    assert "batch_isolation" not in reported.headers["x-determinism-applied"]
    assert ordinary.headers["x-determinism-posture"] == word.get("x-determinism-posture", "p-1")


async def test_a_replica_with_the_posture_is_chosen(upstream: ScriptedVllm, tmp_path: Path) -> None:
    """`invariant` goes to the replica that has it, however busy the others are not."""
    guarded(upstream, batch_invariance=False)
    async with ScriptedVllm().serve() as other:
        guarded(other)
        async with running_gateway(tmp_path, upstream.url, other.url, guard_key=GUARD_KEY) as gateway:
            while len((await gateway.get("/readyz")).json()["replicas"]) < 2 or not all(
                replica["healthy"] for replica in (await gateway.get("/readyz")).json()["replicas"]
            ):
                pass
            answers = [await gateway.post({"model": "m", "determinism": "invariant"}) for _ in range(4)]

        assert {200} == {answer.status for answer in answers}
        assert len(other.received) == 4
        assert upstream.received == []


async def test_a_wrong_guard_key_fails_closed(upstream: ScriptedVllm, tmp_path: Path) -> None:
    """A guard that refuses the key serves ordinary requests; what needs its word is refused with the reason."""
    upstream.guard_answer = (403, {"error": {}})
    async with running_gateway(tmp_path, upstream.url, guard_key="wrong") as gateway:
        ordinary = await gateway.post({"model": "m"})
        isolated = await gateway.post({"model": "m", "determinism": "isolated"})

    assert ordinary.status == 200
    assert isolated.status == 503
    assert "REPRISE_GUARD_KEY" in isolated.error["message"]


async def test_admission_headers_of_a_client_are_stripped(gateway: RunningGateway, upstream: ScriptedVllm) -> None:
    """A client cannot ask the guard for anything, nor pass cookies or hop-by-hop headers on."""
    await gateway.post(
        {"model": "m"},
        x_determinism_admission="exclusive",
        x_determinism_guard_key="guess",
        cookie="a=b",
        x_custom="1",
        authorization="Bearer caller",
        traceparent="00-1-2-03",
        x_request_id="mine",
    )

    headers = upstream.received[0].headers
    assert headers["x-determinism-admission"] == "shared"
    assert {"x-determinism-guard-key", "cookie", "x-custom"}.isdisjoint(headers)
    assert (headers["authorization"], headers["traceparent"]) == ("Bearer caller", "00-1-2-03")
    assert headers["x-request-id"] != "mine"


async def test_the_engines_key_replaces_the_callers(upstream: ScriptedVllm, tmp_path: Path) -> None:
    """With a key of its own for the engine the gateway never passes the caller's on."""
    async with running_gateway(tmp_path, upstream.url, upstream_api_key="engine-key") as gateway:
        await gateway.post({"model": "m"}, authorization="Bearer caller")
    assert upstream.received[0].headers["authorization"] == "Bearer engine-key"


async def test_the_default_mode_rules_where_none_is_named(upstream: ScriptedVllm, tmp_path: Path) -> None:
    """The server's default applies to plain requests; a named mode wins."""
    async with running_gateway(tmp_path, upstream.url, default_mode="seeded") as gateway:
        plain = await gateway.post({"model": "m"})
        named = await gateway.post({"model": "m"}, x_determinism_mode="standard")
    assert (plain.headers["x-determinism-mode"], named.headers["x-determinism-mode"]) == ("seeded", "standard")


async def test_the_engines_answer_passes_as_it_is(gateway: RunningGateway) -> None:
    """Status, body bytes and Retry-After of the engine's own errors reach the caller; its request id is echoed."""
    raw = '{"error": {"message":"busy", "x": 1.50}}'
    script = {"status": 429, "raw": raw}

    answer = await gateway.post({"model": "m", "x_script": script}, x_request_id="mine")

    assert (429, raw.encode()) == (answer.status, answer.body)
    assert (answer.headers["retry-after"], answer.headers["x-request-id"]) == ("7", "mine")


async def test_models_keep_every_field(gateway: RunningGateway, upstream: ScriptedVllm) -> None:
    """`/v1/models` passes on what the engine says, unknown fields included."""
    assert upstream.models == (await gateway.get("/v1/models")).json()["data"]
    assert upstream.models[0] == (await gateway.get("/v1/models/m")).json()


async def test_health_and_documentation(gateway: RunningGateway) -> None:
    """Liveness, readiness with the replicas' state, and the documented API."""
    assert (await gateway.get("/healthz")).json() == {"status": "ok"}
    ready = (await gateway.get("/readyz")).json()
    assert ready["ready"]
    assert ready["replicas"][0]["mitigations"]["batch_isolation"].startswith("yes")
    assert CHAT in (await gateway.get("/openapi.json")).json()["paths"]
    docs = (await gateway.get("/docs")).body
    assert b"swagger" in docs
    assert b"https://" not in docs.replace(b"https://fastapi", b"")


async def test_the_last_replica_is_asked_although_it_fails_its_probes(upstream: ScriptedVllm, tmp_path: Path) -> None:
    """The gateway is not ready then and says why, but a request is better tried than turned away."""
    async with running_gateway(tmp_path, upstream.url, probe_failures=1) as gateway:
        upstream.healthy = False
        while (readiness := await gateway.get("/readyz")).status == 200:
            pass
        answer = await gateway.post({"model": "m"})

    assert "/health answered 503" in readiness.json()["replicas"][0]["problem"]
    assert answer.status == 200


async def test_not_ready_before_any_replica_was(tmp_path: Path) -> None:
    """Of a replica that was never healthy nothing is known, so there is nobody to ask: 503, and when to come back."""
    async with running_gateway(tmp_path, "http://127.0.0.1:9", wait=False) as gateway:
        answer = await gateway.post({"model": "m"})
    assert (answer.status, answer.error["code"]) == (503, "not_ready")
    assert answer.headers["retry-after"] == "2"
