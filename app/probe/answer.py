"""What came back for one request, as a value: an answer, a refusal of the mode, or a failure."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import orjson

from app.determinism.output import Choice, UnreadableOutput
from app.determinism.reading import read_unary
from app.errors import DeterminismUnavailable
from app.verification.refusals import NOT_VERIFIABLE

_REFUSALS: Final = frozenset({DeterminismUnavailable.code, NOT_VERIFIABLE})
_OK, _NOT_IMPLEMENTED = 200, 501
_REASON_CHARACTERS: Final = 400
_DIGITS: Final = 9


@dataclass(frozen=True, slots=True)
class Answer:
    """A complete answer with the server's word on it. Durations are in seconds, None where the server said nothing.

    ``identity`` is equal for two answers when token ids and finish reason of every choice are; where the server sends
    no token ids, when everything readable and the finish reason are.
    """

    identity: tuple[tuple[bytes, str | None], ...]
    token_ids: tuple[tuple[int, ...] | None, ...]
    completion_tokens: int
    latency: float
    mode: str | None = None
    coresident_peak: int | None = None
    admission_wait: float | None = None


@dataclass(frozen=True, slots=True)
class Refusal:
    """The server does not offer the mode, or not for such requests: asking again cannot help."""

    reason: str


@dataclass(frozen=True, slots=True)
class Failure:
    """No usable answer."""

    reason: str


Outcome = Answer | Refusal | Failure


def read_answer(
    path: str, choices: int, status: int, headers: Mapping[str, str], body: bytes, latency: float
) -> Outcome:
    """The outcome of a request that was answered at all; ``choices`` is how many its answer must hold."""
    if status != _OK:
        code, message = error_of(body)
        return (
            Refusal(message)
            if code in _REFUSALS or status == _NOT_IMPLEMENTED
            else Failure(f"HTTP {status}: {message}")
        )
    try:
        output = read_unary(path, body)
    except UnreadableOutput:
        output = None
    if output is None or len(output.choices) != choices:
        return Failure(f"the answer is not {choices} choice(s) in OpenAI's shape")
    if not output.complete:
        return Failure("the answer was cut short")
    ids = tuple(None if choice.token_ids is None else tuple(choice.token_ids) for choice in output.choices)
    counted = sum(len(choice) for choice in ids if choice is not None)
    return Answer(
        identity=tuple((_content(choice), choice.finish_reason) for choice in output.choices),
        token_ids=ids,
        completion_tokens=counted if output.completion_tokens is None else output.completion_tokens,
        latency=latency,
        mode=headers.get("x-determinism-mode"),
        coresident_peak=whole_of(headers.get("x-determinism-coresident-peak")),
        admission_wait=_seconds(headers.get("x-determinism-admission-wait")),
    )


def _content(choice: Choice) -> bytes:
    return choice.flow.encode() if choice.token_ids is None else choice.token_ids.tobytes()


def error_of(body: bytes) -> tuple[str | None, str]:
    """Code and message of an error in OpenAI's shape, or what there is of a body in another."""
    try:
        error = orjson.loads(body)["error"]
        code, message = error.get("code"), str(error["message"])
    except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError):
        code, message = None, body.decode("utf-8", "replace")
    words = " ".join(message.split()) or "no reason given"
    text = words if len(words) <= _REASON_CHARACTERS else words[:_REASON_CHARACTERS] + "..."
    return code, text


def whole_of(text: str | None) -> int | None:
    """A whole number in a header, None where there is none."""
    return int(text) if text is not None and text.isdecimal() and len(text) <= _DIGITS else None


def _seconds(text: str | None) -> float | None:
    try:
        value = math.nan if text is None else float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and value >= 0 else None
