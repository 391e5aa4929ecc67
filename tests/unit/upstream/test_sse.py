"""The event-stream splitter, rule by rule."""

import pytest

from app.upstream.sse import SseOverflow, SseSplitter


def split(*chunks: bytes) -> list[bytes]:
    """All events of a stream that comes in these chunks."""
    splitter = SseSplitter()
    return [event for chunk in chunks for event in splitter.feed(chunk)]


def feed_often(splitter: SseSplitter, chunk: bytes) -> None:
    """The same chunk thirty times."""
    for _ in range(30):
        splitter.feed(chunk)


def test_one_whole_event_is_its_data() -> None:
    """The usual chunk gives the JSON between its prefix and its empty line."""
    assert split(b'data: {"a":1}\n\n') == [b'{"a":1}']


def test_many_events_in_one_chunk() -> None:
    """Coalesced events come apart, in order."""
    assert split(b'data: {"a":1}\n\ndata: {"b":2}\n\n') == [b'{"a":1}', b'{"b":2}']


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_every_line_end(end: bytes) -> None:
    """LF, CR LF and CR end a line."""
    assert split(b"data: x" + end + end + b"data: y" + end + end) == [b"x", b"y"]


def test_a_line_end_cut_in_two_is_one() -> None:
    """CR at the end of a chunk and LF at the start of the next do not make an empty line."""
    assert split(b"data: x\r", b"\ndata: y\r\n", b"\r\n") == [b"x\ny"]


def test_comments_and_other_fields_are_no_data() -> None:
    """Comments, event names, ids and retry times leave the data as it is."""
    assert split(b": hello\nevent: e\nid: 1\ndata: x\nretry: 5\n\n: alone\n\n") == [b"x"]


def test_data_lines_are_joined() -> None:
    """Several data lines are one payload with line feeds; only one space after the colon goes."""
    assert split(b"data:  x\ndata\ndata:y\n\n") == [b" x\n\ny"]


def test_an_event_without_its_empty_line_is_none() -> None:
    """What the stream did not complete is not an event."""
    assert split(b'data: {"a":1}\n') == []


def test_a_byte_order_mark_goes_only_at_the_start() -> None:
    """A mark before the first line is skipped, in pieces too; later it is part of a field name."""
    assert split(b"\xef\xbb", b"\xbfdata: x\n\n\xef\xbb\xbfdata: y\n\n") == [b"x"]


def test_done_is_the_end() -> None:
    """[DONE] is no event, sets finished, and nothing after it is read."""
    splitter = SseSplitter()
    assert splitter.feed(b'data: {"a":1}\n\n') == [b'{"a":1}']
    before = splitter.finished
    assert splitter.feed(b'data: [DONE]\n\ndata: {"b":2}\n\n') == []
    assert (before, splitter.finished) == (False, True)
    assert splitter.feed(b'data: {"c":3}\n\n') == []


def test_done_inside_an_answer_is_text() -> None:
    """The word in a payload ends nothing."""
    splitter = SseSplitter()
    assert splitter.feed(b'data: {"a":"data: [DONE]"}\n\n') == [b'{"a":"data: [DONE]"}']
    assert not splitter.finished


@pytest.mark.parametrize("end", [b"", b"\n"])
def test_a_line_over_the_limit_is_refused(end: bytes) -> None:
    """A line that is longer than the limit raises, complete or not, in one chunk or in many."""
    with pytest.raises(SseOverflow, match="100 bytes"):
        SseSplitter(100).feed(b"data: " + b"x" * 100 + end)
    with pytest.raises(SseOverflow):
        feed_often(SseSplitter(100), b"xxxxx")


def test_an_event_over_the_limit_is_refused() -> None:
    """Short data lines without an empty line between them are bounded as one event."""
    with pytest.raises(SseOverflow):
        feed_often(SseSplitter(100), b"data: xxxx\n")


def test_a_chunk_over_the_limit_may_hold_many_events() -> None:
    """The limit is one of lines and events, not of chunks."""
    assert SseSplitter(100).feed(b'data: {"a":1}\n\n' * 50) == [b'{"a":1}'] * 50
