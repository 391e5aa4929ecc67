"""Outputs read from the bodies and events that vLLM 0.32 sends."""

import math
from array import array
from typing import Any

import orjson
import pytest

from app.determinism.output import CHAT_PATH, TEXT_PATH, Blocks, Choice, Output, ToolCall, UnreadableOutput
from app.determinism.reading import OutputBuilder, read_unary

USAGE = {"prompt_tokens": 9, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 4}}


def chat(message: dict[str, Any], **rest: object) -> bytes:
    """A unary chat answer with one choice."""
    choice = {
        "index": 0,
        "message": {"role": "assistant", **message},
        "logprobs": None,
        "finish_reason": "stop",
        **rest,
    }
    return orjson.dumps({"object": "chat.completion", "choices": [choice], "usage": USAGE})


def text(choices: list[dict[str, Any]]) -> bytes:
    """A unary text completion."""
    return orjson.dumps({"object": "text_completion", "choices": choices, "usage": USAGE})


def read(path: str, body: bytes) -> Output:
    """The output of a body that must be readable."""
    output = read_unary(path, body)
    assert output is not None
    return output


def stream(path: str, events: list[dict[str, Any]], *, done: bool = True) -> Output:
    """The output of a stream of these events."""
    builder = OutputBuilder(path)
    for event in events:
        builder.add(orjson.dumps(event))
    return builder.finish(done=done)


def delta(delta: dict[str, Any], index: int = 0, **rest: object) -> dict[str, Any]:
    """One chat event with one choice."""
    return {"choices": [{"index": index, "delta": delta, "logprobs": None, "finish_reason": None, **rest}]}


def test_a_chat_answer() -> None:
    """Text, finish reason and what usage says are read."""
    output = read(CHAT_PATH, chat({"content": "Hello"}))
    assert output.choices == (Choice(0, "Hello", finish_reason="stop"),)
    assert output.complete
    assert (output.cached_tokens, output.completion_tokens) == (4, 2)
    assert output.digest.startswith("o-")
    assert len(output.digest) == 18


def test_a_text_answer_of_several_prompts_is_in_order_of_index() -> None:
    """Choices are sorted, so their order on the wire does not matter."""
    choices = [{"index": 1, "text": "b", "finish_reason": "stop"}, {"index": 0, "text": "a", "finish_reason": "length"}]
    output = read(TEXT_PATH, text(choices))
    assert [choice.text for choice in output.choices] == ["a", "b"]
    assert output == read(TEXT_PATH, text(choices[::-1]))


@pytest.mark.parametrize(
    "change",
    [
        {"content": "Hellp"},
        {"content": "Hello", "reasoning": "because"},
        {"content": "Hello", "refusal": "no"},
        {
            "content": "Hello",
            "tool_calls": [{"id": "x", "type": "function", "function": {"name": "f", "arguments": ""}}],
        },
        {"content": None, "reasoning": "Hello"},
    ],
)
def test_everything_that_a_caller_reads_is_in_the_digest(change: dict[str, Any]) -> None:
    """A change of text, reasoning, refusal or tool calls changes the digest; so does the finish reason."""
    plain = read(CHAT_PATH, chat({"content": "Hello"}))
    assert read(CHAT_PATH, chat(change)).digest != plain.digest
    assert read(CHAT_PATH, chat({"content": "Hello"}, finish_reason="length")).digest != plain.digest


def test_what_the_request_switched_on_is_not_in_the_digest() -> None:
    """Token ids, logprobs, random call ids, empty members and usage leave the digest alone."""
    call = {"id": "chatcmpl-tool-1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    plain = read(CHAT_PATH, chat({"content": "", "tool_calls": [call]}))
    dressed = read(
        CHAT_PATH,
        chat(
            {"content": None, "reasoning": None, "refusal": None, "tool_calls": [{**call, "id": "chatcmpl-tool-2"}]},
            token_ids=[5, 6],
            stop_reason=7,
        ),
    )
    assert plain.digest == dressed.digest
    assert dressed.choices[0].token_ids == array("I", [5, 6])


def test_reasoning_under_its_older_name() -> None:
    """Engines before vLLM 0.11 called it reasoning_content."""
    assert read(CHAT_PATH, chat({"reasoning_content": "r"})) == read(CHAT_PATH, chat({"reasoning": "r"}))


def test_a_stream_is_its_unary_answer() -> None:
    """Role, reasoning, content, finish and usage chunks together are the unary answer, digest included."""
    streamed = stream(
        CHAT_PATH,
        [
            delta({"role": "assistant", "content": ""}),
            delta({"reasoning": "Hm"}),
            delta({"reasoning": "m."}),
            delta({"content": "Hel"}),
            delta({"content": "lo"}),
            delta({}, finish_reason="stop", stop_reason=None),
            {"choices": [], "usage": USAGE},
        ],
    )
    assert streamed == read(CHAT_PATH, chat({"content": "Hello", "reasoning": "Hmm."}))


def test_streamed_tool_calls_are_joined_by_index() -> None:
    """Names and argument pieces of interleaved calls come together as the unary answer has them."""
    calls = [
        {"index": 0, "id": "a", "type": "function", "function": {"name": "f", "arguments": ""}},
        {"index": 0, "function": {"arguments": '{"x":'}},
        {"index": 1, "id": "b", "function": {"name": "g", "arguments": "{}"}},
        {"index": 0, "function": {"arguments": "1}"}},
        {"index": 1},
    ]
    streamed = stream(
        CHAT_PATH, [*(delta({"tool_calls": [call]}) for call in calls), delta({}, finish_reason="tool_calls")]
    )
    unary = chat(
        {
            "content": None,
            "tool_calls": [
                {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"x":1}'}},
                {"id": "d", "type": "function", "function": {"name": "g", "arguments": "{}"}},
            ],
        },
        finish_reason="tool_calls",
    )
    assert streamed.choices[0].tool_calls == (ToolCall("f", '{"x":1}'), ToolCall("g", "{}"))
    assert streamed.digest == read(CHAT_PATH, unary).digest


def called(*pieces: str) -> Output:
    """A stream with one tool call whose arguments come in these pieces."""
    calls = [{"index": 0, "function": {"name": "f"}}, *({"index": 0, "function": {"arguments": p}} for p in pieces)]
    return stream(
        CHAT_PATH, [*(delta({"tool_calls": [call]}) for call in calls), delta({}, finish_reason="tool_calls")]
    )


@pytest.mark.parametrize(
    ("raw", "written_anew"),
    [
        ('{"a":1}', '{"a": 1}'),
        ('{\n  "city": "Z\\u00fcrich"}', '{"city": "Zürich"}'),
        ('{"a": [1e2, 0.10], "b": NaN}', '{"a": [100.0, 0.1], "b": NaN}'),
        ('{"a": 123456789012345678901234567890}', '{"a":123456789012345678901234567890}'),
        ('{"half": "\\ud800"}', '{"half":"\\uD800"}'),
        ('{"a": 1, "a": 2}', '{"a": 2}'),
        ("{}", " {}"),
    ],
)
def test_arguments_that_the_unary_form_writes_anew(raw: str, written_anew: str) -> None:
    """Engines stream what the model wrote and rewrite it in the unary form: both are one answer, digest included."""
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": written_anew}}
    unary = read(CHAT_PATH, chat({"content": None, "tool_calls": [call]}, finish_reason="tool_calls"))
    streamed = called(raw[:3], raw[3:])
    assert streamed.choices == unary.choices
    assert streamed.digest == unary.digest


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ('{"a": 1}', '{"a": 2}'),
        ('{"a": 1}', '{"a": 1.0}'),
        ('{"a": 1}', '{"a": true}'),
        ('{"a": 1}', '{"a": "1"}'),
        ('{"a": "x y"}', '{"a": "xy"}'),
        ('{"a": 1, "b": 2}', '{"b": 2, "a": 1}'),
        ('{"a": 18446744073709551617}', '{"a": 18446744073709551618}'),
        ('{"a": ', '{"a":'),
        ("", "{}"),
    ],
)
def test_arguments_that_say_something_else_differ(one: str, other: str) -> None:
    """Values, their kinds and the order of keys are in the digest; what is no JSON counts as it was written."""
    assert called(one).digest != called(other).digest


@pytest.mark.parametrize("raw", ["", '{"a": ', "[" * 100_000, '{"a": ' + "9" * 5000 + "}", "\ufeff{}"])
def test_arguments_that_do_not_parse_stay_as_they_are(raw: str) -> None:
    """Text that is no JSON, or is nested or long beyond what a parser takes, is kept and is never an exception."""
    assert called(raw).choices[0].tool_calls == (ToolCall("f", raw),)
    assert ToolCall("f", raw).arguments == raw


def test_streamed_choices_are_kept_apart() -> None:
    """With n > 1, or a list of prompts, each index has its own text."""
    events = [
        {"choices": [{"index": 1, "text": "x", "finish_reason": None}]},
        {"choices": [{"index": 0, "text": "a", "finish_reason": None}]},
        {
            "choices": [
                {"index": 1, "text": "y", "finish_reason": "stop"},
                {"index": 0, "text": "b", "finish_reason": "length"},
            ]
        },
    ]
    output = stream(TEXT_PATH, events)
    assert [(choice.text, choice.finish_reason) for choice in output.choices] == [("ab", "length"), ("xy", "stop")]
    assert output.complete


@pytest.mark.parametrize(
    ("events", "done"),
    [
        ([delta({"content": "x"})], True),
        ([delta({"content": "x"}, finish_reason="stop")], False),
        ([delta({"content": "x"}, finish_reason="abort")], True),
        ([delta({"content": "x"}, finish_reason="error")], True),
        ([delta({"content": "x"}, finish_reason="stop"), delta({"content": "y"}, index=1)], True),
        ([], True),
    ],
)
def test_an_answer_cut_short_is_incomplete(events: list[dict[str, Any]], done: bool) -> None:
    """Without an end, or with a choice that did not finish, an output is incomplete."""
    assert not stream(CHAT_PATH, events, done=done).complete


def test_an_error_event_makes_the_output_incomplete() -> None:
    """The engine reports a fault in the middle of a stream as an error event, and may still say [DONE]."""
    builder = OutputBuilder(CHAT_PATH)
    builder.add(orjson.dumps(delta({"content": "x"}, finish_reason="stop")))
    builder.add(b'{"error":{"message":"EngineCore encountered an issue","code":500}}')
    assert builder.failed
    assert not builder.finish(done=True).complete


def test_token_ids_are_exact_only_when_no_piece_lacks_them() -> None:
    """Ids of all pieces are the choice's ids; one piece of text without ids makes them unknown."""
    first = delta({"content": "a"}, token_ids=[1, 2])
    assert stream(CHAT_PATH, [first, delta({"content": "b"}, token_ids=[3])]).choices[0].token_ids == array(
        "I", [1, 2, 3]
    )
    assert stream(CHAT_PATH, [first, delta({"content": "b"})]).choices[0].token_ids is None


def test_tokens_and_margins_of_chat_logprobs() -> None:
    """Token texts and the distance of the top two are kept; half characters are told apart by their bytes."""
    logprobs = {
        "content": [
            {"token": "I", "logprob": -1.5, "bytes": [73], "top_logprobs": [{"logprob": -1.5}, {"logprob": -1.75}]},
            {"token": "\ufffd", "logprob": -1.0, "bytes": [240], "top_logprobs": [{"logprob": -1.0}]},
        ]
    }
    choice = read(CHAT_PATH, chat({"content": "I"}, logprobs=logprobs)).choices[0]
    assert choice.tokens == ("I", "\ufffdf0")
    assert choice.margins is not None
    assert choice.margins[0] == 0.25
    assert math.isnan(choice.margins[1])


def test_tokens_and_margins_of_text_logprobs() -> None:
    """Text completions list tokens and top logprobs beside each other."""
    logprobs = {"tokens": [",", "x"], "token_logprobs": [-2.0, -1.0], "top_logprobs": [{",": -2.0, "-": -1.5}, None]}
    choice = read(TEXT_PATH, text([{"index": 0, "text": ",x", "finish_reason": "stop", "logprobs": logprobs}])).choices[
        0
    ]
    assert choice.tokens == (",", "x")
    assert choice.margins is not None
    assert choice.margins[0] == 0.5


def test_tokens_written_as_ids_are_exact_ids() -> None:
    """With return_tokens_as_token_ids the logprobs carry the ids themselves."""
    logprobs = {"tokens": ["token_id:28", "token_id:7348"], "token_logprobs": [-2.0, -1.0], "top_logprobs": None}
    choice = read(
        TEXT_PATH, text([{"index": 0, "text": ",asty", "finish_reason": "stop", "logprobs": logprobs}])
    ).choices[0]
    assert choice.token_ids == array("I", [28, 7348])
    assert choice.tokens is None


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"not json",
        b"[]",
        b"{}",
        b'"text"',
        b'{"error":{"message":"no"}}',
        b'{"choices":null}',
        b'{"choices":[1]}',
        b'{"choices":[{"index":0}]}',
        b'{"choices":[{"index":"0","message":{"content":"x"},"finish_reason":"stop"}]}',
        b'{"choices":[{"index":0,"message":{"content":1},"finish_reason":"stop"}]}',
        b'{"choices":[{"index":0,"message":{"content":"x"},"finish_reason":3}]}',
        b'{"choices":[{"index":0,"message":{"content":"x"},"finish_reason":"stop","token_ids":["a"]}]}',
        b'{"choices":[{"index":0,"message":{"content":"x"},"finish_reason":"stop","token_ids":[4294967296]}]}',
        b'{"choices":[{"index":[],"message":{"content":"x"},"finish_reason":"stop"}]}',
        b'{"choices":[{"index":0,"message":{"content":"x","tool_calls":[1]},"finish_reason":"stop"}]}',
        b'{"choices":[{"index":0,"message":{"content":"x"},"finish_reason":"stop"}],"usage":[1]}',
    ],
)
def test_what_is_no_answer_is_none(body: bytes) -> None:
    """Any other body is no output, and never an exception."""
    assert read_unary(CHAT_PATH, body) is None


def test_other_paths_are_not_read() -> None:
    """Only the two completion paths have an output."""
    assert read_unary("/v1/embeddings", chat({"content": "x"})) is None
    with pytest.raises(ValueError, match="not read"):
        OutputBuilder("/v1/embeddings")


@pytest.mark.parametrize("event", [b"", b"{", b"[]", b"1", b'{"choices":[{"index":0}]}', b'{"choices":[{"delta":{}}]}'])
def test_an_unexpected_event_is_unreadable(event: bytes) -> None:
    """A malformed event raises the one error of this module."""
    with pytest.raises(UnreadableOutput):
        OutputBuilder(CHAT_PATH).add(event)


def test_a_wrong_type_found_at_the_end_is_unreadable() -> None:
    """A content that is no string is found when the pieces are joined."""
    builder = OutputBuilder(CHAT_PATH)
    builder.add(b'{"choices":[{"index":0,"delta":{"content":7}}]}')
    with pytest.raises(UnreadableOutput):
        builder.finish(done=True)


def test_blocks_are_of_tokens_where_all_ids_are_known() -> None:
    """One digest per 64 tokens of each choice, else per 256 characters."""
    known = Output.of([Choice(0, "x", finish_reason="stop", token_ids=array("I", range(65)))])
    assert known.blocks.unit == "tokens"
    assert [len(blocks) for blocks in known.blocks.choices] == [16]
    partly = Output.of([known.choices[0], Choice(1, "y" * 257, finish_reason="stop")])
    assert partly.blocks.unit == "characters"
    assert [len(blocks) for blocks in partly.blocks.choices] == [8, 16]


def test_blocks_survive_their_text_form() -> None:
    """What a store keeps is read back as it was, empty choices included."""
    for blocks in (Blocks("tokens", (b"12345678", b"")), Blocks("characters", (b"1234567887654321",))):
        assert Blocks.from_text(blocks.to_text()) == blocks
    for wrong in ("", "tokens", "words:00", "tokens:zz"):
        with pytest.raises(ValueError, match=r"."):
            Blocks.from_text(wrong)


def test_flow_reads_in_the_order_of_generation() -> None:
    """Reasoning comes before text, and text before tool calls; a plain answer's flow is its text."""
    assert Choice(0, "text").flow == "text"
    assert Choice(0, "text", reasoning="why", tool_calls=(ToolCall("f", "{}"),)).flow == "why\x1etext\x1ef\x1e{}"


def test_weight_grows_with_the_text() -> None:
    """The memory estimate follows what is held."""
    small = Output.of([Choice(0, "x", finish_reason="stop")])
    large = Output.of([Choice(0, "x" * 10_000, finish_reason="stop", token_ids=array("I", range(1000)))])
    assert large.weight - small.weight == 9_999 + 4_000


@pytest.mark.parametrize(("sign", "each"), [("e", 1), ("é", 1), ("字", 2), ("\U0001f600", 4)])
def test_weight_is_in_bytes_not_in_characters(sign: str, each: int) -> None:
    """One sign beyond Latin-1 makes every character of its text larger, wherever in an answer it stands."""
    said = sign + "x" * 99_999
    # Beside the text itself, one outside ASCII holds its UTF-8 form from when its digest was made.
    most = 100_000 * (each + (sign != "e")) + 2000
    for choice in (Choice(0, said), Choice(0, reasoning=said), Choice(0, refusal=said)):
        assert 100_000 * each <= Output.of([choice]).weight <= most
    call = ToolCall("f", said)
    assert 100_000 * each <= Output.of([Choice(0, tool_calls=(call,))]).weight <= most
    assert 100_000 * each <= Output.of([Choice(0, tool_calls=(ToolCall(said, ""),))]).weight <= most


def counting(count: object) -> Output:
    """An answer whose engine counts so many tokens, generated and from the cache."""
    usage = {"completion_tokens": count, "prompt_tokens_details": {"cached_tokens": count}}
    return read(CHAT_PATH, orjson.dumps(orjson.loads(chat({"content": "x"})) | {"usage": usage}))


@pytest.mark.parametrize("count", [-1, 2**53 + 1, 2**63, 2**64 - 1, 1.5, True, "7", None])
def test_a_figure_that_cannot_be_is_not_known(count: object) -> None:
    """What no engine can mean is left out where it is read, so that it reaches no store and no sum."""
    output = counting(count)
    assert (output.cached_tokens, output.completion_tokens) == (None, None)
    assert output.complete


@pytest.mark.parametrize("count", [0, 7, 2**53])
def test_a_figure_that_can_be_is_believed(count: int) -> None:
    """From none to the largest that every reader of JSON keeps exactly."""
    output = counting(count)
    assert (output.cached_tokens, output.completion_tokens) == (count, count)


def test_an_absurd_logprob_is_not_known() -> None:
    """Differences of such figures would be infinite, which no JSON can say and no sum recovers from."""
    tops = [{"token": "x", "logprob": 1e308}, {"token": "y", "logprob": -1e308}]
    logprobs = {"content": [{"token": "x", "logprob": 1e308, "top_logprobs": tops}]}
    (choice,) = read(CHAT_PATH, chat({"content": "x"}, logprobs=logprobs)).choices
    assert choice.margins is not None
    assert choice.logprobs is not None
    assert math.isnan(choice.margins[0])
    assert math.isnan(choice.logprobs[0])
