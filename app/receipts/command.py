"""``reprise receipt`` at a terminal: check a signed receipt, or print this installation's public key."""

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from app.determinism.reading import read_unary
from app.errors import InvalidReceipt
from app.receipts.arguments import state_directory
from app.receipts.document import Interval, Receipt, VerificationCounts
from app.receipts.signing import KEY_BYTES, MAX_BYTES, Signer, from_base64, to_base64, verify
from app.state import INSTALLATION_KEY

EXIT_VALID: Final = 0
EXIT_INVALID: Final = 1
EXIT_NOT_CHECKED: Final = 2
EXIT_UNTRUSTED: Final = 3

_STANDARD_INPUT: Final = "-"


class _NotCheckable(Exception):
    """Something that the command needs cannot be read; the message says what and why."""


def run(arguments: argparse.Namespace) -> int:
    """Run the command; the exit status is returned, see ``reprise receipt verify --help``."""
    try:
        return _verify(arguments) if arguments.action == "verify" else _key(arguments)
    except _NotCheckable as exc:
        sys.stderr.write(f"reprise receipt: {_plain(str(exc))}\n")
        return EXIT_NOT_CHECKED


def _key(arguments: argparse.Namespace) -> int:
    directory = state_directory(arguments)
    key = _installation(directory)
    if key is None:
        raise _NotCheckable(f"{directory} holds no installation key; a gateway makes it at its first start")
    sys.stdout.write(f"{to_base64(key)}\n")
    return EXIT_VALID


def _verify(arguments: argparse.Namespace) -> int:
    trusted = _trusted(arguments)
    text = _read(arguments.file)
    try:
        verified = verify(text, trusted.keys())
    except InvalidReceipt as exc:
        sys.stdout.write(f"not valid: {exc.param}: {_plain(exc.message)}\n")
        return EXIT_INVALID
    if arguments.answer is not None and (odd := _differs(arguments.answer, verified.receipt)) is not None:
        sys.stdout.write(f"not valid: answer: {_plain(odd)}\n")
        return EXIT_INVALID
    if verified.trusted:
        sys.stdout.write(f"valid: signed by {_plain(trusted[verified.key])}\n")
    else:
        known = " nor ".join(trusted.values()) or "a key that is known here; name the one that you trust with --key"
        sys.stdout.write(f"intact, but not trusted: signed by {to_base64(verified.key)},\n  not {_plain(known)}\n")
    for name, value in _lines(verified.receipt):
        sys.stdout.write(f"  {name:<12}{_plain(value)}\n")
    return EXIT_VALID if verified.trusted else EXIT_UNTRUSTED


def _differs(name: str, receipt: Receipt) -> str | None:
    """Why a saved answer is not the one that a receipt is about; None where its output is."""
    output = read_unary(receipt.path, _read(name))
    if output is None:
        raise _NotCheckable(f"--answer: {name} holds no answer of {receipt.path} in JSON (a stream cannot be checked)")
    if output.digest == receipt.output:
        return None
    return f"its output is {output.digest}, the receipt is about {receipt.output or 'none that could be read'}"


def _trusted(arguments: argparse.Namespace) -> dict[bytes, str]:
    """The keys that vouch here, each with what it is to a reader."""
    if arguments.key:
        return {_public_key(given): f"the given key {given}" for given in arguments.key}
    directory = state_directory(arguments)
    key = _installation(directory)
    if key is None and arguments.state_dir:
        raise _NotCheckable(f"{directory} holds no installation key")
    return {} if key is None else {key: f"the key of the installation in {directory}"}


def _public_key(given: str) -> bytes:
    """A key from the command line or from a file: base64, or what ``/v1/determinism/receipts/key`` answers."""
    key = from_base64(given, KEY_BYTES)
    if key is not None:
        return key
    try:
        said = _read(given).decode("utf-8", "replace").strip()
    except _NotCheckable as exc:
        raise _NotCheckable(f"--key is neither {KEY_BYTES} bytes in base64 nor a file: {exc}") from exc
    try:
        document = json.loads(said)
    except (ValueError, RecursionError):
        document = None
    if isinstance(document, dict):
        said = str(document.get("key"))
    key = from_base64(said, KEY_BYTES)
    if key is None:
        raise _NotCheckable(f"--key: {given} holds no key of {KEY_BYTES} bytes in base64")
    return key


def _installation(directory: Path) -> bytes | None:
    """The public key of a state directory; None where there is none yet.

    The file is read without the lock that a running gateway holds on it: it is written once, when it is made.
    """
    path = directory / INSTALLATION_KEY
    try:
        secret = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as exc:
        raise _NotCheckable(f"{path}: {exc.strerror}") from exc
    if secret and len(secret) != KEY_BYTES:
        raise _NotCheckable(f"{path} is no key of {KEY_BYTES} bytes")
    return Signer(secret).public_key if secret else None


def _read(name: str) -> bytes:
    """A file, or standard input; one byte more than a receipt can have is enough to tell that it is none."""
    try:
        if name == _STANDARD_INPUT:
            return sys.stdin.buffer.read(MAX_BYTES + 1)
        with Path(name).open("rb") as file:
            return file.read(MAX_BYTES + 1)
    except OSError as exc:
        raise _NotCheckable(f"{name}: {exc.strerror}") from exc
    except ValueError as exc:
        raise _NotCheckable(f"{name}: {exc}") from exc


def _lines(receipt: Receipt) -> Iterator[tuple[str, str]]:
    """What the receipt states, as (name, value) pairs."""
    status = "no answer" if receipt.status is None else f"HTTP {receipt.status}"
    yield "request", f"{receipt.request_id}, finished {receipt.finished}, {status}, {receipt.outcome}"
    yield "mode", f"{receipt.mode} on {receipt.path}, model {_known(receipt.model)}"
    for mitigation in receipt.mitigations:
        aside = "" if mitigation.reason is None else f": {mitigation.reason}"
        yield "mitigation", f"{mitigation.mitigation} {mitigation.status}{aside}"
    asked, got = receipt.temperature_requested, receipt.temperature_effective
    temperature = asked if asked == got else f"{asked} asked for, {got} in effect"
    yield "sampling", f"temperature {temperature}, seed {receipt.seed or 'none'}"
    yield "replica", f"{_known(receipt.replica)}, posture {_known(receipt.posture)}"
    waited = f"waited {receipt.waited_us / 1e6:.6f} s"
    yield "admission", f"{_known(receipt.admission)}, co-resident peak {_known(receipt.coresident_peak)}, {waited}"
    for interval in receipt.intervals:
        yield "interval", _interval(interval, receipt.intervals_source)
    if not receipt.intervals:
        yield "interval", f"none: {_known(receipt.intervals_reason)}"
    if receipt.verification is not None:
        yield "verified", _verified(receipt.verification)
    yield "output", f"{_known(receipt.output)}, cohort {_known(receipt.cohort_key)}"
    yield "gateway", receipt.gateway_version


def _interval(interval: Interval, source: str) -> str:
    place = "" if interval.epoch is None else f" {interval.epoch}/{_known(interval.sequence)}"
    end = "still open" if interval.ended_us is None else f"{(interval.ended_us - interval.granted_us) / 1e6:.6f} s"
    began = f"{interval.granted_us / 1e6:.6f} s on its clock"
    return f"by the {source}{place}: {interval.admission}, {end} from {began}, peak {_known(interval.peak)}"


def _verified(counts: VerificationCounts) -> str:
    first = "none came" if counts.first_window_us is None else f"the first after {counts.first_window_us / 1e6:.6f} s"
    return (
        f"{counts.decided} tokens ({first}) in windows of {counts.window} on the {counts.grid} grid: "
        f"passes {counts.passes} ({counts.verifier_us / 1e6:.6f} s), rollbacks {counts.rollbacks}, "
        f"{counts.accepted} of {counts.drafted} drafted tokens accepted"
    )


def _known(value: str | int | None) -> str:
    return "unknown" if value is None else str(value)


def _plain(text: str) -> str:
    """A text for a terminal. What a receipt holds came from anyone: no control character of it reaches the screen."""
    return "".join(c if " " <= c <= "~" else c.encode("unicode_escape").decode() for c in text)
