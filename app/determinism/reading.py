"""Reads an engine's answers, streamed or unary, into outputs; both forms of one answer give equal outputs.

Both are absorbed piece by piece into the same parts, a unary message being one large delta. Field names are those of
vLLM 0.32 (``entrypoints/openai/chat_completion/protocol.py`` and ``completion/protocol.py``).
"""

import math
from array import array
from collections.abc import Mapping, Sequence
from typing import Any, Final

import orjson

from app.determinism.output import CHAT_PATH, READABLE_PATHS, Choice, Output, ToolCall, UnreadableOutput

_ID_PREFIX: Final = "token_id:"
_BESIDE_TEXT: Final = ("reasoning", "reasoning_content", "refusal", "tool_calls")
_BESIDE_MESSAGE: Final = ("token_ids", "logprobs")
_MOST: Final = 2**53
"""The largest figure that is believed; JSON and every store keep it exactly, and no engine gets there."""

_MALFORMED: Final = (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError)


class OutputBuilder:
    """Builds the output of one stream from its events, for a path of `READABLE_PATHS` (else ValueError)."""

    __slots__ = ("_chat", "_parts", "_usage", "failed")

    def __init__(self, path: str) -> None:
        if path not in READABLE_PATHS:
            raise ValueError(f"answers of {path} are not read")
        self._chat = path == CHAT_PATH
        self._parts: dict[int, _Part] = {}
        self._usage: Mapping[str, Any] | None = None
        self.failed = False

    def add(self, event: bytes) -> None:
        """Take one event's data. An error event sets ``failed``. Raises UnreadableOutput for anything unexpected."""
        try:
            chunk = orjson.loads(event)
            if chunk.get("error"):
                self.failed = True
                return
            for choice in chunk["choices"]:
                part = self._parts.get(choice["index"])
                if part is None:
                    part = self._parts[choice["index"]] = _Part()
                if self._chat:
                    delta = choice["delta"]
                    text = delta.get("content")
                    if text is None or len(delta) > 1:
                        part.add_message(delta)
                else:
                    text = choice["text"]
                if text:
                    part.text.append(text)
                part.add_rest(choice, text)
            if usage := chunk.get("usage"):
                self._usage = usage
        except _MALFORMED as error:
            raise UnreadableOutput("an event of the upstream's stream has an unexpected shape") from error

    @property
    def pieces(self) -> int:
        """Pieces of text, reasoning, refusal and the arguments of calls so far, of all choices."""
        return sum(
            len(part.text) + len(part.reasoning) + len(part.refusal) + sum(len(call[1]) for call in part.tools.values())
            for part in self._parts.values()
        )

    def finish(self, *, done: bool) -> Output:
        """The output so far; ``done`` says that the stream came to its end. Raises UnreadableOutput as `add` does."""
        try:
            choices = [part.choice(index) for index, part in self._parts.items()]
            return _assemble(choices, self._usage, complete=done and not self.failed)
        except _MALFORMED as error:
            raise UnreadableOutput("the upstream's answer has an unexpected shape") from error


def read_unary(path: str, body: bytes) -> Output | None:
    """The output of a unary answer; None when the body is not one (an error object, another path, not JSON)."""
    if path not in READABLE_PATHS:
        return None
    try:
        answer = orjson.loads(body)
        chat = path == CHAT_PATH
        choices = [_whole(choice, choice["message"] if chat else None) for choice in answer["choices"]]
        if len({choice.position for choice in choices}) < len(choices):
            return None
        return _assemble(choices, answer.get("usage"), complete=True)
    except _MALFORMED:
        return None


def _whole(choice: Mapping[str, Any], message: Mapping[str, Any] | None) -> Choice:
    """A choice of a unary answer."""
    text = choice["text"] if message is None else message.get("content")
    # Nearly all are nothing but text, and this is on the way of every answer.
    plain = message is None or not any(map(message.get, _BESIDE_TEXT))
    if plain and not any(map(choice.get, _BESIDE_MESSAGE)):
        return _plain(choice["index"], text or "", choice.get("finish_reason") or None)
    part = _Part()
    if message is not None:
        part.add_message(message)
    if text:
        part.text.append(text)
    part.add_rest(choice, text)
    return part.choice(choice["index"])


def _plain(index: object, text: object, reason: object) -> Choice:
    """A choice that is nothing but text."""
    if type(index) is not int or type(text) is not str or not (reason is None or type(reason) is str):
        raise TypeError("a choice has a number, a text, and a finish reason that is a string")
    return Choice(index, text, "", "", (), reason)


class _Part:
    """What has arrived of one choice. Pieces are kept apart until the end: joining once costs least."""

    __slots__ = (
        "finish_reason",
        "ids",
        "logprobs",
        "margins",
        "reasoning",
        "refusal",
        "text",
        "tokens",
        "tools",
        "without_ids",
        "without_tokens",
    )

    def __init__(self) -> None:
        self.text: list[str] = []
        self.reasoning: list[str] = []
        self.refusal: list[str] = []
        self.tools: dict[int, tuple[list[str], list[str]]] = {}
        self.finish_reason: str | None = None
        self.ids: array[int] = array("I")
        self.tokens: list[str] = []
        self.margins: array[float] = array("d")
        self.logprobs: array[float] = array("d")
        self.without_ids = False
        self.without_tokens = False

    def add_message(self, message: Mapping[str, Any]) -> None:
        """Everything of a message or delta but its content."""
        if reasoning := message.get("reasoning") or message.get("reasoning_content"):
            self.reasoning.append(reasoning)
        if refusal := message.get("refusal"):
            self.refusal.append(refusal)
        for position, call in enumerate(message.get("tool_calls") or ()):
            name, arguments = self.tools.setdefault(call.get("index", position), ([], []))
            function = call.get("function") or {}
            if function.get("name"):
                name.append(function["name"])
            if function.get("arguments"):
                arguments.append(function["arguments"])

    def add_rest(self, choice: Mapping[str, Any], text: str | None) -> None:
        """The members of a choice that chat and text answers share. ``text`` is what came with them."""
        if reason := choice.get("finish_reason"):
            self.finish_reason = reason
        if ids := choice.get("token_ids"):
            self.ids.extend(ids)
        elif text:
            self.without_ids = True
        if logprobs := choice.get("logprobs"):
            self._add_logprobs(logprobs)
        elif text:
            self.without_tokens = True

    def _add_logprobs(self, logprobs: Mapping[str, Any]) -> None:
        for entry in logprobs.get("content") or ():
            self.tokens.append(_token(entry["token"], entry.get("bytes")))
            self.margins.append(_margin([top["logprob"] for top in entry.get("top_logprobs") or ()]))
            self.logprobs.append(_nats(entry.get("logprob")))
        if tokens := logprobs.get("tokens"):
            self.tokens.extend(tokens)
            tops = logprobs.get("top_logprobs") or [None] * len(tokens)
            self.margins.extend(_margin(list((top or {}).values())) for top in tops)
            self.logprobs.extend(map(_nats, logprobs.get("token_logprobs") or [None] * len(tokens)))

    def choice(self, index: int) -> Choice:
        """The choice that the pieces make."""
        reason: object = self.finish_reason
        number: object = index
        if not isinstance(number, int) or not isinstance(reason, str | None):
            raise TypeError("a choice has a number and a finish reason that is a string")
        tokens = None if self.without_tokens or not self.tokens else tuple(self.tokens)
        ids = None if self.without_ids or not self.ids else self.ids
        if tokens is not None and ids is None and all(token.startswith(_ID_PREFIX) for token in tokens):
            ids, tokens = array("I", (int(token.removeprefix(_ID_PREFIX)) for token in tokens)), None
        known = (tokens is not None or ids is not None) and not self.without_tokens
        return Choice(
            position=index,
            text="".join(self.text),
            reasoning="".join(self.reasoning),
            refusal="".join(self.refusal),
            tool_calls=tuple(ToolCall("".join(call[0]), "".join(call[1])) for _, call in sorted(self.tools.items())),
            finish_reason=self.finish_reason,
            token_ids=ids,
            tokens=tokens,
            margins=self.margins if known and self.margins else None,
            logprobs=self.logprobs if known and self.logprobs else None,
        )


def _assemble(choices: Sequence[Choice], usage: Mapping[str, Any] | None, *, complete: bool) -> Output:
    usage = usage or {}
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
    completion = usage.get("completion_tokens")
    return Output.of(
        choices,
        complete=complete,
        cached_tokens=_count(cached),
        completion_tokens=_count(completion),
    )


def _count(said: object) -> int | None:
    """A count of the engine's; None for what cannot be one."""
    return said if type(said) is int and 0 <= said <= _MOST else None


def _token(text: str, raw: list[int] | None) -> str:
    """A token's text; where it is half a character, all of those look alike, so its bytes tell them apart."""
    return f"{text}{bytes(raw).hex()}" if raw and "\ufffd" in text else text


def _margin(logprobs: list[float]) -> float:
    if len(logprobs) < 2:  # noqa: PLR2004 - a distance needs two
        return math.nan
    first, second = sorted(logprobs, reverse=True)[:2]
    return first - second if first - second <= _MOST else math.nan


def _nats(logprob: float | None) -> float:
    return math.nan if logprob is None or abs(logprob) > _MOST else logprob
