"""The terminal that a measurement ends on: tables and sentences on standard output, progress on standard error.

Where standard error is no terminal, progress is a line now and then, so that a log shows that something goes on.
"""

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

_WIDTH_WITHOUT_TERMINAL: Final = 180
_LINE_SECONDS: Final = 15.0
"""Between two lines about one thing."""


class Lines:
    """A program's progress as lines: one for what begins, and then one every 15 seconds at most.

    ``clock`` is in seconds, ``write`` standard error's if left out.
    """

    def __init__(
        self,
        program: str = "reprise probe",
        *,
        write: Callable[[str], object] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._program = program
        self._write = sys.stderr.write if write is None else write
        self._clock = clock
        self._what: str | None = None
        self._told = 0.0
        self._done = 0

    def begin(self, what: str) -> None:
        """Say that something begins."""
        self._what, self._done = what, 0
        self._say(what)

    def change(self, what: str) -> None:
        """Say what is being done, where it is another thing than before."""
        if what != self._what:
            self.begin(what)

    def advance(self, what: str, steps: int, of: int) -> None:
        """So many more steps are done, of so many; what is told of for the first time begins with it."""
        if what != self._what:
            self.begin(f"{what}, {of} requests")
            self._what = what
        self._done += steps
        if self._clock() - self._told >= _LINE_SECONDS:
            self._say(f"{what}, {self._done} of {of}")

    def _say(self, text: str) -> None:
        self._told = self._clock()
        self._write(f"{self._program}: {text}\n")


def show(tables: Iterable[Table], notes: Iterable[str]) -> None:
    """Print a finding."""
    console = Console(highlight=False)
    if not console.is_terminal:
        # A file or a pipe has no width of its own, and a wrapped table is hard to read and to search.
        console.width = _WIDTH_WITHOUT_TERMINAL
    for table in tables:
        console.print(table)
    for note in notes:
        console.print(note, markup=False)


@contextmanager
def progress(steps: int, *, lines: bool = False) -> Iterator[Callable[[str], None]]:
    """One bar for so many steps; nothing where there is no terminal, or `Lines`. The value is told what begins."""
    console = Console(stderr=True)
    if lines and not console.is_terminal:
        yield Lines().begin
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bar:
        # The first step's beginning completes nothing.
        task = bar.add_task("starting", total=steps, completed=-1)

        def watch(what: str) -> None:
            bar.update(task, description=what, advance=1)

        yield watch
