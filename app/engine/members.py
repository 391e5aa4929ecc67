"""The members of a JSON body that a gateway sends to the guard, each read once and checked."""

import json
from collections.abc import Collection
from typing import Any

from app.errors import InvalidRequest


class Members:
    """An object whose every member must be read: what is absent, of another kind, or left over is an InvalidRequest."""

    def __init__(self, body: bytes) -> None:
        try:
            content = json.loads(body)
        except (ValueError, RecursionError):
            content = None
        if not isinstance(content, dict):
            raise InvalidRequest("the body must be a JSON object")
        self._left: dict[str, Any] = content

    def whole(self, name: str, low: int, high: int) -> int:
        """A whole number from ``low`` to ``high``."""
        value = self._take(name)
        if type(value) is not int or not low <= value <= high:
            raise InvalidRequest(f"'{name}' must be a whole number from {low} to {high}", param=name)
        return value

    def whole_or_null(self, name: str, low: int, high: int) -> int | None:
        """As `whole`, or null."""
        return self._take(name) if self._left.get(name, 0) is None else self.whole(name, low, high)

    def flag(self, name: str) -> bool:
        """True or false."""
        value = self._take(name)
        if not isinstance(value, bool):
            raise InvalidRequest(f"'{name}' must be true or false", param=name)
        return value

    def text_or_null(self, name: str, longest: int) -> str | None:
        """A text of 1 to ``longest`` characters, or null."""
        value = self._take(name)
        if value is not None and not (isinstance(value, str) and 0 < len(value) <= longest):
            raise InvalidRequest(f"'{name}' must be a text of 1 to {longest} characters, or null", param=name)
        return value

    def one_of(self, name: str, known: Collection[str]) -> str:
        """One of the ``known`` texts."""
        value = self._take(name)
        if not isinstance(value, str) or value not in known:
            raise InvalidRequest(f"'{name}' must be one of {', '.join(sorted(known))}", param=name)
        return value

    def members(self, name: str) -> dict[str, Any]:
        """An object, of any members."""
        value = self._take(name)
        if not isinstance(value, dict):
            raise InvalidRequest(f"'{name}' must be an object", param=name)
        return value

    def texts(self, name: str) -> list[str]:
        """A list of texts, none of them empty."""
        value = self._take(name)
        if not isinstance(value, list) or not all(isinstance(part, str) and part for part in value):
            raise InvalidRequest(f"'{name}' must be a list of texts that are not empty", param=name)
        return value

    def tokens(self, name: str, vocabulary: int) -> list[int]:
        """A list of token ids below ``vocabulary``."""
        value = self._take(name)
        if not isinstance(value, list) or not all(type(token) is int and 0 <= token < vocabulary for token in value):
            raise InvalidRequest(f"'{name}' must be a list of token ids from 0 to {vocabulary - 1}", param=name)
        return value

    def token_lists(self, name: str, vocabulary: int) -> list[list[int]]:
        """A list of lists of token ids below ``vocabulary``."""
        value = self._take(name)
        lists = value if isinstance(value, list) and all(isinstance(part, list) for part in value) else None
        if lists is None or not all(type(token) is int and 0 <= token < vocabulary for part in lists for token in part):
            raise InvalidRequest(f"'{name}' must be a list of lists of ids from 0 to {vocabulary - 1}", param=name)
        return lists

    def end(self) -> None:
        """Nothing may be left."""
        for name in self._left:
            raise InvalidRequest(f"'{name[:40]}' is unknown", param=name[:40])

    def _take(self, name: str) -> Any:  # noqa: ANN401 - a JSON value
        if name not in self._left:
            raise InvalidRequest(f"'{name}' is missing", param=name)
        return self._left.pop(name)
