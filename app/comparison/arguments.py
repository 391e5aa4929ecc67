"""The options of ``reprise compare`` and ``reprise replay``. Standard library only, as those of the probe."""

import argparse
from typing import Final

from app.determinism.mode import REQUESTABLE_MODES
from app.probe.arguments import integer, number

DEFAULT_URL: Final = "http://127.0.0.1:8000"
DEFAULT_CONCURRENCY: Final = 4
DEFAULT_TIMEOUT: Final = 300.0
EVIDENCE: Final = ("tokens", "logprobs", "none")
DEFAULT_EVIDENCE: Final = "logprobs"

_REPLAY_ONLY: Final = ("mode", "run", "model", "concurrency", "api_key", "timeout", "evidence", "out")

_FORMAT: Final = """\
A file has one JSON object per line:

  {"path": "/v1/chat/completions", "request": {the body that was sent}, "answer": {the whole answer, not a stream}}

`reprise replay` adds "determinism" (what the answer's x-determinism-* headers said) and, in place of an answer that did
not come, "error". OpenAI's batch files are read too: "url" and "body", "response" with its "body", "custom_id".
"""
_COMPARE: Final = f"""\
{_FORMAT}
Answers are matched by canonical request (what can change the answer, whatever the order of the members; not stream,
user, metadata or logprobs), repeats in their order. Where a batch's results, which hold no request, are among them,
they are matched by custom_id instead.

exit status: 0 compared; 1 with --fail-on-difference, unless every answer has its counterpart and both are equal;
2 unusable input, or nothing to compare; 130 interrupted.
"""
_REPLAY: Final = f"""\
{_FORMAT}
exit status: 0 every request was answered; 1 some were not, and their lines say why; 2 unusable input, or no server;
130 interrupted: what had been answered is in the output.
"""


def add_compare_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``reprise compare``."""
    parser.description = "Compare two runs of the same requests: what agrees, where answers fork, which results flip."
    parser.epilog = _COMPARE
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "runs",
        nargs="+",
        metavar="RUN",
        help="two files; or two labels of live traffic, as run:LABEL (header x-determinism-run); or, with --replay, "
        "one file",
    )
    parser.add_argument("--any-model", action="store_true", help="match requests that differ in their model")
    rule = parser.add_mutually_exclusive_group()
    rule.add_argument(
        "--extract",
        metavar="REGEX",
        help="the result within an answer: the first group of the first match (the whole match without a group)",
    )
    rule.add_argument(
        "--extract-json",
        metavar="PATH",
        help="the result within an answer that is JSON, or holds it in a fence: names with dots between them and [n], "
        "as in result.items[0].label",
    )
    parser.add_argument(
        "--semantic",
        action="store_true",
        help="how near in meaning the answers are that differ; advisory; needs the extra 'semantic'",
    )
    parser.add_argument(
        "--worst", type=integer(0, 100_000), default=10, metavar="N", help="pairs to list (default %(default)s)"
    )
    parser.add_argument("--json", metavar="FILE", help="write a JSON document; - writes it in place of the tables")
    parser.add_argument("--html", metavar="FILE", help="write one HTML file with the texts side by side")
    parser.add_argument(
        "--fail-on-difference", action="store_true", help="exit with 1 unless everything is equal and complete"
    )
    _add_url(parser)
    parser.add_argument(
        "--key", metavar="KEY", help="the observatory's key, for run:LABEL (default: $REPRISE_OBSERVATORY_KEY)"
    )
    group = parser.add_argument_group("replaying")
    group.add_argument("--replay", action="store_true", help="send the file's requests again, and compare the answers")
    _add_replay(group)
    group.add_argument("--out", metavar="FILE", help="keep what was answered, as `reprise replay --out` does")


def add_replay_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``reprise replay``."""
    parser.description = "Send the requests of a file again, and write them with their new answers."
    parser.epilog = _REPLAY
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("file", metavar="FILE", help="requests, one JSON object per line; answers in it are not used")
    _add_url(parser)
    _add_replay(parser)
    parser.add_argument("--out", metavar="FILE", default="-", help="where to write (default: standard output)")


def misplaced(arguments: argparse.Namespace) -> tuple[str, ...]:
    """The options of ``reprise compare`` that were given and have no meaning without ``--replay``."""
    if arguments.replay:
        return ()
    given = (name for name in _REPLAY_ONLY if getattr(arguments, name) is not None)
    return tuple(f"--{name.replace('_', '-')}" for name in given)


def _add_url(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--url", default=DEFAULT_URL, help="the gateway (default %(default)s)")


def _add_replay(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--mode", choices=[mode.value for mode in REQUESTABLE_MODES], help="the mode of all (default: each one's own)"
    )
    parser.add_argument("--run", metavar="LABEL", help="label the requests with a run, to find them in the ledger")
    parser.add_argument("--model", metavar="NAME", help="the model to ask (default: each one's own)")
    parser.add_argument(
        "--concurrency",
        type=integer(1, 1024),
        metavar="N",
        help=f"how many are in flight at once (default {DEFAULT_CONCURRENCY})",
    )
    parser.add_argument("--api-key", metavar="KEY", help="the server's API key (default: $OPENAI_API_KEY)")
    parser.add_argument(
        "--timeout",
        type=number(0.1, 86_400.0),
        metavar="SECONDS",
        help=f"how long one answer may take, its time in the queue included (default {DEFAULT_TIMEOUT:g})",
    )
    parser.add_argument(
        "--evidence",
        choices=EVIDENCE,
        help=f"what to ask for besides, to place forks at tokens and tell ties from faults (default "
        f"{DEFAULT_EVIDENCE}; servers other than vLLM may know none)",
    )
