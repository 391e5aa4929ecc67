"""Verified answers over the wire: what they say is the definition's, whoever drafts and however they are asked for."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.running import RunningGateway
from tests.support.verifying import (
    BLOCK,
    EMPTY,
    LENGTH,
    MOST,
    WINDOW,
    Verifying,
    ask,
    chat,
    events,
    piece,
    reference,
    said,
    text,
    verified_site,
)

pytestmark = pytest.mark.anyio

DRAFTERS = ("honest", "lies", "foreign", "garbage")
REQUESTS: tuple[dict[str, Any], ...] = (
    chat(max_tokens=40),
    chat("another", max_completion_tokens=33, max_tokens=2, ignore_eos=True),
    chat(temperature=0.005, max_tokens=1),
    chat(max_tokens=30, min_tokens=25, stop_token_ids=[7, 8]),
    chat(determinism={"mode": "verified", "window": 5}, max_tokens=24),
    text(),
    text([9] * 17, max_tokens=60, ignore_eos=True),
    text([3] * (LENGTH - 1), max_tokens=1),
    text([3] * (LENGTH - 6), max_tokens=50, ignore_eos=True),
    text([3] * (BLOCK + 1), max_tokens=20, min_tokens=20),
    text([5], max_tokens=20, determinism={"mode": "verified", "window": 3 * BLOCK}),
)


@pytest.mark.parametrize("caching", [True, False], ids=["chain", "prompt"])
@pytest.mark.parametrize("drafter", DRAFTERS)
async def test_an_answer_is_the_definitions_whoever_drafts(tmp_path: Path, drafter: str, caching: bool) -> None:
    """Tokens, text and ends are those of the reference decoder; a drafter that lies, or fails, costs passes alone."""
    async with verified_site(tmp_path, seed=3, drafter=drafter, prefix_caching=caching) as (_, gateway):
        for number, members in enumerate(REQUESTS):
            window = members["determinism"]["window"] if isinstance(members["determinism"], dict) else WINDOW
            expected = reference(members, seed=3, chain=caching and BLOCK % window == 0)
            stream = bool(number % 2)
            found = said(await ask(gateway, members | {"stream": stream, "return_token_ids": True}))
            assert found.token_ids == list(expected.tokens)
            assert found.text == expected.text
            assert (found.finish_reason, found.stop_reason) == (expected.finish_reason, expected.stop_reason)


@pytest.mark.parametrize("seed", range(12))
async def test_a_stream_and_a_whole_answer_say_the_same(tmp_path: Path, seed: int) -> None:
    """On either path, with a drafter that forks in every window; a stream comes in more than one piece."""
    async with verified_site(tmp_path, seed=seed, drafter="lies") as (_, gateway):
        for members in (chat(max_tokens=60), text(max_tokens=60)):
            whole, streamed = said(await ask(gateway, members)), said(await ask(gateway, members | {"stream": True}))
            expected = reference(members, seed=seed)
            assert whole.text == streamed.text == expected.text
            assert (whole.finish_reason, whole.stop_reason) == (streamed.finish_reason, streamed.stop_reason)
            assert whole.usage is not None
            assert whole.usage["completion_tokens"] == len(expected.tokens)
            if len(expected.tokens) > 2 * WINDOW:
                assert len(streamed.events) > 2


async def test_a_draft_ends_where_the_answer_may_end(verifier: Verifying, site: RunningGateway) -> None:
    """A drafter that goes on after the caller's stop string works for nothing."""
    await site.post(chat(max_tokens=20, stop=["never there"], stop_token_ids=[7]))
    drafts = [json.loads(draft.body) for draft in verifier.of("draft")]
    assert drafts
    assert {(*draft["stop"], *draft["stop_token_ids"]) for draft in drafts} == {("never there", 7)}


async def test_a_drafter_that_fails_costs_nothing_but_passes(verifier: Verifying, site: RunningGateway) -> None:
    """Errors, resets and silence in the middle of a draft are drafts of no token."""
    members = chat(max_tokens=12, ignore_eos=True)
    for fault in ("500", "429", "reset", "half", "no_json", "null", "error", "400"):
        verifier.fail("draft", *[fault] * 3)
        answer = await ask(site, members)
        assert said(answer).text == reference(members).text
        assert int(answer.headers["x-determinism-passes"]) > 2


async def test_a_stop_string_over_the_edge_of_a_window(tmp_path: Path) -> None:
    """It is found whichever window its characters fall in, and no piece of a stream shows any of it before."""
    async with verified_site(tmp_path, seed=5) as (_, gateway):
        members = text([4, 5, 6], max_tokens=48, ignore_eos=True)
        plain = reference(members, seed=5)
        edges = [n for n in range(1, len(plain.tokens)) if (3 + n) % WINDOW == 1]
        assert len(edges) > 3
        for edge in edges:
            before = len("".join(map(piece, plain.tokens[:edge])))
            stop = plain.text[before - 2 : before + 2]
            for include in (False, True):
                wish = {"stop": ["never there, and long", stop], "include_stop_str_in_output": include}
                expected = reference(members | wish, seed=5)
                assert expected.stop_reason == stop
                streamed = await ask(gateway, members | wish | {"stream": True, "return_token_ids": True})
                found = said(streamed)
                assert (found.text, found.stop_reason, found.finish_reason) == (expected.text, stop, "stop")
                assert found.token_ids == list(expected.tokens)
                assert said(await ask(gateway, members | wish)).text == expected.text


async def test_what_a_stop_string_could_take_back_is_held_back(site: RunningGateway) -> None:
    """Of every piece but the last, the stream is one character less than the stop string behind the tokens."""
    members = text([4, 5, 6], max_tokens=30, ignore_eos=True, stop="?" * 9, stream=True, return_token_ids=True)
    found = said(await ask(site, members))
    shown, tokens = "", list[int]()
    for event in found.events[:-1]:
        shown += event["choices"][0]["text"]
        tokens += event["choices"][0]["token_ids"]
        whole = "".join(map(piece, tokens))
        assert whole.startswith(shown)
        assert len(shown) == max(len(whole) - 8, 0)
    assert found.text == reference(members).text


async def test_tokens_without_text_of_their_own(tmp_path: Path) -> None:
    """A window that adds no text is no event of a stream, unless ids are asked for; its tokens count all the same."""
    seed = next(seed for seed in range(200) if reference(text([EMPTY], max_tokens=1), seed=seed).tokens == (EMPTY,))
    async with verified_site(tmp_path, seed=seed, drafter="garbage") as (_, gateway):
        members = text([EMPTY], max_tokens=6, ignore_eos=True, stream=True)
        quiet = said(await ask(gateway, members | {"stream_options": {"include_usage": True}}))
        told = said(await ask(gateway, members | {"return_token_ids": True}))
    expected = reference(members, seed=seed)
    assert quiet.text == told.text == expected.text
    assert quiet.usage is not None
    assert quiet.usage["completion_tokens"] == 6
    assert all(event["choices"][0]["text"] for event in quiet.events[:-2])
    assert told.token_ids == list(expected.tokens)
    assert told.events[0]["choices"][0]["text"] == ""


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("top", [None, 0, 1, 5, MOST])
async def test_logprobs_are_the_verifiers(site: RunningGateway, stream: bool, top: int | None) -> None:
    """Of each token the value that its row has, and as many alternatives as were asked for, the token first."""
    asked = chat(max_tokens=20, logprobs=True, stream=stream) | ({} if top is None else {"top_logprobs": top})
    expected = reference(asked)
    content = [entry for piece in said(await ask(site, asked)).logprobs for entry in piece["content"]]
    assert [entry["token"] for entry in content] == [piece(token) for token in expected.tokens]
    for entry, token, row in zip(content, expected.tokens, expected.logprobs, strict=True):
        assert entry["logprob"] == row[token]
        assert bytes(entry["bytes"]).decode() == entry["token"]
        shown = entry["top_logprobs"]
        assert [one["logprob"] for one in shown] == sorted(row, reverse=True)[: top or 0]
        assert not shown or shown[0] == {name: entry[name] for name in ("token", "logprob", "bytes")}

    asked = text(max_tokens=20, logprobs=top or 0, stream=stream)
    expected = reference(asked)
    found = said(await ask(site, asked)).logprobs
    tokens = [token for each in found for token in each["tokens"]]
    offsets = [offset for each in found for offset in each["text_offset"]]
    assert tokens == [piece(token) for token in expected.tokens]
    assert offsets == [len("".join(tokens[:n])) for n in range(len(tokens))]
    values = [value for each in found for value in each["token_logprobs"]]
    assert values == [row[token] for token, row in zip(expected.tokens, expected.logprobs, strict=True)]
    tops = [entry for each in found for entry in each["top_logprobs"]]
    assert all(tokens[n] in entry and len(entry) <= max(top or 0, 1) for n, entry in enumerate(tops))


async def test_logprobs_are_the_same_whatever_was_drafted(tmp_path: Path) -> None:
    """Also which of several equals is named last: how often a pass was repeated must not show."""
    members = chat(max_tokens=30, logprobs=True, top_logprobs=7)
    found = []
    for drafter in DRAFTERS:
        async with verified_site(tmp_path / drafter, seed=2, drafter=drafter) as (_, gateway):
            found.append(said(await ask(gateway, members)).logprobs)
    assert all(one == found[0] for one in found)


async def test_the_forms_of_a_stream(site: RunningGateway) -> None:
    """A role first, usage in every chunk where it is wished for, and the reasons of the end on the last."""
    wish = {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
    members = chat(max_tokens=20, ignore_eos=True) | wish
    found = events(await ask(site, members))
    prompt = len(reference(members).prompt)
    assert found[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert {event["object"] for event in found} == {"chat.completion.chunk"}
    assert len({(event["id"], event["created"], event["model"]) for event in found}) == 1
    counts = [event["usage"]["completion_tokens"] for event in found]
    assert counts == sorted(counts)
    assert (counts[0], counts[-1]) == (0, 20)
    assert all(event["usage"]["total_tokens"] == prompt + event["usage"]["completion_tokens"] for event in found)
    assert found[-1]["choices"] == []
    assert found[-1]["system_fingerprint"] == "p-1"
    assert found[-2]["choices"][0]["finish_reason"] == "length"
    assert {event["choices"][0]["finish_reason"] for event in found[:-2]} == {None}


async def test_the_forms_of_a_whole_answer(site: RunningGateway) -> None:
    """Ids of prompt and answer where they are asked for, the posture as fingerprint, the model as it was named."""
    members = text([4, 5], max_tokens=5, return_token_ids=True, ignore_eos=True)
    answer = await ask(site, members)
    body, choice = answer.json(), answer.json()["choices"][0]
    assert (body["object"], body["model"], body["system_fingerprint"]) == ("text_completion", "m", "p-1")
    assert (choice["prompt_token_ids"], choice["token_ids"]) == ([4, 5], list(reference(members).tokens))
    assert body["id"] == f"cmpl-{answer.headers['x-determinism-request']}"
    plain = (await ask(site, text([4, 5], max_tokens=5))).json()
    assert (plain["choices"][0]["token_ids"], plain["choices"][0]["logprobs"]) == (None, None)


async def test_many_at_once_get_what_each_gets_alone(tmp_path: Path) -> None:
    """Their drafts and passes interleave; none of them sees another's tokens."""
    async with verified_site(tmp_path, seed=9, drafter="lies") as (_, gateway):
        every = [chat(f"number {n}", max_tokens=24, stream=bool(n % 2)) for n in range(12)]
        answers = await asyncio.gather(*(ask(gateway, members) for members in every))
        assert [said(answer).text for answer in answers] == [reference(members, seed=9).text for members in every]
