"""What is asked for on our own account comes out of the answer again, and nothing else with it."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.determinism.evidence import NOTHING_ASKED, Evidence, ask

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


def chat(**choice: object) -> dict[str, Any]:
    """A chat answer as vLLM 0.32 writes one: every member is there, null where nobody asked."""
    message = {"role": "assistant", "content": 'a "quoted" ﷽ {"token_ids":[1]}'}
    filled = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop", "token_ids": None, **choice}
    return {"id": "chatcmpl-1", "choices": [filled], "usage": {"total_tokens": 3}, "prompt_token_ids": None}


def dump(value: object) -> bytes:
    """As vLLM writes it: compact, not escaped."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


LOGPROBS = {"content": [{"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": []}]}


def test_an_answer_is_as_if_nobody_had_asked() -> None:
    """Byte for byte, text that looks like our members included."""
    asked = ask(CHAT, {}, Evidence.LOGPROBS)
    assert asked.changes == {"return_token_ids": True, "logprobs": True, "top_logprobs": 2}
    got = dump(chat(logprobs=LOGPROBS, token_ids=[1, 2, 3]) | {"prompt_token_ids": [9, 9]})
    assert asked.unary(got) == dump(chat())


def test_a_completion_has_its_prompt_ids_in_the_choice() -> None:
    """There logprobs are a number, and the prompt's ids lie elsewhere."""
    asked = ask(TEXT, {}, Evidence.LOGPROBS)
    assert asked.changes == {"return_token_ids": True, "logprobs": 2}
    plain = {"id": "1", "choices": [{"index": 0, "text": "x", "logprobs": None, "token_ids": None,
                                     "prompt_logprobs": None, "prompt_token_ids": None}]}  # fmt: skip
    full = {"id": "1", "choices": [{"index": 0, "text": "x", "logprobs": {"tokens": ["x"]}, "token_ids": [5],
                                    "prompt_logprobs": None, "prompt_token_ids": [1]}]}  # fmt: skip
    assert asked.unary(dump(full)) == dump(plain)


@pytest.mark.parametrize(
    ("path", "members", "changes"),
    [
        (CHAT, {"logprobs": True}, {"return_token_ids": True}),
        (CHAT, {"logprobs": False}, {"return_token_ids": True, "logprobs": True, "top_logprobs": 2}),
        (CHAT, {"top_logprobs": 3}, {"return_token_ids": True}),
        (CHAT, {"logprobs": []}, {"return_token_ids": True}),
        (CHAT, {"return_token_ids": True}, {"logprobs": True, "top_logprobs": 2}),
        (CHAT, {"return_token_ids": True, "logprobs": True}, {}),
        (CHAT, {"return_tokens_as_token_ids": True}, {"return_token_ids": True}),
        (CHAT, {"echo": True}, {}),
        (TEXT, {"logprobs": 0}, {"return_token_ids": True}),
        (TEXT, {"echo": True}, {}),
        (TEXT, {"use_beam_search": True}, {}),
        ("/v1/embeddings", {}, {}),
    ],
)
def test_what_the_caller_asked_for_himself_is_his(path: str, members: dict[str, Any], changes: dict[str, Any]) -> None:
    """His wishes stay as they are, wrong ones too, and what he gets is not taken out."""
    asked = ask(path, members, Evidence.LOGPROBS)
    assert asked.changes == changes
    his = dump(chat(logprobs=LOGPROBS, token_ids=[1]))
    kept = json.loads(asked.unary(his))["choices"][0]
    assert (kept["logprobs"] is None) == ("logprobs" in changes)
    assert (kept["token_ids"] is None) == ("return_token_ids" in changes)


def test_less_is_asked_where_less_is_wanted() -> None:
    """Token ids alone, or nothing."""
    assert ask(CHAT, {}, Evidence.TOKENS).changes == {"return_token_ids": True}
    assert ask(CHAT, {}, Evidence.NONE) is NOTHING_ASKED
    body = dump(chat())
    assert NOTHING_ASKED.unary(body) is body
    assert NOTHING_ASKED.events(b"data: {}\n\n") == b"data: {}\n\n"


def event(value: object) -> bytes:
    """One event of a stream."""
    return b"data: " + dump(value) + b"\n\n"


def test_a_stream_is_as_if_nobody_had_asked() -> None:
    """Each event likewise; comments and the end pass; a chunk that only carries ids of tokens not yet shown is gone."""
    asked = ask(CHAT, {}, Evidence.LOGPROBS)

    def chunk(delta: dict[str, str], reason: str | None = None, **rest: object) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason, "token_ids": None, **rest}
        return {"id": "1", "choices": [choice]}

    got = b": ping\n\n" + event(chunk({"content": "a"}, logprobs=LOGPROBS, token_ids=[1]))
    got += event(chunk({}, token_ids=[2])) + event(chunk({}, "stop", token_ids=[3])) + b"data: [DONE]\n\n"
    want = b": ping\n\n" + event(chunk({"content": "a"})) + event(chunk({}, "stop")) + b"data: [DONE]\n\n"
    assert asked.events(got) == want


def test_a_chunk_that_carries_what_the_caller_asked_for_stays() -> None:
    """VLLM sends one without a delta for his logprobs too, where a parser holds the text back."""
    choice = {"index": 0, "delta": {}, "logprobs": LOGPROBS, "finish_reason": None, "token_ids": [2]}
    asked = ask(CHAT, {"logprobs": True}, Evidence.LOGPROBS)
    want = event({"id": "1", "choices": [{**choice, "token_ids": None}]})
    assert asked.events(event({"id": "1", "choices": [choice]})) == want


def test_no_more_is_asked_than_the_engine_gives() -> None:
    """Its limit of logprobs is known, or taken for none."""
    for most, members in ((0, ["return_token_ids"]), (1, ["return_token_ids"]), (2, ["return_token_ids", "logprobs"])):
        assert list(ask(TEXT, {}, Evidence.LOGPROBS, most).changes) == members


@pytest.mark.parametrize(
    "body", [b"", b"not json", b"[1]", b'{"error": {"message": "no"}}', b"{", b'{"choices":', b"\xff"]
)
def test_what_is_no_answer_passes(body: bytes) -> None:
    """An error of the engine, or anything else, is the engine's own."""
    asked = ask(CHAT, {}, Evidence.LOGPROBS)
    assert asked.unary(body) == body
    assert asked.events(b"data: " + body + b"\n\n") == b"data: " + body + b"\n\n"


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(
    others=st.dictionaries(st.text(), values, max_size=3),
    choices=st.lists(
        st.dictionaries(st.sampled_from(["index", "text", "logprobs", "token_ids", "x"]), values), max_size=3
    ),
    space=st.sampled_from(["", " ", "\n\t"]),
)
def test_only_our_members_change(others: dict[str, Any], choices: list[dict[str, Any]], space: str) -> None:
    """Whatever else is in an answer, however it is spaced, stays; and the members become null."""
    answer = {**others, "choices": choices}
    text = json.dumps(answer, ensure_ascii=True, separators=("," + space, ":" + space))
    asked = ask(TEXT, {}, Evidence.LOGPROBS)
    want = {
        **{name: None if name == "prompt_token_ids" else value for name, value in others.items()},
        "choices": [
            {name: None if name in {"logprobs", "token_ids"} else value for name, value in choice.items()}
            for choice in choices
        ],
    }
    assert json.loads(asked.unary(text.encode())) == want
