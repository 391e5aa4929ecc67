"""Files of requests and answers: one JSON object per line.

The format is ours (``path``, ``request``, ``answer``), and the members of OpenAI's batch files are read as well
(``url``, ``body``, ``response.body``, ``custom_id``): docs/compare.md describes both. A request keeps the bytes that it
has in the file, so that what is replayed is what was written.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import orjson

from app.comparison.entry import NotComparable
from app.determinism.members import members
from app.determinism.output import CHAT_PATH, READABLE_PATHS, TEXT_PATH, Output
from app.determinism.reading import read_unary
from app.determinism.request import InferenceRequest, parse
from app.errors import InvalidRequest

CUT_SHORT: Final = "the answer was cut short"
NO_ANSWER: Final = "no answer"

_OK: Final = 200
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
_PATH_OF_OBJECT: Final = {"chat.completion": CHAT_PATH, "text_completion": TEXT_PATH}
_UNSPANNED: Final = (ValueError, StopIteration, IndexError, RecursionError)


@dataclass(frozen=True, slots=True)
class Record:
    """One line.

    ``request`` is None in a batch's result, which repeats the ``custom_id`` alone. ``output`` is None where there is no
    complete answer, and ``problem`` then says why. ``facts`` are what the answer's determinism headers said.
    """

    line: int
    request: InferenceRequest | None
    output: Output | None
    problem: str | None
    custom_id: str | None
    facts: Mapping[str, str]


def read_file(name: str) -> list[Record]:
    """Every line of a file. Raises NotComparable naming the file, and the line that is wrong."""
    try:
        with Path(name).open("rb") as lines:
            records = list(read_lines(lines, name))
    except OSError as exc:
        raise NotComparable(f"{name}: {exc.strerror or 'cannot be read'}") from exc
    if not records:
        raise NotComparable(f"{name}: there is no line in it")
    return records


def read_lines(lines: Iterable[bytes], name: str) -> Iterator[Record]:
    """The lines of a file called ``name``; empty ones are left out. Raises NotComparable naming file and line."""
    for number, line in enumerate(lines, 1):
        stripped = (line.removeprefix(_BYTE_ORDER_MARK) if number == 1 else line).strip()
        if not stripped:
            continue
        try:
            yield _record(number, stripped)
        except _BadLine as exc:
            raise NotComparable(f"{name}:{number}: {exc}") from exc


class _BadLine(Exception):
    """What is wrong with a line."""


def _record(number: int, raw: bytes) -> Record:
    try:
        line = orjson.loads(raw)
    except orjson.JSONDecodeError as exc:
        raise _BadLine(f"not valid JSON: {exc}") from exc
    if not isinstance(line, dict):
        raise _BadLine("not a JSON object")
    spans = _spans(raw.decode())
    request = _request(line, spans)
    output, problem = _answer(line, spans, request.path if request is not None else None)
    custom_id = line.get("custom_id")
    if custom_id is not None and not isinstance(custom_id, str):
        raise _BadLine("'custom_id' must be a string")
    if request is None and custom_id is None:
        raise _BadLine("neither 'request' nor 'body', and no 'custom_id' to find the request by")
    return Record(number, request, output, problem, custom_id, _facts(line))


def _request(line: Mapping[str, Any], spans: Mapping[str, str]) -> InferenceRequest | None:
    name = next((name for name in ("request", "body") if name in line), None)
    if name is None:
        return None
    path = line.get("path", line.get("url"))
    if not isinstance(path, str) or path not in READABLE_PATHS:
        raise _BadLine(f"'path' must be {' or '.join(sorted(READABLE_PATHS))}")
    if not isinstance(line[name], dict):
        raise _BadLine(f"'{name}' must be a JSON object")
    try:
        return parse(path, spans[name].encode())
    except InvalidRequest as exc:
        raise _BadLine(f"'{name}': {exc.message}") from exc


def _answer(line: Mapping[str, Any], spans: Mapping[str, str], path: str | None) -> tuple[Output | None, str | None]:
    if error := line.get("error"):
        return None, error if isinstance(error, str) else _message(error)
    name, answer, text = "answer", line.get("answer"), spans.get("answer", "")
    response = line.get("response")
    if response is not None:
        if not isinstance(response, dict):
            raise _BadLine("'response' must be a JSON object")
        name, answer, text = "response.body", response.get("body"), _spans(spans["response"]).get("body", "")
        status = response.get("status_code", _OK)
        if status != _OK:
            return None, f"HTTP {status}: {_message(answer)}"
    if answer is None:
        return None, NO_ANSWER
    if not isinstance(answer, dict):
        raise _BadLine(f"'{name}' must be a JSON object")
    if answer.get("error"):
        return None, _message(answer)
    path = path or _PATH_OF_OBJECT.get(str(answer.get("object")))
    output = read_unary(path, text.encode()) if path is not None else None
    if output is None:
        raise _BadLine(f"'{name}' is no answer of {path or 'a known path'} in OpenAI's shape")
    return (output, None) if output.complete else (None, CUT_SHORT)


def _facts(line: Mapping[str, Any]) -> dict[str, str]:
    facts = line.get("determinism") or {}
    if not isinstance(facts, dict):
        raise _BadLine("'determinism' must be a JSON object")
    return {name: str(value) for name, value in facts.items() if value is not None}


def _message(error: object) -> str:
    """The message of an error in OpenAI's shape, or in another one."""
    while isinstance(error, dict):
        error = error.get("error") or error.get("message") or error.get("code")
    return str(error) if error else "an error without a message"


def _spans(text: str) -> dict[str, str]:
    """The text of each member's value; of a name that comes twice the last one, as the parser takes it."""
    try:
        return {member.name: text[member.value : member.end] for member in members(text)[0]}
    except _UNSPANNED as exc:
        raise _BadLine("not readable: nested too deeply, or a number too long") from exc
