"""The arguments of ``reprise receipt``. Standard library only: they are declared whatever command runs."""

import argparse
import os
from pathlib import Path

_NONE_SAID = ".reprise"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    parser.description = "Check signed receipts of GET /v1/determinism/receipts/{request id}, or show the signing key."
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    verify = actions.add_parser("verify", help="check a receipt, and print what it states")
    verify.description = (
        "Check a receipt. Exit status: 0 valid and signed by a trusted key, 1 not valid, 2 not checked, "
        "3 intact, but signed by a key that nothing here vouches for."
    )
    verify.add_argument("file", metavar="FILE", help="the signed receipt in JSON; - reads standard input")
    verify.add_argument(
        "--key",
        action="append",
        metavar="BASE64|FILE",
        help="a public key that you trust, or a file that holds it; repeat it for several "
        "(default: the key of the installation in the state directory)",
    )
    verify.add_argument(
        "--answer", metavar="FILE", help="the answer's body in JSON, as received: its output must be the stated one"
    )
    _add_state_dir(verify)
    key = actions.add_parser("key", help="print the public key that this installation signs receipts with")
    key.description = (
        "Print the public key (Ed25519, base64) that the gateway of a state directory signs receipts with."
    )
    _add_state_dir(key)


def state_directory(arguments: argparse.Namespace) -> Path:
    """The state directory that was named, else the gateway's own default."""
    return Path(arguments.state_dir or os.environ.get("REPRISE_STATE_DIR") or _NONE_SAID)


def _add_state_dir(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--state-dir",
        metavar="DIR",
        help=f"the gateway's state directory (default REPRISE_STATE_DIR, else {_NONE_SAID}); a gateway may be using it",
    )
