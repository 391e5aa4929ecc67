"""``reprise compare`` at a terminal: two runs in; tables, a JSON document and a page out."""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import httpx

from app.comparison.arguments import misplaced
from app.comparison.document import to_document
from app.comparison.entry import NotComparable, Side
from app.comparison.extraction import Extraction, by_path, by_regex
from app.comparison.finding import Finding, find
from app.comparison.jsonl import read_file, read_lines
from app.comparison.ledger_run import PREFIX, check_label, read_run
from app.comparison.page import to_page
from app.comparison.pairing import sides
from app.comparison.replay_command import STANDARD_OUTPUT, refuse_overwriting, replay_of, resend, writing
from app.comparison.report import EXIT_UNUSABLE, exit_code, notes, render_tables
from app.comparison.server import base_url, header_value
from app.determinism.semantic import Embedder, SemanticUnavailable, load_embedder
from app.probe.terminal import show

_LEDGER_SECONDS: Final = 30.0
_TWO: Final = 2


def run(arguments: argparse.Namespace) -> int:
    """Run the command; the exit status is returned, see ``reprise compare --help``."""
    try:
        _check(arguments)
        extraction = _extraction(arguments)
        embedder = _embedder(arguments)
        left, right, interrupted = _sides(arguments)
        rule = arguments.extract or arguments.extract_json
        finding = find(left, right, extraction=extraction, rule=rule, embedder=embedder, interrupted=interrupted)
        return _tell(finding, arguments)
    except NotComparable as exc:
        sys.stderr.write(f"reprise compare: {exc}\n")
        return EXIT_UNUSABLE


def _check(arguments: argparse.Namespace) -> None:
    runs: Sequence[str] = arguments.runs
    labels = [name for name in runs if name.startswith(PREFIX)]
    if unfit := misplaced(arguments):
        raise NotComparable(f"{', '.join(unfit)}: no meaning without --replay")
    if arguments.replay and (len(runs) != 1 or labels):
        raise NotComparable("--replay takes one file, and compares it with its own answers of now")
    if not arguments.replay and len(runs) != _TWO:
        raise NotComparable(f"two runs are compared, and {len(runs)} given; with --replay it takes one file")
    if labels and len(labels) != len(runs):
        raise NotComparable(
            f"{labels[0]} and a file cannot be compared: the ledger keeps keyed digests of requests, no requests"
        )
    for name in labels:
        check_label(name.removeprefix(PREFIX), name)
    if labels and arguments.any_model:
        raise NotComparable("--any-model: no meaning for runs of the ledger, whose keys hold the model")
    for name in (arguments.json, arguments.html):
        if name is not None and name != STANDARD_OUTPUT:
            refuse_overwriting(name, runs)


def _extraction(arguments: argparse.Namespace) -> Extraction | None:
    try:
        if arguments.extract is not None:
            return by_regex(arguments.extract)
        return by_path(arguments.extract_json) if arguments.extract_json is not None else None
    except ValueError as exc:
        raise NotComparable(f"--extract{'-json' if arguments.extract is None else ''}: {exc}") from exc


def _embedder(arguments: argparse.Namespace) -> Embedder | None:
    try:
        return load_embedder() if arguments.semantic else None
    except SemanticUnavailable as exc:
        raise NotComparable(f"--semantic: {exc}") from exc


def _sides(arguments: argparse.Namespace) -> tuple[Side, Side, bool]:
    first = arguments.runs[0]
    if first.startswith(PREFIX):
        return *_from_ledger(arguments), False
    records = read_file(first)
    if not arguments.replay:
        second = arguments.runs[1]
        return *sides((first, records), (second, read_file(second)), any_model=arguments.any_model), False
    replay = replay_of(arguments, os.environ)
    lines: list[bytes] = []
    with ExitStack() as stack:
        keep = stack.enter_context(writing(arguments.out, [first])) if arguments.out is not None else None

        def out(line: bytes) -> None:
            lines.append(line)
            if keep is not None:
                keep(line)

        _, _, interrupted = resend(replay, records, first, out)
    name = f"replayed now at {replay.url}"
    again = list(read_lines(lines, name))
    any_model = arguments.any_model or arguments.model is not None
    return *sides((first, records), (name, again), any_model=any_model), interrupted


def _from_ledger(arguments: argparse.Namespace) -> tuple[Side, Side]:
    key = header_value("--key", arguments.key or os.environ.get("REPRISE_OBSERVATORY_KEY"))
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    url = base_url(arguments.url)
    with httpx.Client(base_url=url, headers=headers, timeout=_LEDGER_SECONDS, trust_env=False) as client:
        left, right = (read_run(client, name.removeprefix(PREFIX)) for name in arguments.runs)
    return left, right


def _tell(finding: Finding, arguments: argparse.Namespace) -> int:
    status = exit_code(finding, fail_on_difference=arguments.fail_on_difference)
    if arguments.html is not None:
        _write(arguments.html, to_page(finding))
    if arguments.json is not None:
        _write(arguments.json, json.dumps(to_document(finding, status), indent=2) + "\n")
    if arguments.json != STANDARD_OUTPUT:
        show(render_tables(finding, arguments.worst), notes(finding))
    return status


def _write(name: str, text: str) -> None:
    if name == STANDARD_OUTPUT:
        sys.stdout.write(text)
        return
    try:
        Path(name).write_text(text, encoding="utf-8")
    except OSError as exc:
        raise NotComparable(f"{name}: {exc.strerror}") from exc
