"""The end of a relayed stream: the guard's comment comes out, ours goes in before ``data: [DONE]``.

Every other byte passes as it came. Bytes after the last complete event are held back until the event is complete, so
that a stream that is cut never ends in half an event; engines write whole events, so in practice nothing waits.
"""

from typing import Final

import orjson

from app.errors import UpstreamReset

GUARD_COMMENT: Final = b": reprise-guard "
DONE: Final = b"data: [DONE]"
_END: Final = b"\n\n"
_LONGEST_EVENT: Final = 16 * 1024 * 1024
"""Bytes; a stream without event ends must not fill the memory."""


class StreamSplice:
    """Feed it the upstream's chunks in order; it says what to relay.

    ``done`` turns true with ``[DONE]``; ``peak`` is the co-resident peak by the guard's word, None before and without
    one.
    """

    __slots__ = ("_held", "done", "peak")

    def __init__(self) -> None:
        self._held = b""
        self.done = False
        self.peak: int | None = None

    def feed(self, chunk: bytes) -> tuple[bytes, bytes]:
        """What to relay now, and what to relay after our comment (empty until the final event).

        Raises UpstreamReset for an event that does not end within 16 MiB.
        """
        if not self._held and chunk.endswith(_END) and b"[DONE]" not in chunk and GUARD_COMMENT not in chunk:
            return chunk, b""
        return self._slow(self._held + chunk)

    def _slow(self, data: bytes) -> tuple[bytes, bytes]:
        complete, end, self._held = data.rpartition(_END)
        if len(self._held) > _LONGEST_EVENT:
            raise UpstreamReset(f"The upstream sent an event of over {_LONGEST_EVENT} bytes.")
        if not end:
            return b"", b""
        before: list[bytes] = []
        after: list[bytes] = []
        for event in complete.split(_END):
            if event.startswith(GUARD_COMMENT):
                self._read(event)
                continue
            self.done = self.done or event == DONE
            (after if self.done else before).append(event + _END)
        return b"".join(before), b"".join(after)

    def _read(self, event: bytes) -> None:
        try:
            peak = orjson.loads(event[len(GUARD_COMMENT) :])["coresident_peak"]
        except (orjson.JSONDecodeError, KeyError, TypeError):
            return
        if isinstance(peak, int):
            self.peak = peak
