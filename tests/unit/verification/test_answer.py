"""The forms of an answer, member by member in vLLM's order (0.32, the protocol classes of both paths)."""

from dataclasses import replace
from typing import Any

import orjson
import pytest

from app.verification.answer import Chunks, Form, Token, whole
from app.verification.ending import End

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
HEAD = ["id", "object", "created", "model", "choices"]
TOKENS = (
    Token(7, "a", -0.5, (("a", -0.5), ("b", -1.5))),
    Token(8, "b", -float("inf"), (("b", -float("inf")), ("é", -0.25), ("b", -3.0))),
)


def form(path: str, **changed: Any) -> Form:
    known = Form(
        path=path,
        answer_id="id-1",
        created=5,
        model="m",
        role="assistant",
        fingerprint="p-1",
        prompt=(1, 2, 3),
    )
    return replace(known, **changed)


def event(data: bytes) -> dict[str, Any]:
    assert data.startswith(b"data: ")
    assert data.endswith(b"\n\n")
    found: dict[str, Any] = orjson.loads(data.removeprefix(b"data: "))
    return found


def test_a_whole_chat() -> None:
    """Members, order and nulls of ChatCompletionResponse."""
    body = orjson.loads(whole(form(CHAT), "ab", TOKENS, End("stop", 9)))
    tail = ["service_tier", "system_fingerprint", "usage", "prompt_logprobs", "prompt_token_ids", "prompt_text"]
    assert list(body) == [*HEAD, *tail, "kv_transfer_params", "ec_transfer_params", "metrics"]
    choice = body["choices"][0]
    ends = ["finish_reason", "stop_reason", "token_ids", "routed_experts"]
    assert list(choice) == ["index", "message", "logprobs", *ends]
    assert list(choice["message"]) == [
        "role",
        "content",
        "refusal",
        "annotations",
        "audio",
        "function_call",
        "reasoning",
    ]
    assert (choice["message"]["role"], choice["message"]["content"]) == ("assistant", "ab")
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", 9)
    assert (body["id"], body["object"], body["created"], body["model"]) == ("id-1", "chat.completion", 5, "m")
    assert list(body["usage"].items()) == [
        ("prompt_tokens", 3),
        ("total_tokens", 5),
        ("completion_tokens", 2),
        ("prompt_tokens_details", None),
        ("completion_tokens_details", None),
    ]
    nulls = {name for name, value in (body | choice | choice["message"]).items() if value is None}
    assert nulls == {
        *("refusal", "annotations", "audio", "function_call", "reasoning", "logprobs", "token_ids", "routed_experts"),
        *("service_tier", "prompt_logprobs", "prompt_token_ids", "prompt_text", "kv_transfer_params"),
        *("ec_transfer_params", "metrics"),
    }


def test_a_whole_completion() -> None:
    """Members, order and nulls of CompletionResponse."""
    body = orjson.loads(whole(form(TEXT, token_ids=True), "ab", TOKENS, End("length")))
    tail = ["service_tier", "system_fingerprint", "usage", "kv_transfer_params", "ec_transfer_params", "metrics"]
    assert list(body) == [*HEAD, *tail]
    choice = body["choices"][0]
    ends = ["finish_reason", "stop_reason", "token_ids", "prompt_logprobs", "prompt_token_ids", "routed_experts"]
    assert list(choice) == ["index", "text", "logprobs", *ends]
    assert (body["object"], choice["text"], choice["finish_reason"]) == ("text_completion", "ab", "length")
    assert (choice["stop_reason"], choice["logprobs"], choice["prompt_logprobs"]) == (None, None, None)
    assert (choice["token_ids"], choice["prompt_token_ids"]) == ([7, 8], [1, 2, 3])
    assert body["system_fingerprint"] == "p-1"


def test_a_chats_ids_stand_where_vllm_has_them() -> None:
    """The prompt's at the top, the answer's in the choice."""
    body = orjson.loads(whole(form(CHAT, token_ids=True), "ab", TOKENS, End("length")))
    assert (body["prompt_token_ids"], body["choices"][0]["token_ids"]) == ([1, 2, 3], [7, 8])


def test_the_chunks_of_a_chat() -> None:
    """A role first, then text; the reasons and the fingerprint on the last; members that are not set are not there."""
    chunks = Chunks(form(CHAT))
    first, middle = event(chunks.first()), event(chunks.piece("a", TOKENS[:1]))
    last = event(chunks.piece("b", TOKENS[1:], End("stop", "x")))
    assert list(first) == [*HEAD, "prompt_token_ids", "prompt_text"]
    assert first["choices"][0] == {
        "index": 0,
        "delta": {"role": "assistant", "content": ""},
        "logprobs": None,
        "finish_reason": None,
    }
    assert list(middle) == HEAD
    assert list(middle["choices"][0]) == ["index", "delta", "logprobs", "finish_reason", "token_ids"]
    assert middle["choices"][0]["delta"] == {"content": "a"}
    assert list(last) == [*HEAD, "system_fingerprint"]
    assert list(last["choices"][0]) == ["index", "delta", "logprobs", "finish_reason", "stop_reason", "token_ids"]
    assert (last["choices"][0]["finish_reason"], last["choices"][0]["stop_reason"]) == ("stop", "x")
    assert chunks.last() == b""


def test_the_chunks_of_a_completion() -> None:
    """No role, every member in every chunk, and the prompt's ids in the first."""
    chunks = Chunks(form(TEXT, token_ids=True))
    assert chunks.first() == b""
    first, last = event(chunks.piece("a", TOKENS[:1])), event(chunks.piece("b", TOKENS[1:], End("length")))
    members = ["index", "text", "logprobs", "finish_reason", "stop_reason", "prompt_token_ids", "token_ids"]
    assert list(first["choices"][0]) == list(last["choices"][0]) == members
    assert [each["choices"][0]["prompt_token_ids"] for each in (first, last)] == [[1, 2, 3], None]
    assert [each["choices"][0]["token_ids"] for each in (first, last)] == [[7], [8]]
    assert ("system_fingerprint" in first, last["system_fingerprint"]) == (False, "p-1")


@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_the_usage_comes_last_where_it_is_wished_for(path: str) -> None:
    """A chunk without choices, on which the fingerprint then stands; its nulls are left out."""
    chunks = Chunks(form(path, usage=True))
    assert "system_fingerprint" not in event(chunks.piece("ab", TOKENS, End("length")))
    last = event(chunks.last())
    assert list(last) == [*HEAD, "usage", "system_fingerprint"]
    assert last["choices"] == []
    assert last["usage"] == {"prompt_tokens": 3, "total_tokens": 5, "completion_tokens": 2}


@pytest.mark.parametrize(("path", "details"), [(CHAT, ["completion_tokens_details"]), (TEXT, [])])
def test_usage_in_every_chunk(path: str, details: list[str]) -> None:
    """It stands after the choices and counts what came so far, also in a chunk that has no text."""
    chunks = Chunks(form(path, usage=True, continuous_usage=True, token_ids=True))
    found = [
        event(data) for data in (chunks.first(), chunks.piece("", TOKENS[:1]), chunks.piece("b", TOKENS[1:])) if data
    ]
    assert [each["usage"]["completion_tokens"] for each in found] == [0, 1, 2][3 - len(found) :]
    assert all(list(each)[:6] == [*HEAD, "usage"] for each in found)
    assert all(
        list(each["usage"]) == ["prompt_tokens", "total_tokens", "completion_tokens", *details] for each in found
    )


def test_a_piece_that_would_say_nothing_is_none() -> None:
    """Text that is not final yet; its tokens count in the usage all the same."""
    chunks = Chunks(form(CHAT, usage=True))
    assert chunks.piece("", TOKENS[:1]) == b""
    assert event(chunks.piece("", TOKENS[1:], End("stop")))["choices"][0]["delta"] == {"content": ""}
    assert event(chunks.last())["usage"]["completion_tokens"] == 2
    assert Chunks(form(CHAT, logprobs=0)).piece("", TOKENS[:1])
    assert Chunks(form(CHAT, token_ids=True)).piece("", TOKENS[:1])


def test_the_logprobs_of_a_chat() -> None:
    """Token, logprob and bytes of each, with as many alternatives as were asked for; minus infinity as vLLM has it."""
    body = orjson.loads(whole(form(CHAT, logprobs=2), "ab", TOKENS, End("length")))
    content = body["choices"][0]["logprobs"]["content"]
    assert list(content[0]) == ["token", "logprob", "bytes", "top_logprobs"]
    assert content[0] == {
        "token": "a",
        "logprob": -0.5,
        "bytes": [97],
        "top_logprobs": [
            {"token": "a", "logprob": -0.5, "bytes": [97]},
            {"token": "b", "logprob": -1.5, "bytes": [98]},
        ],
    }
    assert content[1]["logprob"] == -9999.0
    assert content[1]["top_logprobs"][1] == {"token": "é", "logprob": -0.25, "bytes": [0xC3, 0xA9]}
    none = orjson.loads(whole(form(CHAT, logprobs=0), "ab", TOKENS, End("length")))
    assert [each["top_logprobs"] for each in none["choices"][0]["logprobs"]["content"]] == [[], []]


def test_the_logprobs_of_a_completion() -> None:
    """By text, the token's own first; offsets go on from piece to piece by the tokens and not by what is released."""
    chunks = Chunks(form(TEXT, logprobs=2))
    first = event(chunks.piece("", TOKENS))["choices"][0]["logprobs"]
    second = event(chunks.piece("abab", TOKENS))["choices"][0]["logprobs"]
    assert list(first) == ["text_offset", "token_logprobs", "tokens", "top_logprobs"]
    assert (first["text_offset"], second["text_offset"]) == ([0, 1], [2, 3])
    assert first["tokens"] == ["a", "b"]
    assert first["token_logprobs"] == [-0.5, -9999.0]
    assert first["top_logprobs"] == [{"a": -0.5, "b": -1.5}, {"b": -3.0, "é": -0.25}], "of equal texts the last"
