"""``reprise replay`` at a terminal: a file in, a file with new answers out, progress on standard error."""

import argparse
import errno
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from typing import Final

import anyio

from app.comparison.arguments import DEFAULT_CONCURRENCY, DEFAULT_EVIDENCE, DEFAULT_TIMEOUT
from app.comparison.entry import NotComparable
from app.comparison.jsonl import Record, read_file
from app.comparison.ledger_run import check_label
from app.comparison.replay import Replay, Replayer, Resent
from app.comparison.report import EXIT_DIFFERENT, EXIT_FINE, EXIT_INTERRUPTED, EXIT_UNUSABLE
from app.comparison.server import base_url, header_value
from app.determinism.evidence import Evidence
from app.determinism.mode import Mode
from app.probe.terminal import progress

STANDARD_OUTPUT: Final = "-"


def run(arguments: argparse.Namespace) -> int:
    """Run the command; the exit status is returned, see ``reprise replay --help``."""
    try:
        return _replay(arguments)
    except NotComparable as exc:
        sys.stderr.write(f"reprise replay: {exc}\n")
        return EXIT_UNUSABLE


def replay_of(arguments: argparse.Namespace, environment: Mapping[str, str]) -> Replay:
    """The replay that the command line describes. Raises NotComparable naming the option that is wrong."""
    if arguments.run is not None:
        check_label(arguments.run, "--run")
    return Replay(
        url=base_url(arguments.url),
        mode=None if arguments.mode is None else Mode(arguments.mode),
        run=arguments.run,
        model=arguments.model,
        concurrency=arguments.concurrency or DEFAULT_CONCURRENCY,
        api_key=header_value("--api-key", arguments.api_key or environment.get("OPENAI_API_KEY")),
        timeout=arguments.timeout or DEFAULT_TIMEOUT,
        evidence=Evidence(arguments.evidence or DEFAULT_EVIDENCE),
    )


def resend(replay: Replay, records: Sequence[Record], name: str, out: Callable[[bytes], None]) -> tuple[int, int, bool]:
    """Send a file's requests again and write each line; (answered, failed, interrupted). Raises NotComparable."""
    counted = [0, 0]
    replayer = Replayer(replay, records, name)
    interrupted = False
    with progress(len(records)) as step:
        step("replaying")

        def emit(resent: Resent) -> None:
            counted[resent.problem is not None] += 1
            out(resent.line + b"\n")
            step("replaying")

        try:
            anyio.run(replayer.run, emit)
        except KeyboardInterrupt:
            interrupted = True
        except BaseExceptionGroup as group:
            raise _first(group) from group
    return counted[0], counted[1], interrupted


@contextmanager
def writing(name: str, inputs: Sequence[str]) -> Iterator[Callable[[bytes], None]]:
    """A function that writes whole lines to a file, at once. Raises NotComparable; an input is never overwritten."""
    if name == STANDARD_OUTPUT:
        yield _print
        return
    refuse_overwriting(name, inputs)
    try:
        file = Path(name).open("wb", buffering=0)  # noqa: SIM115 - closed below; the block's own errors are not ours
    except OSError as exc:
        raise NotComparable(f"{name}: {exc.strerror}") from exc
    with file:
        yield lambda line: _write(file, line, name)


def refuse_overwriting(name: str, inputs: Sequence[str]) -> None:
    """Raises NotComparable where an output is also an input."""
    if any(Path(name).resolve() == Path(given).resolve() for given in inputs):
        raise NotComparable(f"{name}: it is read, so it cannot be written")


def _replay(arguments: argparse.Namespace) -> int:
    replay = replay_of(arguments, os.environ)
    records = read_file(arguments.file)
    with writing(arguments.out, [arguments.file]) as out:
        answered, failed, interrupted = resend(replay, records, arguments.file, out)
    told = f"{answered} of {len(records)} answered" + (f", {failed} failed (their lines say why)" if failed else "")
    sys.stderr.write(f"reprise replay: {'interrupted: ' if interrupted else ''}{told}\n")
    if interrupted:
        return EXIT_INTERRUPTED
    return EXIT_DIFFERENT if failed else EXIT_FINE


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """What ended the workers: the first of them that failed."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _print(line: bytes) -> None:
    try:
        sys.stdout.buffer.write(line)
        sys.stdout.buffer.flush()
    except OSError as exc:
        raise NotComparable(f"standard output: {exc.strerror}") from exc


def _write(file: FileIO, line: bytes, name: str) -> None:
    try:
        done = file.write(line)
    except OSError as exc:
        raise NotComparable(f"{name}: {exc.strerror}") from exc
    if done < len(line):
        # The disk is full. Half a line would be a bad one for whoever reads the file.
        file.truncate(file.tell() - done)
        raise NotComparable(f"{name}: {os.strerror(errno.ENOSPC)}")
