"""An event stream split into events, without I/O: feed bytes as they come, get the data of the events they complete.

Rules (WHATWG HTML, section 9.2 "Server-sent events"), as far as an OpenAI stream needs them:

* a line ends at CR LF, LF or CR; a CR at the end of one chunk and an LF at the start of the next are one line end;
* an empty line completes an event; its ``data`` lines are joined by LF, and one space after the colon is not data;
* comments (lines that start with a colon) and other fields (``event``, ``id``, ``retry``) carry nothing for us;
* an event that no empty line completed is not an event;
* a byte order mark before the first line is not part of it.

``data: [DONE]`` is the end of the stream: it is not an event, and nothing after it is read.
"""

from typing import Final

LINE_LIMIT: Final = 8 * 2**20
"""Bytes that one line, or the data of one event, may have before the stream is refused."""

_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
_DONE: Final = b"[DONE]"


class SseOverflow(ValueError):
    """A line, or the data of one event, is longer than the limit; the stream cannot be followed further."""


class SseSplitter:
    """Splits one stream. ``finished`` says that ``[DONE]`` was seen."""

    __slots__ = ("_after_cr", "_between", "_data", "_limit", "_line", "_line_size", "_size", "_start", "finished")

    def __init__(self, limit: int = LINE_LIMIT) -> None:
        self.finished = False
        self._limit = limit
        self._data: list[bytes] = []
        self._size = 0
        self._line: list[bytes] = []
        self._line_size = 0
        self._after_cr = False
        self._start = True
        # True while nothing is pending: whole events may then be cut out without looking at their lines.
        self._between = True

    def feed(self, chunk: bytes) -> list[bytes]:
        """The data of the events that ``chunk`` completes, in order, without ``[DONE]``.

        Raises SseOverflow when a line or an event is over the limit; events completed earlier in the chunk are lost.
        """
        if self._between and len(chunk) <= self._limit and chunk.endswith(b"\n\n") and b"\r" not in chunk:
            return self._whole_events(chunk)
        return self._lines(chunk)

    def _whole_events(self, chunk: bytes) -> list[bytes]:
        """The events of a chunk that ends with one; whatever is no one-line ``data:`` event is left to `_lines`."""
        events: list[bytes] = []
        start = 0
        for part in chunk[:-2].split(b"\n\n"):
            if not part.startswith(b"data: {") or b"\n" in part:
                return events + self._lines(chunk[start:])
            self._start = False
            events.append(part[6:])
            start += len(part) + 2
        return events

    def _lines(self, chunk: bytes) -> list[bytes]:
        events: list[bytes] = []
        if self.finished:
            return events
        if self._after_cr and chunk:
            self._after_cr = False
            if chunk.startswith(b"\n"):
                chunk = chunk[1:]
        lines = chunk.splitlines()
        complete = chunk.endswith((b"\n", b"\r"))
        self._after_cr = chunk.endswith(b"\r") or (not chunk and self._after_cr)
        rest = b"" if complete or not lines else lines.pop()
        for tail in lines:
            line = tail
            if self._line:
                self._line.append(tail)
                line = b"".join(self._line)
                self._line.clear()
                self._line_size = 0
            if self._take_line(line, events):
                self._between = False
                return events
        if rest:
            self._line.append(rest)
            self._line_size += len(rest)
            self._check(self._line_size)
        self._between = not (self._line or self._data or self._after_cr)
        return events

    def _take_line(self, line: bytes, events: list[bytes]) -> bool:
        """Take one line; an event that it completes is appended. True when the stream is finished."""
        self._check(len(line))
        if self._start:
            self._start = False
            line = line.removeprefix(_BYTE_ORDER_MARK)
        if not line:
            self._complete(events)
            return self.finished
        field, _, value = line.partition(b":")
        if field == b"data":
            value = value.removeprefix(b" ")
            self._size += len(value) + 1
            self._check(self._size)
            self._data.append(value)
        return False

    def _complete(self, events: list[bytes]) -> None:
        if not self._data:
            return
        data = b"\n".join(self._data)
        self._data.clear()
        self._size = 0
        if data == _DONE:
            self.finished = True
        else:
            events.append(data)

    def _check(self, size: int) -> None:
        if size > self._limit:
            msg = f"an event of the upstream's stream is longer than {self._limit} bytes"
            raise SseOverflow(msg)
