"""What a demonstration is, and what it finds: values that the terminal, JSON and a plot are made from."""

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class NotDemonstrable(Exception):
    """The demonstration cannot run; the message is one line for the terminal and names what is in the way."""


class Sheet(NamedTuple):
    """A table of finished texts; every row has as many cells as there are columns."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Result:
    """What one run showed.

    ``findings`` are sentences with the numbers in them. ``data`` is what ``--json`` prints of it: JSON's own types,
    with the unit in the name of a member. ``draw`` fills an empty matplotlib figure.
    """

    sheets: tuple[Sheet, ...]
    findings: tuple[str, ...]
    data: Mapping[str, Any]
    draw: "Callable[[Figure], None]"


def no_arguments(_parser: argparse.ArgumentParser) -> None:
    """For a demonstration that takes the common options alone."""


@dataclass(frozen=True, slots=True)
class Demonstration:
    """One mechanism: how it is explained (plain text, paragraphs parted by an empty line), its options, and its run.

    ``run`` gets the parsed options, ``seed`` (an int) among them; equal options give an equal result. It raises
    NotDemonstrable for options that do not fit each other.
    """

    explanation: str
    run: Callable[[argparse.Namespace], Result]
    add_arguments: Callable[[argparse.ArgumentParser], None] = field(default=no_arguments)
