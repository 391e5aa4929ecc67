"""Canaries and shadows through a running gateway: sent as a client would, counted apart, compared like any repeat."""

import json
from pathlib import Path

import pytest

from tests.support.running import RunningGateway, running_gateway
from tests.support.scripted import ScriptedVllm

pytestmark = pytest.mark.anyio


async def reaches(gateway: RunningGateway, series: str, least: float) -> None:
    """Wait until a counter has come so far."""
    while await gateway.metric(series) < least:
        pass


async def test_canaries_are_sent_and_compared(upstream: ScriptedVllm, tmp_path: Path) -> None:
    """As JSON, in their mode, and in no figure of clients."""
    file = tmp_path / "canaries.jsonl"
    file.write_text('{"prompt": "x", "seed": 4}\n{"messages": [{"role": "user", "content": "y"}]}\n')
    modes = ("standard", "isolated")
    async with running_gateway(
        tmp_path / "state", upstream.url, canary_interval=0.01, canaries=file, canary_modes=modes
    ) as gateway:
        for mode in modes:
            await reaches(gateway, f'reprise_canary_requests_total{{mode="{mode}",origin="canary",outcome="ok"}}', 4)
            compared = f'mode="{mode}",model="m",origin="canary",verdict="match"'
            await reaches(gateway, f"reprise_comparisons_total{{{compared}}}", 1)
        for series in (
            'reprise_requests_total{mode="standard",model="m",outcome="ok"}',
            'reprise_comparisons_total{mode="standard",model="m",origin="client",verdict="match"}',
            'reprise_output_tokens_total{mode="standard",model="m"}',
            'reprise_request_seconds_count{mode="standard",model="m"}',
            'reprise_coresident_peak_count{mode="isolated"}',
        ):
            assert await gateway.metric(series) == 0, series
    # The turn of the first prompt may have passed before the replica was known.
    first = next(each for each in upstream.received if "prompt" in json.loads(each.body))
    assert first.headers["content-type"] == "application/json"
    sent = json.loads(first.body)
    assert (sent["prompt"], sent["model"], sent["temperature"], sent["seed"]) == ("x", "m", 0, 4)


async def test_a_bad_canary_file_is_refused_at_start(upstream: ScriptedVllm, tmp_path: Path) -> None:
    """With the number of its line."""
    file = tmp_path / "canaries.jsonl"
    file.write_text('{"prompt": "x"}\n{"prompt": }\n')
    with pytest.raises(ValueError, match="line 2"):
        async with running_gateway(tmp_path / "state", upstream.url, canaries=file):
            pass
    assert not (tmp_path / "state").exists()


async def test_shadows_repeat_what_clients_asked(upstream: ScriptedVllm, tmp_path: Path) -> None:
    """Once more, with the client's own headers and members, and token ids for the fork."""
    async with running_gateway(tmp_path, upstream.url, shadow_rate=1.0) as gateway:
        answer = await gateway.post(
            {"model": "m", "temperature": 0, "x_script": {"text": "a"}}, authorization="Bearer k"
        )
        await upstream.until(2)
        compared = 'mode="standard",model="m",origin="shadow",verdict="match"'
        await reaches(gateway, f"reprise_comparisons_total{{{compared}}}", 1)
        assert await gateway.metric('reprise_requests_total{mode="standard",model="m",outcome="ok"}') == 1
        unseeded = await gateway.post({"model": "m", "temperature": 1})
        isolated = await gateway.post({"model": "m", "determinism": "isolated"})
        assert {answer.status, unseeded.status, isolated.status} == {200}
    shadow = upstream.received[1]
    assert shadow.headers["authorization"] == "Bearer k"
    assert json.loads(shadow.body)["return_token_ids"] is True
    assert "return_token_ids" not in json.loads(upstream.received[0].body)
    assert len(upstream.received) == 4
