"""Canary prompts: the same requests again and again, so that divergence shows where no client ever repeats himself.

A file holds one JSON object per line: the body of a request without ``model`` and ``stream``, with ``messages`` (a chat
completion) or ``prompt`` (a completion). ``temperature`` is 0 and ``max_tokens`` 48 where a line says nothing else.
Empty lines, and lines that begin with ``#``, are skipped.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Final

from app.determinism.output import CHAT_PATH, TEXT_PATH
from app.determinism.request import parse as read
from app.errors import InvalidRequest

DEFAULTS: Final[Mapping[str, Any]] = {"temperature": 0, "max_tokens": 48}

_OURS: Final = ("model", "stream", "stream_options", "determinism")
_BUNDLED: Final = "canaries.jsonl"


class CanaryError(ValueError):
    """A canary file is wrong; the message names the line."""


@dataclass(frozen=True, slots=True)
class Canary:
    """One request. ``members`` are those of its body."""

    path: str
    members: Mapping[str, Any]

    def body(self, model: str) -> bytes:
        """The request for a model."""
        return json.dumps({"model": model, **self.members}).encode()


def bundled() -> tuple[Canary, ...]:
    """The canaries that ship with the gateway: plain ones, long ones, and choices between near-equals.

    A near-tie is the most sensitive detector there is, so half of them ask for an arbitrary choice.
    """
    return parse(files("app.measuring").joinpath(_BUNDLED).read_text(), _BUNDLED)


def parse(text: str, name: str) -> tuple[Canary, ...]:
    """The canaries of a file. Raises CanaryError naming file and line."""
    found = [
        _canary(line, f"{name}, line {number}")
        for number, line in enumerate(text.split("\n"), 1)
        if line.strip() and not line.lstrip().startswith("#")
    ]
    if not found:
        raise CanaryError(f"{name} holds no canary")
    return tuple(found)


def _canary(line: str, where: str) -> Canary:
    try:
        members = dict(read(CHAT_PATH, line.encode()).members)
    except (InvalidRequest, UnicodeEncodeError) as exc:
        raise CanaryError(f"{where}: {getattr(exc, 'message', exc)}") from exc
    for member in _OURS:
        if member in members:
            raise CanaryError(f"{where}: '{member}' is the gateway's to set")
    messages, prompt = members.get("messages"), members.get("prompt")
    if not (isinstance(messages, list) and messages) and not (isinstance(prompt, str | list) and prompt):
        raise CanaryError(f"{where}: a canary has 'messages' (a list) or a 'prompt'")
    if messages is not None and prompt is not None:
        raise CanaryError(f"{where}: a canary has either 'messages' or 'prompt'")
    members = {**DEFAULTS, **members}
    if members["temperature"] != 0 and members.get("seed") is None:
        raise CanaryError(f"{where}: what samples without a 'seed' differs by design")
    return Canary(TEXT_PATH if messages is None else CHAT_PATH, members)
