"""Repeats are found, compared and counted; streamed and unary answers are the same output."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.support.forking import GUARD_KEY, ForkingVllm, words
from tests.support.running import RunningGateway, running_gateway, start
from tests.support.scripted import ScriptedVllm, stream_events

pytestmark = pytest.mark.anyio


def asks(text: str = "same", **members: Any) -> dict[str, Any]:
    return {"model": "m", "temperature": 0, "metadata": {"x": text}, "x_script": {"text": text}, **members}


async def settled(gateway: RunningGateway, verdict: str, mode: str = "standard") -> float:
    """The count of a verdict, once the recorder has counted everything that was submitted."""
    return await gateway.metric(
        f'reprise_comparisons_total{{mode="{mode}",model="m",origin="client",verdict="{verdict}"}}'
    )


async def test_repeats_match(gateway: RunningGateway) -> None:
    """The first answer is the reference; equal ones match, streamed or not, and carry the same digest."""
    first = await gateway.post(asks())
    while await gateway.metric('reprise_pairs_total{mode="standard",model="m",origin="client"}') < 1:
        await gateway.post(asks())
    again = await gateway.post(asks())
    streamed = await gateway.post(asks(stream=True))

    assert first.headers["x-determinism-verdict"] == "pending"
    assert again.headers["x-determinism-verdict"] == "match"
    assert first.headers["x-determinism-output"] == again.headers["x-determinism-output"]
    comment = streamed.body.split(b": determinism ")[1].split(b"\n")[0].decode()
    assert first.headers["x-determinism-output"] in comment
    assert '"verdict":"match"' in comment


async def test_a_divergence_is_seen_and_explained(gateway: RunningGateway, upstream: ScriptedVllm) -> None:
    """An answer that changes when requests overlap is a divergence, with co-batching as its suspect."""
    body = {"model": "m", "temperature": 0}
    await gateway.post(body)
    holding = start(gateway.post({"model": "m", "x_script": {"hold": 1}}))
    await upstream.until(2)
    overlapped = await gateway.post(body)
    upstream.release.set()
    await holding

    assert overlapped.json()["choices"][0]["message"]["content"] == "with 1"
    while await settled(gateway, "diverged") < 1:
        pass
    assert await settled(gateway, "diverged") == 1
    assert (
        await gateway.metric('reprise_divergences_total{cause="co_batched",mode="standard",model="m",origin="client"}')
        == 1
    )


async def test_isolation_removes_the_divergence(gateway: RunningGateway, upstream: ScriptedVllm) -> None:
    """The product's claim in small: the same repeats in `isolated` all match while others run."""
    upstream.release.set()
    others = [start(gateway.post({"model": "m", "user": str(i)})) for i in range(20)]
    isolated = [await gateway.post({"model": "m", "temperature": 0, "determinism": "isolated"}) for _ in range(10)]
    await asyncio.gather(*others)

    assert {"alone"} == {answer.json()["choices"][0]["message"]["content"] for answer in isolated}
    assert {"1"} == {answer.headers["x-determinism-coresident-peak"] for answer in isolated}
    while await settled(gateway, "match", "isolated") < 9:
        pass
    assert await settled(gateway, "diverged", "isolated") == 0


async def test_unseeded_sampling_is_incomparable(gateway: RunningGateway) -> None:
    """Answers that differ by design are counted as skipped, never as divergences."""
    answer = await gateway.post({"model": "m", "temperature": 0.8})

    assert answer.headers["x-determinism-verdict"] == "incomparable"
    assert await gateway.metric('reprise_comparisons_skipped_total{reason="unseeded_sampling"}') == 1


@pytest.mark.parametrize(
    ("sampling", "margin"),
    [
        ({"temperature": 0}, "clear"),
        ({"temperature": 0.8, "seed": 7}, "unknown"),
        ({"temperature": 0, "logit_bias": {"1": 5}}, "unknown"),
        ({"temperature": 0, "response_format": {"type": "json_object"}}, "unknown"),
    ],
)
async def test_a_margin_is_of_answers_that_take_the_likeliest_token(
    sampling: dict[str, Any], margin: str, tmp_path: Path
) -> None:
    """A seeded draw, a bias and a grammar fork where the model was sure, on an engine without a fault."""
    scripted = ForkingVllm(words("we say one"), words("we say two"))
    async with (
        scripted.serve() as upstream,
        running_gateway(tmp_path, upstream.url, guard_key=GUARD_KEY) as gateway,
    ):
        for _ in range(2):
            await gateway.post({"model": "m", "messages": [], "determinism": "isolated", **sampling})
        while await gateway.metric('reprise_similarity_ratio_count{kind="edit"}') < 1:
            pass
        labels = f'margin="{margin}",mode="isolated",model="m",origin="client"'
        assert await gateway.metric(f"reprise_divergence_margins_total{{{labels}}}") == 1
        assert await gateway.metric("reprise_fork_margin_nats_count") == (margin == "clear")
        assert await gateway.metric('reprise_fork_tokens_count{mode="isolated"}') == 1


async def test_a_stream_that_does_not_tell_its_tokens_is_counted_by_its_content(gateway: RunningGateway) -> None:
    """Neither the role's event nor the last one nor [DONE] is a token; two events bring content."""
    assert (await gateway.post(asks("same", stream=True))).complete
    assert await gateway.metric('reprise_output_tokens_total{mode="standard",model="m"}') == 2


async def test_every_label_set_begins_at_zero(gateway: RunningGateway) -> None:
    """`increase()` can see the first divergence, because its series was there before."""
    for mode in ("standard", "seeded", "isolated", "invariant", "hardened", "verified", "custom"):
        assert await settled(gateway, "diverged", mode) == 0


async def test_a_stream_keeps_its_bytes(gateway: RunningGateway) -> None:
    """Nothing in a stream changes but our comment before its end."""
    streamed = await gateway.post(asks(stream=True))

    before, _, after = streamed.body.partition(b": determinism ")
    assert b"".join(stream_events("same")) == before + after.partition(b"\n\n")[2]
    assert streamed.complete


async def test_the_comment_can_be_turned_off(upstream: ScriptedVllm, tmp_path: Path) -> None:
    """Then a stream is the engine's to the last byte."""
    async with running_gateway(tmp_path, upstream.url, stream_comment=False) as gateway:
        streamed = await gateway.post(asks(stream=True))
    assert b"".join(stream_events("same")) == streamed.body


async def test_the_ledger_outlives_the_gateway(upstream: ScriptedVllm, tmp_path: Path) -> None:
    """After a restart a repeat still finds its cohort, in SQLite, and there is no text on disk."""
    async with running_gateway(tmp_path, upstream.url, ledger=True) as gateway:
        await gateway.post(asks("secret-text"))
    async with running_gateway(tmp_path, upstream.url, ledger=True) as gateway:
        await gateway.post(asks("secret-text"))
        while await settled(gateway, "match") < 1:
            pass

    assert not any(b"secret-text" in content for content in contents(tmp_path))


def contents(folder: Path) -> list[bytes]:
    return [file.read_bytes() for file in folder.iterdir()]
