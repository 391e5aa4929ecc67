"""The options of ``reprise lab``. Standard library alone, as `app.cli` imports it for every command."""

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add them to a parser; what follows a name belongs to the demonstration."""
    parser.description = (
        "Runnable demonstrations of why a language model's server does not repeat itself, one mechanism each. "
        "Without a name: the list of them."
    )
    parser.add_argument("name", nargs="?", metavar="NAME", help="which one; `reprise lab NAME --help` has its options")
    parser.add_argument("rest", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
