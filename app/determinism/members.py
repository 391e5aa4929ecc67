"""Where the members of a JSON object lie in its text, so that one can be changed and no other byte with it.

The text has passed a real parser, so only what a span needs is looked at. `JSONDecoder.scan_once` walks a value in C.
"""

from collections.abc import Container
from json import JSONDecoder
from json.decoder import scanstring  # type: ignore[attr-defined]  # CPython's C string scanner; typeshed leaves it out
from typing import Final, NamedTuple

_WHITESPACE: Final = " \t\n\r"
_DECODER: Final = JSONDecoder()


class Member(NamedTuple):
    """One member: its name, where it starts, where its value does, and where both end."""

    name: str
    start: int
    value: int
    end: int


def members(text: str, position: int = 0) -> tuple[list[Member], int]:
    """The members of the object at or after ``position``, and where the last one ends (the first could begin).

    Raises ValueError, StopIteration, IndexError or RecursionError for what is no JSON object.
    """
    found: list[Member] = []
    position = skip(text, text.index("{", position) + 1)
    while text[position] != "}":
        start = position
        name, position = scanstring(text, position + 1, True)  # noqa: FBT003 - the C function takes no keywords
        value = skip(text, skip(text, position) + 1)
        _, position = _DECODER.scan_once(text, value)  # type: ignore[attr-defined]  # missing in typeshed
        found.append(Member(name, start, value, position))
        position = skip(text, position)
        if text[position] == ",":
            position = skip(text, position + 1)
    return found, found[-1].end if found else position


def blank(text: str, names: Container[str], *, inside: str, inner: Container[str]) -> str:
    """The object with null for the values of ``names``, and of ``inner`` in the objects of the list ``inside``.

    What is null already, or not there, stays as it is. Raises as `members` does.
    """
    edits: list[tuple[int, int]] = []
    for member in members(text)[0]:
        if member.name == inside and text[member.value] == "[":
            position = skip(text, member.value + 1)
            while text[position] == "{":
                found, end = members(text, position)
                edits += [(each.value, each.end) for each in found if each.name in inner]
                position = skip(text, skip(text, end) + 1)
                if text[position] == ",":
                    position = skip(text, position + 1)
        elif member.name in names:
            edits.append((member.value, member.end))
    pieces: list[str] = []
    last = 0
    for start, end in edits:
        pieces += (text[last:start], "null")
        last = end
    return "".join((*pieces, text[last:]))


def skip(text: str, position: int) -> int:
    """The first position from here on that is no white space."""
    while text[position] in _WHITESPACE:
        position += 1
    return position
