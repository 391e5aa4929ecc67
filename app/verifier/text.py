"""The text of a verified answer, as the engine's own detokenizer writes it, released as far as it is final.

What a stop string could still take back is held back, as vLLM does: one character less than the longest of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from app.errors import UpstreamError
from app.verification.ending import End
from app.verification.request import Wanted

_CONTEXT: Final = 64
"""Tokens of the prompt's end that a detokenizer needs, so that the answer's first characters come out right."""


@dataclass(frozen=True, slots=True)
class Stop:
    """The stop string that was found, and the number of the token that completed it."""

    index: int
    string: str


@dataclass(frozen=True, slots=True)
class Piece:
    """Text that is final and was not released before; ``decoded`` are the texts of the ids that were asked for."""

    text: str
    stop: Stop | None
    decoded: Sequence[Sequence[str]]


class Text:
    """The text of one answer so far."""

    def __init__(self, wanted: Wanted, prompt: Sequence[int]) -> None:
        self._wanted = wanted
        self._prompt = list(prompt[-_CONTEXT:])
        longest = max(map(len, wanted.stop), default=1)
        self._held_back = 0 if wanted.include_stop_str_in_output else longest - 1
        self._released = ""
        self._ended = False

    def question(self, ids: Sequence[int], end: End | None, rows: Sequence[Sequence[int]]) -> dict[str, Any]:
        """What to ask for all tokens of the answer so far, and for the ids of ``rows`` one by one."""
        self._ended = end is not None
        return {
            "prompt": self._prompt,
            "ids": list(ids),
            "skip_special_tokens": self._wanted.skip_special_tokens,
            "spaces_between_special_tokens": self._wanted.spaces_between_special_tokens,
            "stop": list(self._wanted.stop),
            "include_stop_str_in_output": self._wanted.include_stop_str_in_output,
            "min_tokens": self._wanted.min_tokens,
            "ended": end is not None and end.finish_reason == "stop",
            "decode": [list(row) for row in rows],
        }

    def take(self, said: Any) -> Piece:  # noqa: ANN401 - any JSON
        """What is new in the answer to that question. Raises UpstreamError for anything else."""
        try:
            text, decoded = said["text"], said["decoded"]
            stop = None if said["stop"] is None else Stop(int(said["stop"]["index"]), str(said["stop"]["string"]))
            goes_on = text.startswith(self._released)
        except (TypeError, ValueError, LookupError, AttributeError) as exc:
            raise UpstreamError(f"The verifier wrote no text: {exc}.") from exc
        if not goes_on:
            raise UpstreamError("The verifier took back text that it had written.")
        end = len(text) if self._ended or stop is not None else max(len(text) - self._held_back, len(self._released))
        piece, self._released = text[len(self._released) : end], text[:end]
        return Piece(piece, stop, decoded)
