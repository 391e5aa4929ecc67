"""What an engine answered, as a value: the text, its digest, and where its tokens lie.

Streamed and unary forms of one answer give equal outputs: both are absorbed piece by piece into the same parts, a unary
message being one large delta. What a digest covers is what a caller reads: text, reasoning, refusal, tool calls and the
finish reason of every choice. It leaves out what differs between equal answers by design: ids and timestamps, the token
ids and logprobs that depend on switches of the request, and the way in which a tool call's JSON is written, which vLLM
changes between the two forms (`ToolCall` says what that hides).

Field names are those of vLLM 0.32 (``entrypoints/openai/chat_completion/protocol.py`` and ``completion/protocol.py``).
This module needs orjson, so the guard and the plugin, which run inside the engine, do not import it.
"""

import hashlib
import json
from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from sys import getsizeof
from typing import Final, NamedTuple

import orjson

CHAT_PATH: Final = "/v1/chat/completions"
TEXT_PATH: Final = "/v1/completions"
READABLE_PATHS: Final = frozenset({CHAT_PATH, TEXT_PATH})
"""The paths whose answers this module reads."""

TOKENS_PER_BLOCK: Final = 64
CHARACTERS_PER_BLOCK: Final = 256
BLOCK_DIGEST_BYTES: Final = 8

_CUT_SHORT: Final = frozenset({"abort", "error"})
_SEPARATOR: Final = "\x1e"


class UnreadableOutput(ValueError):
    """The upstream's bytes are not an answer in the shape that the path promises."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One function call that the model asked for; its id is the engine's and random, so it is not kept.

    ``arguments`` become the one plain form of their JSON: no white space, non-ASCII characters escaped, keys in their
    order. Text that does not parse stays as it is. vLLM's parsers (``tool_parsers/hermes_tool_parser.py``, for one)
    stream what the model wrote and send ``json.dumps`` of it in the unary form; in plain form the two are equal.

    So these differences between two answers are not seen, though their tokens differ: white space and escapes; the
    notation of a number (``1e2`` and ``100.0``, digits beyond a double's); the earlier values of a repeated key. And
    one remains that is none of the model's: of a call that was cut in its middle, by ``max_tokens`` say, that parser
    makes plain text in the unary form and the start of a call in the stream.
    """

    name: str
    arguments: str

    def __post_init__(self) -> None:
        # The standard parser, not orjson: it is what vLLM uses, so NaN, lone surrogates and long integers read alike.
        try:
            plain = json.dumps(json.loads(self.arguments), separators=(",", ":"))
        except (ValueError, RecursionError):
            return
        object.__setattr__(self, "arguments", plain)


class Choice(NamedTuple):
    """One of the answer's choices; ``position`` is the answer's own ``index`` of it.

    ``token_ids`` are the exact ids where the body carried them for the whole choice, else None. ``tokens`` are the
    texts of the tokens from logprobs, else None. Where logprobs came for the whole choice, ``margins`` holds, for each
    token, the distance in nats between the two likeliest (NaN where fewer than two were reported), and ``logprobs`` the
    token's own. The arrays are never changed.
    """

    position: int
    text: str = ""
    reasoning: str = ""
    refusal: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    finish_reason: str | None = None
    token_ids: "array[int] | None" = None
    tokens: tuple[str, ...] | None = None
    margins: "array[float] | None" = None
    logprobs: "array[float] | None" = None

    @property
    def flow(self) -> str:
        """Everything readable as one text, in the order in which it is generated; positions of a fork count in it."""
        if not (self.reasoning or self.refusal or self.tool_calls):
            return self.text
        calls = (f"{call.name}{_SEPARATOR}{call.arguments}" for call in self.tool_calls)
        return _SEPARATOR.join(part for part in (self.reasoning, self.text, self.refusal, *calls) if part)


@dataclass(frozen=True, slots=True)
class Blocks:
    """Digests of an output's consecutive blocks: enough to place a fork, not to read a text.

    ``unit`` is "tokens" (blocks of 64 token ids) where every choice has exact ids, else "characters" (blocks of 256).
    ``choices`` holds, per choice in order of index, the 8-byte digests of its blocks one after another.
    """

    unit: str
    choices: tuple[bytes, ...]

    @property
    def size(self) -> int:
        """Units per block."""
        return TOKENS_PER_BLOCK if self.unit == "tokens" else CHARACTERS_PER_BLOCK

    def to_text(self) -> str:
        """The form that a store keeps: ``tokens:hex,hex``."""
        return f"{self.unit}:{','.join(choice.hex() for choice in self.choices)}"

    @classmethod
    def from_text(cls, text: str) -> "Blocks":
        """What `to_text` wrote. Raises ValueError for anything else."""
        unit, colon, digests = text.partition(":")
        if not colon or unit not in {"tokens", "characters"}:
            raise ValueError(f"not block digests: {text[:40]!r}")
        return cls(unit, tuple(bytes.fromhex(part) for part in digests.split(",")))


class Output(NamedTuple):
    """One whole answer. ``complete`` is False when it was cut short, and such an output is comparable to nothing.

    ``digest`` is ``o-`` and 16 hex digits of SHA-256 over the canonical JSON of its choices. ``cached_tokens`` (prompt
    tokens that came from the prefix cache) and ``completion_tokens`` are the engine's word, None where it said nothing.
    """

    choices: tuple[Choice, ...]
    digest: str
    complete: bool
    cached_tokens: int | None = None
    completion_tokens: int | None = None

    @classmethod
    def of(
        cls,
        choices: Iterable[Choice],
        *,
        complete: bool = True,
        cached_tokens: int | None = None,
        completion_tokens: int | None = None,
    ) -> "Output":
        """An output with its digest. A choice that did not finish, or no choice at all, makes it incomplete."""
        ordered = tuple(choices)
        if len(ordered) > 1:
            ordered = tuple(sorted(ordered, key=_position))
        for choice in ordered:
            complete = complete and choice.finish_reason is not None and choice.finish_reason not in _CUT_SHORT
        return cls(ordered, _digest(ordered), complete and bool(ordered), cached_tokens, completion_tokens)

    @property
    def tokens(self) -> int | None:
        """How many tokens were generated, by the engine's word or by what it sent of them; None if neither says."""
        if self.completion_tokens is not None:
            return self.completion_tokens
        lengths = [len(choice.token_ids or choice.tokens or ()) for choice in self.choices]
        return sum(lengths) if all(lengths) else None

    @property
    def has_logprobs(self) -> bool:
        """Whether any choice came with logprobs."""
        return any(choice.logprobs is not None for choice in self.choices)

    @property
    def blocks(self) -> Blocks:
        """The digests of this output's blocks, computed anew at each call."""
        ids = [choice.token_ids for choice in self.choices if choice.token_ids is not None]
        if self.choices and len(ids) == len(self.choices):
            return Blocks("tokens", tuple(_token_blocks(array_) for array_ in ids))
        return Blocks("characters", tuple(_character_blocks(choice.flow) for choice in self.choices))

    @property
    def weight(self) -> int:
        """About how many bytes of memory this output holds."""
        total = 200
        for choice in self.choices:
            # Not by length: one character beyond Latin-1 makes every character of its text take two or four bytes.
            total += 250 + getsizeof(choice.text) + getsizeof(choice.reasoning) + getsizeof(choice.refusal)
            total += sum(50 + getsizeof(call.name) + getsizeof(call.arguments) for call in choice.tool_calls)
            total += 4 * len(choice.token_ids or ()) + (65 if choice.text.isascii() else 95) * len(choice.tokens or ())
            total += 8 * len(choice.margins or ()) + 8 * len(choice.logprobs or ())
        return total


def _position(choice: Choice) -> int:
    return choice.position


def _digest(choices: Iterable[Choice]) -> str:
    canonical = [
        [
            choice.position,
            choice.text,
            choice.reasoning,
            choice.refusal,
            [[call.name, call.arguments] for call in choice.tool_calls],
            choice.finish_reason,
        ]
        for choice in choices
    ]
    return "o-" + hashlib.sha256(orjson.dumps(canonical)).hexdigest()[:16]


def _token_blocks(ids: "array[int]") -> bytes:
    return b"".join(
        _block_digest(ids[start : start + TOKENS_PER_BLOCK].tobytes()) for start in range(0, len(ids), TOKENS_PER_BLOCK)
    )


def _character_blocks(text: str) -> bytes:
    return b"".join(
        _block_digest(text[start : start + CHARACTERS_PER_BLOCK].encode())
        for start in range(0, len(text), CHARACTERS_PER_BLOCK)
    )


def _block_digest(block: bytes) -> bytes:
    return hashlib.sha256(block).digest()[:BLOCK_DIGEST_BYTES]
