"""``reprise lab`` at a terminal: the list, or one demonstration with its explanation, its tables and its plot."""

import argparse
import difflib
import importlib.util
import json
import sys
from pathlib import Path
from typing import Final

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from app.lab.demonstration import Demonstration, NotDemonstrable, Result, Sheet
from app.lab.registry import ENTRIES, Entry, find
from app.probe.arguments import integer

EXIT_FINE: Final = 0
EXIT_NOT_SHOWN: Final = 2

_FORMAT: Final = "reprise-lab/1"
_PLOTS: Final = (".png", ".svg")
_WIDTH_WITHOUT_TERMINAL: Final = 140
_INCHES: Final = (9.0, 5.5)
_LARGEST_SEED: Final = 2**63 - 1


def run(arguments: argparse.Namespace) -> int:
    """Print the list or run a demonstration; the exit status is returned (0 shown, 2 not shown)."""
    if arguments.name is None:
        _print_list()
        return EXIT_FINE
    try:
        return _demonstrate(_entry(arguments.name), arguments.rest)
    except NotDemonstrable as exc:
        sys.stderr.write(f"reprise lab: {exc}\n")
        return EXIT_NOT_SHOWN


def _entry(name: str) -> Entry:
    entry = find(name)
    if entry is None:
        near = difflib.get_close_matches(name, [known.name for known in ENTRIES], 1)
        hint = f"did you mean {near[0]!r}?" if near else "`reprise lab` lists them"
        raise NotDemonstrable(f"there is no demonstration {name!r}; {hint}")
    return entry


def _demonstrate(entry: Entry, rest: list[str]) -> int:
    demonstration = entry.load()
    parser = argparse.ArgumentParser(prog=f"reprise lab {entry.name}", description=f"{entry.summary} ({entry.layer}).")
    demonstration.add_arguments(parser)
    seed = integer(0, _LARGEST_SEED)  # NumPy's generators take no negative one
    parser.add_argument("--seed", type=seed, default=0, metavar="N", help="of all random numbers (default %(default)s)")
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of text")
    parser.add_argument("--plot", metavar="FILE", help="draw the result too, into FILE.png or FILE.svg")
    options = parser.parse_args(rest)
    if options.plot is not None:
        _check_plot(Path(options.plot))
    result = demonstration.run(options)
    if options.plot is not None:
        _plot(result, Path(options.plot))
    if options.json:
        _print_json(entry, options, result)
    else:
        _print(entry, demonstration, result, options.plot)
    return EXIT_FINE


def _check_plot(path: Path) -> None:
    """Before the work, so that a typing error costs no time."""
    if path.suffix.lower() not in _PLOTS:
        raise NotDemonstrable(f"--plot: {path.name!r} ends neither in .png nor in .svg")
    if not path.parent.is_dir():
        raise NotDemonstrable(f"--plot: there is no folder {str(path.parent)!r}")
    if importlib.util.find_spec("matplotlib") is None:
        raise NotDemonstrable(f"--plot needs matplotlib: `{sys.executable} -m pip install matplotlib`")


def _plot(result: Result, path: Path) -> None:
    # The object interface draws without a display and keeps no figure behind our back.
    from matplotlib import rc_context  # noqa: PLC0415 - an extra, for plots alone
    from matplotlib.figure import Figure  # noqa: PLC0415 - as above

    figure = Figure(figsize=_INCHES, layout="constrained")
    result.draw(figure)
    # Equal runs write equal files: SVG would carry the time and random names otherwise.
    metadata = {"Date": None} if path.suffix.lower() == ".svg" else None
    try:
        with rc_context({"svg.hashsalt": _FORMAT}):
            figure.savefig(path, dpi=120, metadata=metadata)
    except OSError as exc:
        raise NotDemonstrable(f"--plot: cannot write {path}: {exc.strerror or exc}") from exc


def _print_json(entry: Entry, options: argparse.Namespace, result: Result) -> None:
    own = {"json", "plot"}
    document = {
        "format": _FORMAT,
        "demonstration": entry.name,
        "layer": entry.layer,
        "options": {name: value for name, value in vars(options).items() if name not in own},
        "findings": list(result.findings),
        "data": dict(result.data),
    }
    sys.stdout.write(json.dumps(document, indent=2, allow_nan=False) + "\n")


def _print(entry: Entry, demonstration: Demonstration, result: Result, plot: str | None) -> None:
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = _WIDTH_WITHOUT_TERMINAL
    console.print(Text(f"{entry.name} ({entry.layer}): {entry.summary}", style="bold"))
    for paragraph in demonstration.explanation.strip().split("\n\n"):
        console.print()
        console.print(Text(" ".join(paragraph.split())))
    for sheet in result.sheets:
        console.print()
        console.print(_table(sheet))
    console.print()
    for finding in result.findings:
        console.print(Text(f"* {finding}"))
    if plot is not None:
        console.print(Text(f"Plot: {plot}", style="dim"))


def _print_list() -> None:
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = _WIDTH_WITHOUT_TERMINAL
    rows = tuple((f"reprise lab {entry.name}", entry.layer, entry.summary) for entry in ENTRIES)
    console.print(_table(Sheet("", ("run", "layer", "shows"), rows)))
    console.print(
        Text(
            "Each takes --help, --seed N, --json and --plot FILE.png|svg. The layers: L1 architecture, L2 operator, "
            "L3 framework, L4 tie-breaking. Which of them act on a server of yours: `reprise diagnose`."
        )
    )


def _table(sheet: Sheet) -> Table:
    title = sheet.title or None
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    for column in sheet.columns:
        table.add_column(column, overflow="fold")
    for row in sheet.rows:
        table.add_row(*(Text(cell) for cell in row))
    return table
