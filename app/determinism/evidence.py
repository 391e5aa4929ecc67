"""Token ids and logprobs that the gateway asks an engine for on its own account, and takes out of the answer again.

They place a fork at its token, and tell a rounding tie from a fault. They are asked for in deterministic modes, on
canaries and on shadows only: a `standard` request goes out as its caller wrote it. In vLLM 0.32 each of the members is
in every answer, null where nobody asked (``entrypoints/openai/chat_completion/serving.py`` and
``completion/serving.py``), so an answer with null put back is byte for byte the one that the caller would have got.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from app.determinism.members import blank
from app.determinism.output import CHAT_PATH, READABLE_PATHS

TOP: Final = 2
"""Likeliest tokens asked for at each place: a margin needs two."""

_END: Final = b"\n\n"
_DATA: Final = b"data: "
_EMPTY_DELTA: Final = b'"delta":{}'
_UNFINISHED: Final = b'"finish_reason":null'

_OTHER_ANSWERS: Final = ("echo", "use_beam_search")
"""Members with which token ids or logprobs come in another shape, or change what is answered."""

_OTHER_LOGPROBS: Final = ("return_tokens_as_token_ids", "logprob_token_ids")


class Evidence(StrEnum):
    """How much is asked for: nothing, token ids, or logprobs besides."""

    NONE = "none"
    TOKENS = "tokens"
    LOGPROBS = "logprobs"


@dataclass(frozen=True, slots=True)
class Asked:
    """What was asked for one request: ``changes`` to its members, and the members of the answer to blank again.

    ``ids_alone``: the caller asked for neither token ids nor logprobs, so no chunk is his that carries nothing else.
    """

    changes: Mapping[str, Any]
    top: frozenset[str]
    choice: frozenset[str]
    ids_alone: bool

    def __bool__(self) -> bool:
        return bool(self.changes)

    def unary(self, body: bytes) -> bytes:
        """The answer as the caller asked for it. What is no such answer stays as it is."""
        if not self.changes:
            return body
        try:
            return blank(body.decode(), self.top, inside="choices", inner=self.choice).encode()
        except (ValueError, StopIteration, IndexError, RecursionError):
            return body

    def events(self, piece: bytes) -> bytes:
        """Whole events of a stream, likewise.

        With token ids vLLM also sends a chunk for tokens of which a parser has shown nothing yet: it goes.
        """
        if not self.changes:
            return piece
        kept: list[bytes] = []
        for event in piece.split(_END):
            if event.startswith(_DATA + b"{"):
                if self.ids_alone and _EMPTY_DELTA in event and _UNFINISHED in event:
                    continue
                kept.append(_DATA + self.unary(event[len(_DATA) :]))
            else:
                kept.append(event)
        return _END.join(kept)


NOTHING_ASKED: Final = Asked({}, frozenset(), frozenset(), ids_alone=False)


def ask(path: str, members: Mapping[str, Any], evidence: Evidence, most_logprobs: int = TOP) -> Asked:
    """What to ask for so that the caller notices nothing; nothing where his own wishes leave no room for it.

    ``most_logprobs`` is what the engine gives at each token: to ask for more would be an error of ours.
    """
    if evidence is Evidence.NONE or path not in READABLE_PATHS or any(members.get(name) for name in _OTHER_ANSWERS):
        return NOTHING_ASKED
    chat = path == CHAT_PATH
    changes: dict[str, Any] = {}
    blanks: set[str] = set()
    ids = _unset(members.get("return_token_ids"))
    if ids:
        changes["return_token_ids"] = True
        blanks |= {"token_ids", "prompt_token_ids"}
    if evidence is Evidence.LOGPROBS and most_logprobs >= TOP and _no_logprobs(chat=chat, members=members):
        changes |= {"logprobs": True, "top_logprobs": TOP} if chat else {"logprobs": TOP}
        blanks.add("logprobs")
    return Asked(
        changes,
        frozenset(blanks & {"prompt_token_ids"}),
        frozenset(blanks),
        ids_alone=ids and not members.get("logprobs"),
    )


def _no_logprobs(*, chat: bool, members: Mapping[str, Any]) -> bool:
    """Whether the caller has left logprobs to us. What the engine would refuse must stay as wrong as it is."""
    if any(members.get(name) for name in _OTHER_LOGPROBS):
        return False
    if chat:
        return _unset(members.get("logprobs")) and members.get("top_logprobs") is None
    return members.get("logprobs") is None


def _unset(value: object) -> bool:
    return value is None or value is False
