"""The end of a stream: the guard's comment out, ours in before [DONE], every other byte as it came."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.errors import UpstreamReset
from app.upstream import splice as module
from app.upstream.splice import StreamSplice

EVENTS = b'data: {"a":1}\n\n: ping\n\ndata: {"text":"data: [DONE]"}\n\n'
GUARD = b': reprise-guard {"coresident_peak":7}\n\n'
DONE = b"data: [DONE]\n\n"


def relay(chunks: list[bytes]) -> tuple[bytes, bytes, StreamSplice]:
    splice = StreamSplice()
    before, after = b"", b""
    for chunk in chunks:
        now, last = splice.feed(chunk)
        before, after = before + now, after + last
    return before, after, splice


@given(st.lists(st.integers(0, len(EVENTS + GUARD + DONE)), max_size=8))
def test_any_chunking_gives_the_same_bytes(cuts: list[int]) -> None:
    """However the network cuts the stream, the relayed bytes and the peak are the same."""
    data = EVENTS + GUARD + DONE
    edges = [0, *sorted(cuts), len(data)]

    before, after, splice = relay([data[a:b] for a, b in pairwise(edges)])

    assert (before, after, splice.peak, splice.done) == (EVENTS, DONE, 7, True)


def test_an_ordinary_chunk_passes_as_the_same_object() -> None:
    """The hot path copies nothing."""
    chunk = b'data: {"a":1}\n\n'
    assert StreamSplice().feed(chunk)[0] is chunk


def test_a_cut_stream_never_ends_in_half_an_event() -> None:
    """What follows the last complete event is held back, so a client cannot read it as one."""
    before, after, splice = relay([EVENTS + b'data: {"b"'])
    assert (before, after, splice.done) == (EVENTS, b"", False)


@pytest.mark.parametrize(
    "comment", [b": reprise-guard {}", b": reprise-guard nonsense", b': reprise-guard {"coresident_peak":"x"}']
)
def test_a_broken_guard_comment_is_no_peak(comment: bytes) -> None:
    """What the guard's comment does not say stays unknown, and the comment does not reach the client."""
    before, after, splice = relay([comment + b"\n\n" + DONE])
    assert (before, after, splice.peak) == (b"", DONE, None)


def test_an_endless_event_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream without event ends cannot fill the memory."""
    monkeypatch.setattr(module, "_LONGEST_EVENT", 100)
    splice = StreamSplice()
    for _ in range(10):
        splice.feed(b"x" * 10)
    with pytest.raises(UpstreamReset):
        splice.feed(b"x")
