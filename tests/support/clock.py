"""An event loop whose time passes only while everybody waits for it: a minute takes no time, and none is slept."""

import asyncio
import selectors


class _Jump(selectors.SelectSelector):
    """Where the loop would wait for a time, that time is there."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready and timeout is not None:
            self.now += max(timeout, 0.0)
        return ready


class ClockLoop(asyncio.SelectorEventLoop):
    """For tests of timers with no input or output; `asyncio.Runner(loop_factory=ClockLoop)` runs one."""

    def __init__(self) -> None:
        self._jump = _Jump()
        super().__init__(self._jump)

    def time(self) -> float:
        """Seconds, since the loop was made."""
        return self._jump.now
