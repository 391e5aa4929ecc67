"""The splitter gives the same events however the bytes are cut, and the same as a plain reading of the standard."""

import re

from hypothesis import given
from hypothesis import strategies as st

from app.upstream.sse import SseOverflow, SseSplitter

ENDS = st.sampled_from([b"\n", b"\r\n", b"\r"])
LINES = st.one_of(
    st.sampled_from(
        [b"", b": note", b"event: e", b"data", b"data:", b"data: [DONE]", b"\xef\xbb\xbfdata: x", b'data: {"a":1}']
    ),
    st.text(alphabet='ab: {"}\\é', max_size=12).map(lambda text: b"data: " + text.encode()),
    st.text(alphabet="ad: \u2028", max_size=8).map(str.encode),
)
STREAMS = st.one_of(
    st.lists(st.tuples(LINES, ENDS)).map(lambda lines: b"".join(line + end for line, end in lines)),
    st.lists(st.sampled_from([b'data: {"a":1}\n\n', b"data: [DONE]\n\n", b": c\n\n", b"\n", b"data: {x"])).map(
        b"".join
    ),
    st.binary(max_size=60),
)


def pieces(stream: bytes, cuts: list[int]) -> list[bytes]:
    """The stream cut at the given places."""
    places = sorted({cut % (len(stream) + 1) for cut in cuts})
    return [stream[start:stop] for start, stop in zip([0, *places], [*places, len(stream)], strict=True)]


def plainly(stream: bytes) -> tuple[list[bytes], bool]:
    """The events by the standard, from the whole stream at once."""
    events: list[bytes] = []
    data: list[bytes] = []
    lines = re.split(rb"\r\n|\n|\r", stream.removeprefix(b"\xef\xbb\xbf"))
    for line in lines[:-1]:
        name, _, value = line.partition(b":")
        if line == b"":
            if data and b"\n".join(data) == b"[DONE]":
                return events, True
            if data:
                events.append(b"\n".join(data))
            data = []
        elif name == b"data":
            data.append(value.removeprefix(b" "))
    return events, False


@given(stream=STREAMS, cuts=st.lists(st.integers(0, 200)))
def test_any_chunking_gives_the_events_of_the_standard(stream: bytes, cuts: list[int]) -> None:
    """Cut anywhere, even inside a line end or a character, the events and the end are those of the whole."""
    splitter = SseSplitter()
    events = [event for piece in pieces(stream, cuts) for event in splitter.feed(piece)]
    assert (events, splitter.finished) == plainly(stream)


@given(stream=STREAMS, cuts=st.lists(st.integers(0, 200)), limit=st.integers(1, 40))
def test_nothing_longer_than_the_limit_comes_out(stream: bytes, cuts: list[int], limit: int) -> None:
    """With any limit the splitter gives events within it, or the one error of its own."""
    splitter = SseSplitter(limit)
    try:
        events = [event for piece in pieces(stream, cuts) for event in splitter.feed(piece)]
    except SseOverflow:
        return
    assert all(len(event) <= limit for event in events)
