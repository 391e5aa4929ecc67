"""The text of a verified answer, as the engine's own detokenizer writes it, released as far as it is final.

What a stop string could still take back is held back, as vLLM does: one character less than the longest of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from app.errors import UpstreamError
from app.verification.ending import End
from app.verification.request import Wanted


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
        # All of it, as vLLM's own detokenizer gets it: a prompt cut inside a character would spoil the answer's first.
        self._prompt = list(prompt)
        longest = max(map(len, wanted.stop), default=1)
        self._held_back = 0 if wanted.include_stop_str_in_output else longest - 1
        self._released = ""
        self._told = 0
        self._asked = 0
        self._rows: Sequence[Sequence[int]] = ()
        self._ended = False

    def question(self, ids: Sequence[int], end: End | None, rows: Sequence[Sequence[int]]) -> dict[str, Any]:
        """What to ask for all tokens of the answer so far, and for the ids of ``rows`` one by one."""
        self._asked, self._rows, self._ended = len(ids), rows, end is not None
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

    def read(self, said: Any) -> Piece:  # noqa: ANN401 - any JSON
        """What is new in the answer to the last question.

        Raises UpstreamError, with nothing changed, for what is no answer to it.
        """
        try:
            text, stop = said["text"], None if said["stop"] is None else _stop(said["stop"])
            decoded = said["decoded"] if self._rows else []
            goes_on = text.startswith(self._released)
            complete = [len(texts) for texts in decoded] == [len(row) for row in self._rows]
            plain = all(isinstance(one, str) for texts in decoded for one in texts)
        except (TypeError, ValueError, LookupError, AttributeError) as exc:
            raise UpstreamError(f"The verifier wrote no text: {exc}.") from exc
        if not goes_on:
            raise UpstreamError("The verifier took back text that it had written.")
        if stop is not None and not self._told <= stop.index < self._asked:
            raise UpstreamError("The verifier found a stop string where it was not asked for one.")
        if not complete or not plain:
            raise UpstreamError("The verifier did not tell the texts of the tokens.")
        end = len(text) if self._ended or stop is not None else max(len(text) - self._held_back, len(self._released))
        piece, self._released, self._told = text[len(self._released) : end], text[:end], self._asked
        return Piece(piece, stop, decoded)


def _stop(said: Any) -> Stop:  # noqa: ANN401 - any JSON
    index, string = said["index"], said["string"]
    if type(index) is not int or not isinstance(string, str):
        raise TypeError("a stop is a token's number and a string")
    return Stop(index, string)
