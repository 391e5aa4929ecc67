"""The caller's request: its bytes, a read-only view on them, and edits that leave every other byte alone.

The engine must get what the caller wrote. Numbers, unknown members, key order and escapes survive because the body is
never serialised again: an edit replaces, removes or appends single members of the top-level object in the original
bytes.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from json import JSONDecodeError
from typing import Any, Final

import orjson

from app.determinism.members import Member, members
from app.errors import InvalidRequest

_SHALLOW: Final = 100
"""A body with no more brackets than this cannot be nested too deeply."""

_MOST_PRIORITY: Final = 2**31


@dataclass(frozen=True, slots=True)
class InferenceRequest:
    """One parsed request. ``body`` holds the caller's bytes; ``members`` is a view and must not be changed."""

    path: str
    body: bytes
    members: Mapping[str, Any]

    @property
    def model(self) -> str | None:
        """The model as the caller wrote it; None when left out (the engine then serves its only model)."""
        return self.members.get("model")

    @property
    def priority(self) -> int:
        """Who goes first: the lower number, as in vLLM; 0 when left out."""
        return self.members.get("priority") or 0


def parse(path: str, body: bytes) -> InferenceRequest:
    """Read a body that must be one JSON object in UTF-8.

    Raises InvalidRequest naming what is wrong. Types of single members are the engine's to judge, except those on which
    the gateway itself acts.
    """
    try:
        members = orjson.loads(body)
    except orjson.JSONDecodeError as exc:
        raise InvalidRequest(f"The body is not valid JSON: {exc}.", code="invalid_json") from exc
    if body.count(b"[") + body.count(b"{") > _SHALLOW and not _writable(members):
        raise InvalidRequest("The body is nested too deeply.", code="invalid_json")
    if not isinstance(members, dict):
        raise InvalidRequest(f"The body must be a JSON object, not {_json_type(members)}.", code="invalid_json")
    model = members.get("model")
    if model is not None and not isinstance(model, str):
        raise InvalidRequest(f"'model' must be a string, not {_json_type(model)}.", param="model")
    stream = members.get("stream")
    if stream is not None and not isinstance(stream, bool):
        raise InvalidRequest(f"'stream' must be true or false, not {_json_type(stream)}.", param="stream")
    priority = members.get("priority")
    if priority is not None and (type(priority) is not int or not -_MOST_PRIORITY <= priority < _MOST_PRIORITY):
        raise InvalidRequest("'priority' must be an integer from -2147483648 to 2147483647.", param="priority")
    return InferenceRequest(path, body, members)


def edit(body: bytes, changes: Mapping[str, Any]) -> bytes:
    """Set or remove (value None) top-level members, leaving every other byte as it was.

    A member that exists is replaced in place; a new one is appended. Raises InvalidRequest when the object holds a
    changed member twice, since engine and gateway could then disagree about which one counts, or is nested too deeply.
    """
    if not changes:
        return body
    text = body.decode()
    spans, last = _spans(text)
    pieces: list[str] = []
    seen: set[str] = set()
    previous_end = last
    for name, start, _, end in spans:
        if name in changes and name in seen:
            raise InvalidRequest(f"'{name}' is given more than once.", param=name, code="duplicate_member")
        seen.add(name)
        if name not in changes or changes[name] is not None:
            # A member goes with the separator before it, so that what stays keeps its own white space.
            pieces.append(text[previous_end:start] if pieces else "")
            pieces.append(_member(name, changes[name]) if name in changes else text[start:end])
        previous_end = end
    for name, value in changes.items():
        if name not in seen and value is not None:
            pieces += ["," if pieces else "", _member(name, value)]
    first = spans[0].start if spans else last
    return (text[:first] + "".join(pieces) + text[last:]).encode()


def _member(name: str, value: object) -> str:
    return f"{json.dumps(name)}:{json.dumps(value)}"


def _spans(text: str) -> tuple[list[Member], int]:
    try:
        return members(text)
    except RecursionError as exc:
        raise InvalidRequest("The body is nested too deeply.", code="invalid_json") from exc
    except (JSONDecodeError, StopIteration, ValueError) as exc:
        raise InvalidRequest(f"The body is not valid JSON: {exc}.", code="invalid_json") from exc


def _writable(value: object) -> bool:
    """Whether a value can be written again: orjson reads some 1,000 levels but writes some 250."""
    try:
        orjson.dumps([[[value]]])
    except TypeError:
        return False
    return True


def _json_type(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int() | float():
            return "a number"
        case str():
            return "a string"
        case list():
            return "an array"
        case _:
            return "an object"
