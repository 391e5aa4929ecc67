"""Bad input: a 4xx in OpenAI's shape that names the field, and nothing sent upstream."""

from typing import Any

import pytest

from tests.support.running import CHAT, RunningGateway, read_answer, request_bytes
from tests.support.scripted import ScriptedVllm

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("body", "status", "code", "words"),
    [
        (b"", 400, "invalid_json", "not valid JSON"),
        (b'{"model":', 400, "invalid_json", "not valid JSON"),
        (b'{"model":"\xff"}', 400, "invalid_json", "not valid JSON"),
        (b"[]", 400, "invalid_json", "must be a JSON object, not an array"),
        (b'{"model":1}', 400, "invalid_request", "'model'"),
        (b'{"stream":1}', 400, "invalid_request", "'stream'"),
        (b'{"model":"m","determinism":"strict"}', 400, "unknown_mode", "'determinism'"),
        (b'{"model":"m@strict"}', 400, "unknown_mode", "'model'"),
        (b'{"model":"m","determinism":{"mitigations":["x"]}}', 400, "unknown_mitigation", "determinism.mitigations"),
        (b'{"model":"m@seeded","determinism":"isolated"}', 400, "contradictory_mode", "suffix"),
        (b'{"model":"m","determinism":{"window":64}}', 400, "invalid_request", "belongs to the mode 'verified'"),
        (b'{"model":"m","determinism":{"mode":"verified","window":0}}', 400, "invalid_request", "from 1 to 1024"),
        (b'{"model":"m@seeded","temperature":"0"}', 400, "invalid_request", "'temperature'"),
        (b'{"model":"m@isolated","seed":73786976294838206464}', 400, "invalid_request", "'seed'"),
        (b'{"model":"m","x":' + b"[" * 300 + b"]" * 300 + b"}", 400, "invalid_json", "nested too deeply"),
        (b'{"determinism":{"mode":' + b"[" * 90 + b"]" * 90 + b"}}", 400, "unknown_mode", "'determinism.mode'"),
        (b'{"model":"other"}', 404, "model_not_found", "'other'"),
        (b'{"model":"m","determinism":"seeded","seed":null,"seed":null}', 400, "duplicate_member", "'seed'"),
        (b'{"x":"' + b"a" * 10_000 + b'"}', 413, "request_too_large", "10000 bytes"),
    ],
)
async def test_a_bad_body(
    gateway: RunningGateway, upstream: ScriptedVllm, body: bytes, status: int, code: str, words: str
) -> None:
    """Each fault has its status, its code and a message that names the place."""
    answer = await gateway.post(body)

    assert (status, code) == (answer.status, answer.error["code"])
    assert words in answer.error["message"]
    assert upstream.received == []


@pytest.mark.parametrize(
    ("headers", "param"),
    [
        ({"x_determinism_mode": "strict"}, "x-determinism-mode"),
        ({"x_determinism_mitigations": "eager,magic"}, "x-determinism-mitigations"),
        ({"x_determinism_on_unavailable": "maybe"}, "x-determinism-on-unavailable"),
        ({"x_determinism_modes": "isolated"}, "x-determinism-modes"),
    ],
)
async def test_a_bad_header(
    gateway: RunningGateway, upstream: ScriptedVllm, headers: dict[str, str], param: str
) -> None:
    """Headers are held to the same rules as the body."""
    answer = await gateway.post({"model": "m"}, **headers)

    assert (400, param) == (answer.status, answer.error["param"])
    assert upstream.received == []


async def test_header_and_body_that_disagree(gateway: RunningGateway, upstream: ScriptedVllm) -> None:
    """A contradiction is an error that names both places."""
    answer = await gateway.post({"model": "m", "determinism": "isolated"}, x_determinism_mode="seeded")

    assert answer.error["code"] == "contradictory_mode"
    assert "header" in answer.error["message"]
    assert "member" in answer.error["message"]
    assert upstream.received == []


async def test_a_compressed_body_is_refused(gateway: RunningGateway) -> None:
    """The gateway never inflates what a caller sends."""
    answer = await gateway.post(b"\x1f\x8b", content_encoding="gzip")
    assert (answer.status, answer.error["code"]) == (415, "unsupported_media_type")


async def test_a_chunked_body_over_the_limit_is_cut_off(gateway: RunningGateway) -> None:
    """Without a length the limit holds all the same."""
    async with gateway.connection() as (reader, writer):
        writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n")
        for _ in range(3):
            writer.write(b"1000\r\n" + b"a" * 0x1000 + b"\r\n")
        assert (await reader.readline()).startswith(b"HTTP/1.1 413")


async def test_a_body_that_does_not_arrive(gateway: RunningGateway) -> None:
    """A body that stops half-way is 408 after the deadline, and the connection closes."""
    async with gateway.connection() as (reader, writer):
        writer.write(request_bytes("POST", CHAT, b"{}", {}).replace(b"content-length: 2", b"content-length: 200"))
        said = await reader.read()
    assert said.startswith(b"HTTP/1.1 408")
    assert b"connection: close" in said


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", CHAT, 405),
        ("PUT", "/v1/completions", 405),
        ("POST", "/v1/models", 405),
        ("POST", "/v1/nothing", 404),
        ("GET", "/v1/models/none", 404),
        ("POST", "/v1/chat/completions/", 404),
        ("POST", "/collective_rpc", 404),
        ("GET", "/reprise/posture", 404),
    ],
)
async def test_wrong_method_or_path(
    gateway: RunningGateway, upstream: ScriptedVllm, method: str, path: str, status: int
) -> None:
    """OpenAI-shaped 404 and 405, also for the engine's operator paths."""
    answer = await gateway.raw(method, path, b"{}", {"content-type": "application/json"})

    assert status == answer.status
    assert answer.error["type"] == "invalid_request_error"
    assert upstream.received == []


async def test_who_types_the_address_alone_is_told_where_to_go(gateway: RunningGateway) -> None:
    """There is no page at `/`; the 404 names those that there are, and no other 404 does."""
    answer = await gateway.get("/")

    assert answer.status == 404
    assert all(path in answer.error["message"] for path in ("/observatory", "/docs", "/metrics"))
    assert "/docs" not in (await gateway.get("/other")).error["message"]


@pytest.mark.parametrize(
    "request_", [b"NONSENSE\r\n\r\n", b"BREW / HTTP/1.1\r\n\r\n", b"GET / HTTP/1.1\r\nno colon\r\n\r\n"]
)
async def test_what_is_no_http(gateway: RunningGateway, request_: bytes) -> None:
    """Even that is answered in the one shape that all errors have, and the connection closes."""
    async with gateway.connection() as (reader, writer):
        writer.write(request_)
        answer = await read_answer(reader)
        assert (answer.status, answer.error["code"]) == (400, "invalid_http")
        assert await reader.read() == b""


async def test_nothing_is_lost_for_others(gateway: RunningGateway) -> None:
    """After every kind of bad request on one connection the next good one is served on it."""
    async with gateway.connection() as (reader, writer):
        for body in (b"nonsense", b'{"model":"m","determinism":3}', b'{"model":"none"}'):
            writer.write(request_bytes("POST", CHAT, body, {}))
            assert (await read_answer(reader)).status in {400, 404}
        writer.write(request_bytes("POST", CHAT, b'{"model":"m"}', {}))
        assert (await read_answer(reader)).status == 200


async def test_invalid_requests_are_counted(gateway: RunningGateway) -> None:
    """Refused requests show in the metrics, under a model name that callers cannot choose, whoever refused them."""
    await gateway.post(b"nonsense")
    await gateway.post({"model": "m"}, x_determinism_mode="strict")
    await gateway.raw("GET", CHAT, b"", {})
    name: dict[str, Any] = {"model": "other", "mode": "unknown", "outcome": "invalid"}
    labels = ",".join(f'{key}="{value}"' for key, value in sorted(name.items()))
    assert await gateway.metric(f"reprise_requests_total{{{labels}}}") == 3
