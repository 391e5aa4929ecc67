"""Progress for a person: one line that counts seconds on a terminal, a line now and then in a log."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

LOG_INTERVAL = 15.0  # seconds between two lines where there is no terminal


class Progress:
    """Tells what is being done and for how long."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._live = out.isatty()
        self._label: str | None = None
        self._began = 0.0
        self._told = 0.0

    def say(self, text: str) -> None:
        """Print one line."""
        print(text, file=self._out, flush=True)

    @contextmanager
    def step(self, label: str) -> Iterator[None]:
        """Announce a step, and its duration when it has succeeded."""
        self._label, self._began, self._told = label, time.monotonic(), time.monotonic()
        if not self._live:
            self.say(f"  {label} ...")
        self.tick()
        try:
            yield
        except BaseException:
            if self._live:
                self.say("")
            raise
        else:
            ending = f"  {label}: done in {_duration(time.monotonic() - self._began)}"
            self.say(f"\r\x1b[K{ending}" if self._live else ending)
        finally:
            self._label = None

    def tick(self) -> None:
        """Show that time passes; cheap enough to be called several times a second."""
        if self._label is None:
            return
        now = time.monotonic()
        elapsed = _duration(now - self._began)
        if self._live:
            print(f"\r\x1b[K  {self._label} ... {elapsed}", end="", file=self._out, flush=True)
        elif now - self._told >= LOG_INTERVAL:
            self._told = now
            self.say(f"  {self._label} ... {elapsed}")


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"
