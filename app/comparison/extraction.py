"""The result within an answer: the part that an evaluation would score, found by a rule that the user gives.

It is looked for in the text of each choice, and where there is none in the arguments of its first tool call; never in
the reasoning. An answer in which the rule finds nothing is unparsable, which is neither equal nor different.
"""

import re
from collections.abc import Callable
from typing import Any, Final

import orjson

from app.determinism.output import Choice, Output

Extraction = Callable[[str], str | None]
"""Takes a text to its result; None where there is none."""

_STEP: Final = re.compile(r"\.?(?P<key>[^.\[\]]+)|\[(?P<index>-?\d{1,9})\]")
_FENCED: Final = re.compile(r"```[\w-]*[ \t]*\n(.*?)\n?[ \t]*```", re.DOTALL)


def by_regex(pattern: str) -> Extraction:
    """The first group of a regular expression's first match; the whole match if it has no group. Raises ValueError."""
    try:
        compiled = re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as exc:
        raise ValueError(f"{pattern!r} is not a regular expression: {exc}") from exc
    group = 1 if compiled.groups else 0

    def extract(text: str) -> str | None:
        found = compiled.search(text)
        return found.group(group) if found is not None else None

    return extract


def by_path(path: str) -> Extraction:
    """The member at a path of the JSON that a text is, or holds in its first fence, in plain form.

    A path is made of names with dots between them and of positions in brackets, negative ones counted from the end:
    ``result.items[0].label``. A leading ``$`` is allowed. Raises ValueError for anything else.
    """
    steps = _steps(path)

    def extract(text: str) -> str | None:
        found = _document(text)
        try:
            for step in steps:
                if isinstance(step, int) is not isinstance(found, list):
                    return None
                found = found[step]
        except (LookupError, TypeError):
            return None
        return orjson.dumps(found, option=orjson.OPT_SORT_KEYS).decode() if found is not None else None

    return extract


def extract(output: Output, extraction: Extraction) -> tuple[str, ...] | None:
    """The result of each choice; None where one of them has none."""
    found = [extraction(_scored(choice)) for choice in output.choices]
    known = tuple(result for result in found if result is not None)
    return known if len(known) == len(found) else None


def _scored(choice: Choice) -> str:
    return choice.text or (choice.tool_calls[0].arguments if choice.tool_calls else "")


def _steps(path: str) -> tuple[str | int, ...]:
    rest = path.removeprefix("$")
    steps: list[str | int] = []
    position = 0
    while position < len(rest):
        found = _STEP.match(rest, position)
        if found is None or (found["key"] and position and rest[position] != "."):
            raise ValueError(f"{path!r} is not a path: it takes names with dots between them and [n], as in a.b[0].c")
        steps.append(found["key"] if found["key"] is not None else int(found["index"]))
        position = found.end()
    if not steps:
        raise ValueError(f"{path!r} names no member")
    return tuple(steps)


def _document(text: str) -> Any:  # noqa: ANN401 - any JSON
    fenced = _FENCED.search(text)
    for candidate in (text, fenced[1] if fenced is not None else ""):
        try:
            document = orjson.loads(candidate)
            orjson.dumps(document)
        except (ValueError, TypeError):
            continue
        return document
    return None
