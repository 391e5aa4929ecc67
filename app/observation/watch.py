"""Eyes on an answer while it is relayed. They never delay it, never change it and never fail it.

A watch is fed the upstream's bytes after they were passed on, and turns them into an `Output` at the end. Whatever goes
wrong in it becomes a skip reason: an answer that could not be read is one comparison less, not an error for the caller.
Memory is bounded by a limit on the bytes that are read; above it the watch forgets what it has.
"""

import logging
from typing import Final

from app.determinism.output import READABLE_PATHS, Output, UnreadableOutput
from app.determinism.reading import OutputBuilder, read_unary
from app.observation.store import Skip
from app.upstream.sse import SseOverflow, SseSplitter

BYTE_LIMIT: Final = 16 * 2**20
"""Bytes of an answer that a watch reads by default; 16 MiB are some 60,000 streamed tokens."""

_READ_AT_ONCE: Final = 16 * 2**10
"""Bytes of a stream that are kept before they are read: reading many events in one go costs a third of reading each
when it comes, and holds the loop for less than 0.3 ms."""

_DONE_LINE: Final = b"\ndata: [DONE]"

_log = logging.getLogger(__name__)


class StreamWatch:
    """Watches one event stream. What it is fed is kept, and read some of it at a time."""

    __slots__ = ("_builder", "_done", "_limit", "_seen", "_skip", "_splitter", "_tail", "_unread", "_unread_bytes")

    def __init__(self, path: str, *, limit: int = BYTE_LIMIT) -> None:
        self._done = False
        self._unread: list[bytes] = []
        self._unread_bytes = 0
        self._limit = limit
        self._seen = 0
        self._splitter: SseSplitter | None = SseSplitter(limit)
        self._builder = OutputBuilder(path) if path in READABLE_PATHS else None
        self._skip = None if self._builder is not None else Skip.NOT_APPLICABLE
        self._tail = b"\n"

    def feed(self, chunk: bytes) -> None:
        """Take the next bytes of the stream, cut anywhere. Never raises."""
        self._unread.append(chunk)
        self._unread_bytes += len(chunk)
        if self._unread_bytes >= _READ_AT_ONCE:
            self._read()

    @property
    def done(self) -> bool:
        """Whether the stream came to its end."""
        self._read()
        return self._done

    def _read(self) -> None:
        """Read what was kept."""
        if not self._unread:
            return
        chunk = b"".join(self._unread)
        self._unread.clear()
        self._unread_bytes = 0
        try:
            if self._splitter is None:
                self._look_for_end(chunk)
                return
            events = self._splitter.feed(chunk)
            self._seen += len(chunk)
            if self._seen > self._limit:
                self._forget(Skip.TOO_LARGE)
            if self._builder is not None:
                for event in events:
                    self._builder.add(event)
            self._done = self._splitter.finished
        except SseOverflow:
            self._splitter = None
            self._forget(Skip.TOO_LARGE)
            self._look_for_end(chunk)
        except UnreadableOutput:
            self._forget(Skip.UNPARSABLE)
            self._done = self._splitter is not None and self._splitter.finished
        except Exception:  # noqa: BLE001 - the relayed answer must survive a fault of its observer; it is logged
            _log.exception("the watch of a stream failed; its answer is not compared")
            self._splitter = None
            self._forget(Skip.UNPARSABLE)

    @property
    def skip_reason(self) -> str | None:
        """Why this answer is comparable to nothing, or None; call it after `output`. Before the end: "incomplete"."""
        self._read()
        if self._skip is not None:
            return self._skip
        if self._builder is not None and self._builder.failed:
            return Skip.UPSTREAM_ERROR
        return None if self._done else Skip.INCOMPLETE

    def output(self) -> Output | None:
        """The output so far, incomplete until the stream came to its end; None if not readable. Never raises."""
        self._read()
        if self._builder is None:
            return None
        try:
            output = self._builder.finish(done=self._done)
        except UnreadableOutput:
            self._forget(Skip.UNPARSABLE)
            return None
        if self._done and not (output.complete or self._builder.failed):
            self._skip = Skip.INCOMPLETE
        return output

    @property
    def pieces(self) -> int:
        """Pieces of content that came so far, for answers that do not say how many tokens they have."""
        self._read()
        return self._builder.pieces if self._builder is not None else 0

    def _forget(self, reason: Skip) -> None:
        if self._skip is None:
            self._skip = reason
        self._builder = None

    def _look_for_end(self, chunk: bytes) -> None:
        """Without a splitter the end is still told from an answer cut short: JSON text cannot hold this line."""
        window = self._tail + chunk
        self._done = self._done or _DONE_LINE in window
        self._tail = window[-len(_DONE_LINE) :]


class UnaryWatch:
    """Watches one unary answer; `feed` only keeps the bytes, `output` reads them once."""

    __slots__ = ("_limit", "_output", "_path", "_pieces", "_read", "_seen", "_skip")

    def __init__(self, path: str, *, limit: int = BYTE_LIMIT) -> None:
        self._path = path
        self._limit = limit
        self._pieces: list[bytes] = []
        self._seen = 0
        self._skip = None if path in READABLE_PATHS else Skip.NOT_APPLICABLE
        self._output: Output | None = None
        self._read = False

    def feed(self, chunk: bytes) -> None:
        """Take the next bytes of the body. Never raises."""
        self._seen += len(chunk)
        if self._seen > self._limit and self._skip is None:
            self._skip = Skip.TOO_LARGE
            self._pieces.clear()
        if self._skip is None:
            self._pieces.append(chunk)

    pieces: Final = 1
    """As of a stream: all of the content comes at once."""

    @property
    def skip_reason(self) -> str | None:
        """Why this answer is comparable to nothing, or None; call it after `output`."""
        if self._skip is None and self._output is not None and not self._output.complete:
            return Skip.INCOMPLETE
        return self._skip

    def output(self) -> Output | None:
        """The output of the whole body, None when it could not be read. Never raises."""
        if self._skip is None and not self._read:
            self._read = True
            self._output = read_unary(self._path, b"".join(self._pieces))
            self._pieces.clear()
            if self._output is None:
                self._skip = Skip.UNPARSABLE
        return self._output
