"""Watches: what they see of an answer, and that nothing makes them raise."""

import logging

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.determinism.output import CHAT_PATH
from app.determinism.reading import read_unary
from app.observation.watch import StreamWatch, UnaryWatch

DONE = b"data: [DONE]\n\n"


def event(content: str, finish: str | None = None) -> bytes:
    """One chat event."""
    choice = {"index": 0, "delta": {"content": content}, "logprobs": None, "finish_reason": finish}
    return b"data: " + orjson.dumps({"choices": [choice]}) + b"\n\n"


def answer(content: str, finish: str = "stop") -> bytes:
    """One unary chat answer."""
    return orjson.dumps(
        {"choices": [{"index": 0, "message": {"role": "assistant", "content": content}, "finish_reason": finish}]}
    )


def test_a_stream_that_came_to_its_end() -> None:
    """The output is complete and equals the unary answer's."""
    watch = StreamWatch(CHAT_PATH)
    for chunk in (event("Hel"), event("lo", "stop"), DONE):
        assert not watch.done
        watch.feed(chunk)
    assert watch.done
    assert watch.skip_reason is None
    assert watch.output() == read_unary(CHAT_PATH, answer("Hello"))


def test_pieces_are_events_with_content() -> None:
    """Neither the role, nor the end, nor a usage is content; events that came in one piece are counted each."""
    role = b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}\n\n'
    usage = b'data: {"choices":[],"usage":null}\n\n'
    watch = StreamWatch(CHAT_PATH)
    watch.feed(role + event("Hel"))
    watch.feed(event("lo") + event("", "stop") + usage + DONE)
    assert watch.pieces == 2
    assert StreamWatch("/v1/responses").pieces == 0
    assert UnaryWatch(CHAT_PATH).pieces == 1


def test_pieces_of_every_kind_and_choice() -> None:
    """Reasoning and the arguments of calls are generated too, in each choice."""
    deltas: list[dict[str, object]] = [
        {"reasoning": "hm"},
        {"content": "a"},
        {"tool_calls": [{"index": 0, "function": {"name": "f", "arguments": '{"x":'}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": "1}"}}]},
        {"refusal": "no"},
    ]
    watch = StreamWatch(CHAT_PATH)
    for index in (0, 1):
        for delta in deltas:
            choice = {"index": index, "delta": delta, "finish_reason": None}
            watch.feed(b"data: " + orjson.dumps({"choices": [choice]}) + b"\n\n")
    assert watch.pieces == 10


@given(cuts=st.lists(st.integers(0, 400), max_size=8))
def test_a_stream_in_any_pieces(cuts: list[int]) -> None:
    """Where the network cut the stream does not matter."""
    stream = event("Hel") + b": note\n\n" + event("lo", "stop") + DONE
    places = sorted({cut % (len(stream) + 1) for cut in cuts})
    watch = StreamWatch(CHAT_PATH)
    for start, stop in zip([0, *places], [*places, len(stream)], strict=True):
        watch.feed(stream[start:stop])
    assert watch.done
    assert watch.output() == read_unary(CHAT_PATH, answer("Hello"))


def test_a_stream_that_was_cut() -> None:
    """Without [DONE] there is an output, and it is incomplete."""
    watch = StreamWatch(CHAT_PATH)
    watch.feed(event("Hello", "stop"))
    output = watch.output()
    assert output is not None
    assert (watch.skip_reason, output.complete) == ("incomplete", False)


def test_an_error_event() -> None:
    """What the engine reports in the middle of a stream is its error, even before a [DONE]."""
    watch = StreamWatch(CHAT_PATH)
    watch.feed(event("x") + b'data: {"error":{"message":"broken"}}\n\n' + DONE)
    output = watch.output()
    assert watch.skip_reason == "upstream_error"
    assert output is not None
    assert not output.complete


@pytest.mark.parametrize(
    "bad", [b"data: {broken}\n\n", b"data: 1\n\n", b'data: {"choices":[{}]}\n\n', b"data: \xff\n\n"]
)
def test_a_stream_that_cannot_be_read(bad: bytes) -> None:
    """An unreadable event is a skip reason; the end of the stream is still seen."""
    watch = StreamWatch(CHAT_PATH)
    for chunk in (event("x"), bad, event("y", "stop"), DONE):
        watch.feed(chunk)
    assert (watch.skip_reason, watch.output(), watch.done) == ("unparsable", None, True)


def test_an_unreadable_event_together_with_the_end() -> None:
    """One chunk may hold both; the end counts."""
    watch = StreamWatch(CHAT_PATH)
    watch.feed(b"data: {broken}\n\n" + DONE)
    assert (watch.skip_reason, watch.done) == ("unparsable", True)


def test_a_content_of_the_wrong_type_is_found_at_the_end() -> None:
    """The output is then none, with its reason."""
    watch = StreamWatch(CHAT_PATH)
    watch.feed(b'data: {"choices":[{"index":0,"delta":{"content":7},"finish_reason":"stop"}]}\n\n' + DONE)
    assert watch.output() is None
    assert watch.skip_reason == "unparsable"


def test_a_stream_that_is_too_large_is_forgotten() -> None:
    """Above the limit nothing is kept, the reason says so, and the end is still seen."""
    watch = StreamWatch(CHAT_PATH, limit=1000)
    for _ in range(50):
        watch.feed(event("x"))
    watch.feed(DONE)
    assert (watch.skip_reason, watch.output(), watch.done) == ("too_large", None, True)
    assert watch._builder is None


@pytest.mark.parametrize("pieces", [[DONE], [DONE[:5], DONE[5:]], [b"rest\n\n" + DONE]])
def test_the_end_is_seen_after_an_endless_line(pieces: list[bytes]) -> None:
    """Even a line over the limit does not hide that the stream came to its end, and text does not fake it."""
    watch = StreamWatch(CHAT_PATH, limit=100)
    watch.feed(b"data: {" + b"x" * 200)
    watch.feed(b"data: [DONE]")
    assert not watch.done
    watch.feed(b"\n\n")
    for piece in pieces:
        watch.feed(piece)
    assert (watch.skip_reason, watch.done) == ("too_large", True)


def test_another_path_is_not_applicable() -> None:
    """Paths without a known answer are followed to their end and not read."""
    watch = StreamWatch("/v1/responses")
    watch.feed(b'event: x\ndata: {"type":"x"}\n\n' + DONE)
    assert (watch.skip_reason, watch.output(), watch.done) == ("not_applicable", None, True)


def test_a_fault_of_the_watch_stays_inside(caplog: pytest.LogCaptureFixture) -> None:
    """Whatever breaks in the watch is logged and becomes a skip reason; the relay goes on."""
    watch = StreamWatch(CHAT_PATH)
    watch._builder = 7  # type: ignore[assignment]  # any fault will do
    with caplog.at_level(logging.ERROR):
        watch.feed(event("x"))
    assert (watch.skip_reason, watch.output()) == ("unparsable", None)
    assert "the watch of a stream failed" in caplog.text
    watch.feed(DONE)
    assert watch.done


@given(chunks=st.lists(st.binary(max_size=40) | st.sampled_from([event("x"), DONE, b"data: {", b"\r"])))
def test_nothing_makes_a_watch_raise(chunks: list[bytes]) -> None:
    """Any bytes are taken, by both kinds."""
    stream, unary = StreamWatch(CHAT_PATH, limit=90), UnaryWatch(CHAT_PATH, limit=90)
    for watch in (stream, unary):
        for chunk in chunks:
            watch.feed(chunk)
        output = watch.output()
        assert (output is not None and output.complete) == (watch.skip_reason is None)


def test_a_unary_answer_in_pieces() -> None:
    """The body is read once it is whole, and once only."""
    watch = UnaryWatch(CHAT_PATH)
    body = answer("Hello")
    watch.feed(body[:10])
    watch.feed(body[10:])
    output = watch.output()
    assert output == read_unary(CHAT_PATH, body)
    assert watch.output() is output
    assert watch.skip_reason is None


@pytest.mark.parametrize(
    ("path", "body", "limit", "reason"),
    [
        (CHAT_PATH, b'{"choices":[', 1000, "unparsable"),
        (CHAT_PATH, answer("x", "abort"), 1000, "incomplete"),
        (CHAT_PATH, answer("x" * 1000), 100, "too_large"),
        ("/v1/embeddings", b"{}", 1000, "not_applicable"),
    ],
)
def test_unary_answers_that_are_not_compared(path: str, body: bytes, limit: int, reason: str) -> None:
    """Each has its reason, and nothing above the limit is kept."""
    watch = UnaryWatch(path, limit=limit)
    for start in range(0, len(body), 50):
        watch.feed(body[start : start + 50])
    output = watch.output()
    assert watch.skip_reason == reason
    assert output is None or not output.complete
    assert watch._pieces == []
