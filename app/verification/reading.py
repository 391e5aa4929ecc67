"""Reads members of a request by their type. Null counts as left out, as in OpenAI's API.

Types are strict: what vLLM would read as another type ("0", 1.0 for a count) is refused, so that nothing can mean one
thing here and another there.
"""

import math
from collections.abc import Mapping
from typing import Any

from app.errors import InvalidRequest


def flag(members: Mapping[str, Any], name: str, *, default: bool = False) -> bool:
    """A boolean. Raises InvalidRequest naming the member."""
    value = members.get(name)
    if value is not None and not isinstance(value, bool):
        raise wrong(name, "true or false")
    return default if value is None else value


def number(members: Mapping[str, Any], name: str) -> float | None:
    """A finite number, or None where it is left out. Raises InvalidRequest naming the member."""
    value = members.get(name)
    if value is not None and (type(value) not in {int, float} or not math.isfinite(value)):
        raise wrong(name, "a number")
    return value


def integer(members: Mapping[str, Any], name: str, least: int) -> int | None:
    """An integer of at least so much, or None where it is left out. Raises InvalidRequest naming the member."""
    value = members.get(name)
    if value is not None and (type(value) is not int or value < least):
        raise wrong(name, f"an integer of at least {least}")
    return value


def ids(members: Mapping[str, Any], name: str, vocabulary: int) -> tuple[int, ...]:
    """Token ids, none where they are left out. Raises InvalidRequest naming the member, also for one out of range."""
    value = members.get(name)
    if value is None:
        return ()
    if not isinstance(value, list) or any(type(one) is not int for one in value):
        raise wrong(name, "an array of token ids")
    if any(not 0 <= one < vocabulary for one in value):
        raise InvalidRequest(f"'{name}' holds a token id that is not in 0 to {vocabulary - 1}.", param=name)
    return tuple(value)


def strings(members: Mapping[str, Any], name: str, most: int) -> tuple[str, ...]:
    """One string or an array of so many at most, none of them empty; () where it is left out. Raises InvalidRequest."""
    value = members.get(name)
    found = [] if value is None else [value] if isinstance(value, str) else value
    if not isinstance(found, list) or not all(isinstance(one, str) and one for one in found):
        raise wrong(name, "a string or an array of strings, none of them empty")
    if len(found) > most:
        raise wrong(name, f"at most {most} strings")
    return tuple(found)


def wrong(name: str, wanted: str) -> InvalidRequest:
    """The error for a member that is not what it must be."""
    return InvalidRequest(f"'{name}' must be {wanted}.", param=name)
