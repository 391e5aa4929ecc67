"""Receipts of requests that went through: fetched by id, signed, and true."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from app.receipts.signing import verify
from tests.support.running import Answer, RunningGateway, running_gateway
from tests.support.scripted import ScriptedVllm, guarded

pytestmark = pytest.mark.anyio


async def receipt_of(gateway: RunningGateway, answer: Answer) -> dict[str, Any]:
    """The receipt of an answer, checked against the gateway's key."""
    name = answer.headers["x-determinism-request"]
    got = await gateway.get(f"/v1/determinism/receipts/{name}")
    assert got.status == 200
    key = (await gateway.get("/v1/determinism/receipts/key")).json()["key"]
    assert verify(got.body, {base64.b64decode(key)}).trusted
    receipt: dict[str, Any] = got.json()["receipt"]
    assert receipt["request_id"] == name
    return receipt


@pytest.mark.parametrize("stream", [False, True])
async def test_a_guarded_answer(upstream: ScriptedVllm, tmp_path: Path, *, stream: bool) -> None:
    """What the headers said, and the interval by the guard's own log, asked for under the gateway's own request id."""
    guarded(upstream)
    async with running_gateway(tmp_path, upstream.url, guard_key="k") as gateway:
        answer = await gateway.post(
            {"model": "m", "determinism": "isolated", "stream": stream}, x_request_id="the-callers-own"
        )
        receipt = await receipt_of(gateway, answer)

    assert answer.headers["x-request-id"] == "the-callers-own"
    assert (receipt["mode"], receipt["admission"], receipt["posture"]) == ("isolated", "exclusive", "p-1")
    assert [each["status"] for each in receipt["mitigations"]] == ["applied"] * 3
    if stream:
        comment = next(line for line in answer.body.split(b"\n") if line.startswith(b": determinism "))
        assert receipt["output"] == json.loads(comment.removeprefix(b": determinism "))["output"]
    else:
        assert receipt["output"] == answer.headers["x-determinism-output"]
    assert (receipt["coresident_peak"], receipt["status"], receipt["outcome"]) == (1, 200, "ok")
    assert receipt["intervals_source"] == "guard"
    assert [each["sequence"] for each in receipt["intervals"]] == [1]


async def test_an_answer_behind_the_gateways_own_gate(gateway: RunningGateway) -> None:
    """The interval is the gateway's own, and says so."""
    receipt = await receipt_of(gateway, await gateway.post({"model": "m", "determinism": "isolated"}))
    (interval,) = receipt["intervals"]
    assert receipt["intervals_source"] == "gateway"
    assert interval["asked_us"] <= interval["granted_us"] <= interval["ended_us"]
    assert interval["peak"] == 1


@pytest.mark.parametrize(
    ("members", "status", "outcome", "applied"),
    [
        ({"determinism": {"mode": "hardened", "on_unavailable": "report"}}, 200, "ok", "batch_isolation"),
        ({"determinism": "hardened"}, 503, "unavailable", None),
        ({"determinism": "isolated", "x_script": {"do": "reset"}}, 502, "upstream_error", None),
        ({"determinism": "isolated", "x_script": {"do": "short"}}, 502, "incomplete", "batch_isolation"),
        ({"x_script": {"status": 400}}, 400, "invalid", None),
        ({"determinism": "isolated", "x_script": {"status": 400}}, 400, "invalid", None),
        ({"determinism": "isolated", "x_script": {"status": 429}}, 429, "unavailable", None),
    ],
)
async def test_a_request_that_went_otherwise(
    gateway: RunningGateway, members: dict[str, Any], status: int, outcome: str, applied: str | None
) -> None:
    """The receipt states the status that the caller saw, and no mitigation that was not applied."""
    answer = await gateway.post({"model": "m", **members})
    receipt = await receipt_of(gateway, answer)
    assert (answer.status, receipt["status"], receipt["outcome"]) == (status, status, outcome)
    states = {each["mitigation"]: each["status"] for each in receipt["mitigations"]}
    assert all((states[name] == "applied") is (applied is not None and name not in MISSING) for name in states)


MISSING = {"eager", "fixed_kv_split", "framework_determinism"}


async def test_a_broken_promise_is_stated_as_it_was(upstream: ScriptedVllm, tmp_path: Path) -> None:
    """The guard counted company: the caller gets a 503, and the receipt says what ran and what it lacked."""
    guarded(upstream)
    upstream.word = {"x-determinism-coresident-peak": "3", "x-determinism-posture": "p-1"}
    async with running_gateway(tmp_path, upstream.url, guard_key="k") as gateway:
        answer = await gateway.post({"model": "m", "determinism": "isolated"})
        receipt = await receipt_of(gateway, answer)
    assert (answer.status, answer.error["code"]) == (503, "determinism_unavailable")
    assert (receipt["status"], receipt["posture"], receipt["coresident_peak"]) == (503, "p-1", 3)
    states = {each["mitigation"]: (each["status"], each["reason"]) for each in receipt["mitigations"]}
    assert states["batch_isolation"] == ("unavailable", "the guard counted 3 co-resident requests")
    assert states["pinned_seed"] == ("applied", None)


async def test_requests_without_a_plan_and_unknown_ids(gateway: RunningGateway) -> None:
    """A body that could not be read has no receipt: 404 in OpenAI's shape, as for an id that nobody knows."""
    refused = await gateway.post(b"nonsense")
    for name in (refused.headers["x-determinism-request"], "unknown"):
        got = await gateway.get(f"/v1/determinism/receipts/{name}")
        assert (got.status, got.error["code"]) == (404, "not_found")


async def test_only_the_last_ones_are_kept(upstream: ScriptedVllm, tmp_path: Path) -> None:
    """The number is a setting."""
    async with running_gateway(tmp_path, upstream.url, receipts=2) as gateway:
        answers = [await gateway.post({"model": "m"}) for _ in range(3)]
        found = [
            (await gateway.get(f"/v1/determinism/receipts/{answer.headers['x-determinism-request']}")).status
            for answer in answers
        ]
    assert found == [404, 200, 200]
