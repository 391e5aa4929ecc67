"""The terminal that a measurement ends on: tables and sentences on standard output, progress on standard error."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

_WIDTH_WITHOUT_TERMINAL: Final = 180


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
def progress(steps: int) -> Iterator[Callable[[str], None]]:
    """One bar for so many steps, only where there is a terminal. The value is to be told what begins, at each step."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bar:
        # The first step's beginning completes nothing.
        task = bar.add_task("starting", total=steps, completed=-1)

        def watch(what: str) -> None:
            bar.update(task, description=what, advance=1)

        yield watch
