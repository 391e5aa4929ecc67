"""One chapter of a demonstration that has several: what it adds to the tables, the findings and the data."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from app.lab.demonstration import Sheet


class Part(NamedTuple):
    """Tables, sentences with figures, and JSON's own types, as in a Result."""

    sheets: tuple[Sheet, ...]
    findings: tuple[str, ...]
    data: Mapping[str, Any]


def joined(parts: Iterable[Part]) -> Part:
    """The chapters in order as one; no two of them use one name in the data."""
    sheets: list[Sheet] = []
    findings: list[str] = []
    data: dict[str, Any] = {}
    for part in parts:
        sheets += part.sheets
        findings += part.findings
        data |= part.data
    return Part(tuple(sheets), tuple(findings), data)
