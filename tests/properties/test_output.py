"""Laws of outputs: streamed and unary forms agree, and forks are where a plain loop finds them."""

import json
from itertools import takewhile
from typing import Any

import orjson
from hypothesis import given
from hypothesis import strategies as st

from app.determinism.divergence import Verdict, bracket, compare, first_difference
from app.determinism.output import CHAT_PATH, TEXT_PATH, Choice, Output, ToolCall, UnreadableOutput
from app.determinism.reading import OutputBuilder, read_unary

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
REASONS = st.sampled_from(["stop", "length", "tool_calls"])
CALLS = st.lists(st.tuples(TEXTS, TEXTS), max_size=3)
MESSAGES = st.tuples(TEXTS, TEXTS, TEXTS, CALLS, REASONS)
NAMES = [
    *("choices", "index", "delta", "message", "content", "text", "tool_calls", "function", "logprobs", "token_ids"),
    *("tokens", "usage", "error", "finish_reason", "top_logprobs", "prompt_tokens_details"),
]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=4),
    max_leaves=12,
)


def unary(messages: list[Any]) -> bytes:
    """The unary chat answer of these messages."""
    choices = []
    for index, (text, reasoning, refusal, calls, reason) in enumerate(messages):
        message = {
            "role": "assistant",
            "content": text or None,
            "reasoning": reasoning or None,
            "refusal": refusal or None,
        }
        tools = [
            {"id": "x", "type": "function", "function": {"name": name, "arguments": given}} for name, given in calls
        ]
        choices.append({"index": index, "message": {**message, "tool_calls": tools}, "finish_reason": reason})
    return orjson.dumps({"choices": choices, "usage": {"completion_tokens": 3}})


def cut(data: st.DataObject, text: str) -> list[str]:
    """A text in pieces."""
    places = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=4)))
    return [text[start:stop] for start, stop in zip([0, *places], [*places, len(text)], strict=True)]


def streamed(data: st.DataObject, messages: list[Any]) -> Output:
    """The output of a stream that tells the same messages, cut and interleaved at will."""
    lanes = []
    for index, (text, reasoning, refusal, calls, reason) in enumerate(messages):
        deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
        deltas += [{"reasoning": piece} for piece in cut(data, reasoning)]
        deltas += [{"content": piece} for piece in cut(data, text)]
        deltas += [{"refusal": piece} for piece in cut(data, refusal)]
        for number, (name, arguments) in enumerate(calls):
            deltas.append({"tool_calls": [{"index": number, "id": "y", "function": {"name": name}}]})
            deltas += [
                {"tool_calls": [{"index": number, "function": {"arguments": piece}}]} for piece in cut(data, arguments)
            ]
        lane = [{"index": index, "delta": delta, "finish_reason": None} for delta in deltas]
        lanes.append([*lane, {"index": index, "delta": {}, "finish_reason": reason}])
    builder = OutputBuilder(CHAT_PATH)
    while lanes:
        lane = data.draw(st.sampled_from(lanes))
        builder.add(orjson.dumps({"choices": [lane.pop(0)]}))
        lanes = [left for left in lanes if left]
    builder.add(b'{"choices":[],"usage":{"completion_tokens":3}}')
    return builder.finish(done=True)


@given(data=st.data(), messages=st.lists(MESSAGES, min_size=1, max_size=3))
def test_streamed_and_unary_forms_are_equal(data: st.DataObject, messages: list[Any]) -> None:
    """However an answer is cut and its choices interleaved, its output is that of the unary answer, digest included."""
    assert streamed(data, messages) == read_unary(CHAT_PATH, unary(messages))


@given(left=st.lists(MESSAGES, min_size=1, max_size=2), right=st.lists(MESSAGES, min_size=1, max_size=2))
def test_digests_are_equal_exactly_when_the_answers_are(left: list[Any], right: list[Any]) -> None:
    """Two answers have one digest when every readable part is equal, and only then."""
    one, other = read_unary(CHAT_PATH, unary(left)), read_unary(CHAT_PATH, unary(right))
    assert one is not None
    assert other is not None
    assert (one.digest == other.digest) == (one.choices == other.choices)


@given(
    value=st.dictionaries(TEXTS, JSON, max_size=3),
    indent=st.none() | st.integers(0, 3),
    comma=st.sampled_from([",", ", ", " ,\n"]),
    colon=st.sampled_from([":", ": ", "\t: "]),
    escaped=st.booleans(),
)
def test_arguments_are_their_json_however_they_are_written(
    value: object, indent: int | None, comma: str, colon: str, escaped: bool
) -> None:
    """White space and escapes are no part of a tool call, and its arguments still hold the same value."""
    written = json.dumps(value, indent=indent, separators=(comma, colon), ensure_ascii=escaped)
    call = ToolCall("f", written)
    assert call == ToolCall("f", json.dumps(value))
    assert json.loads(call.arguments) == value
    assert ToolCall("f", call.arguments) == call


@given(document=JSON, path=st.sampled_from([CHAT_PATH, TEXT_PATH]))
def test_any_json_is_an_output_or_unreadable(document: object, path: str) -> None:
    """No document, however odd, makes reading raise anything but its own error."""
    read_unary(path, orjson.dumps(document))
    builder = OutputBuilder(path)
    try:
        builder.add(orjson.dumps(document))
        builder.finish(done=True)
    except UnreadableOutput:
        pass


@given(left=st.text("ab", max_size=40), right=st.text("ab", max_size=40))
def test_the_first_difference_is_where_a_loop_finds_it(left: str, right: str) -> None:
    """Halving finds the place that comparing item by item does."""
    plain = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(left, right, strict=False)))
    assert first_difference(left, right) == plain
    assert first_difference(right, left) == plain


@given(prefix=st.integers(0, 600), left=st.text("ab", max_size=300), right=st.text("ab", max_size=300))
def test_the_bracket_holds_the_fork(prefix: int, left: str, right: str) -> None:
    """Block digests alone place the fork within one block of where the texts fork."""
    one = Output.of([Choice(0, "x" * prefix + left, finish_reason="stop")])
    other = Output.of([Choice(0, "x" * prefix + right, finish_reason="stop")])
    comparison, place = compare(one, other), bracket(one.blocks, other.blocks)
    if comparison.verdict is Verdict.MATCH:
        assert place is None
    else:
        assert place is not None
        assert comparison.fork_characters is not None
        assert place.start <= comparison.fork_characters < place.stop
