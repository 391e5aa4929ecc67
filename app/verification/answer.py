"""Verified answers in the shapes of vLLM 0.32: whole, or as the chunks of a stream, a window of tokens at a time.

The members, their order and where nulls stand are vLLM's (``entrypoints/openai/chat_completion/serving.py`` and
``completion/serving.py``), so that a client cannot tell a verified answer from any other by its form.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson

from app.determinism.output import CHAT_PATH
from app.verification.ending import End

_CLAMP: Final = -9999.0
"""What vLLM writes for a logprob of minus infinity, which JSON has not."""


@dataclass(frozen=True, slots=True)
class Token:
    """A decided token with its text.

    ``top`` are the token itself and the likeliest of its row, best first, as (text, logprob). The token is first also
    where a likelier one could not be chosen.
    """

    id: int
    text: str = ""
    logprob: float = 0.0
    top: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Form:
    """How the caller wants an answer.

    ``logprobs`` is how many alternatives each token's logprobs name, None for no logprobs. ``prompt`` are the prompt's
    token ids, ``fingerprint`` is what ``system_fingerprint`` says, ``created`` is in seconds since 1970.
    """

    path: str
    answer_id: str
    created: int
    model: str
    role: str
    fingerprint: str | None
    prompt: tuple[int, ...]
    logprobs: int | None = None
    token_ids: bool = False
    usage: bool = False
    continuous_usage: bool = False

    @property
    def chat(self) -> bool:
        """Whether it is a chat's."""
        return self.path == CHAT_PATH


class Chunks:
    """Makes the events of one stream; ``offset`` and the count of tokens go on from piece to piece."""

    def __init__(self, form: Form) -> None:
        self._form = form
        self._count = 0
        self._offset = 0
        self._begun = False

    def first(self) -> bytes:
        """The event that comes before any text; empty where there is none."""
        if not self._form.chat:
            return b""
        choice = {
            "index": 0,
            "delta": {"role": self._form.role, "content": ""},
            "logprobs": None,
            "finish_reason": None,
        }
        return self._event(choice, {"prompt_token_ids": self._prompt(), "prompt_text": None})

    def piece(self, text: str, tokens: Sequence[Token], end: End | None = None) -> bytes:
        """Some text and the tokens that it came with; with the reasons of its end where it is the last.

        Empty where it would say nothing: tokens whose text is not final yet, and nobody asked for more than text.
        """
        self._count += len(tokens)
        if not (text or end is not None or self._form.token_ids or self._form.logprobs is not None):
            return b""
        ids = [token.id for token in tokens] if self._form.token_ids else None
        choice: dict[str, Any] = {"index": 0}
        if self._form.chat:
            choice |= {"delta": {"content": text}, "logprobs": _chat_logprobs(self._form, tokens)}
            choice["finish_reason"] = end.finish_reason if end is not None else None
            if end is not None:
                choice["stop_reason"] = end.stop_reason
        else:
            choice |= {"text": text, "logprobs": self._text_logprobs(tokens)}
            choice["finish_reason"] = end.finish_reason if end is not None else None
            choice["stop_reason"] = end.stop_reason if end is not None else None
            choice["prompt_token_ids"] = self._prompt() if not self._begun else None
        choice["token_ids"] = ids
        self._begun = True
        more = {"system_fingerprint": self._form.fingerprint} if end is not None and not self._form.usage else {}
        return self._event(choice, more)

    def last(self) -> bytes:
        """The event with the usage, empty where nobody asked for it."""
        if not self._form.usage:
            return b""
        body = self._head() | {"choices": [], "usage": _usage(self._form, self._count)}
        if self._form.fingerprint is not None:
            body["system_fingerprint"] = self._form.fingerprint
        return b"data: " + orjson.dumps(body) + b"\n\n"

    def _event(self, choice: dict[str, Any], more: dict[str, Any]) -> bytes:
        body = self._head() | {"choices": [choice]}
        if self._form.continuous_usage:
            details = ("completion_tokens_details",) if self._form.chat else ()
            body["usage"] = _usage(self._form, self._count, *details)
        body |= more
        return b"data: " + orjson.dumps(body) + b"\n\n"

    def _head(self) -> dict[str, Any]:
        kind = "chat.completion.chunk" if self._form.chat else "text_completion"
        return {"id": self._form.answer_id, "object": kind, "created": self._form.created, "model": self._form.model}

    def _prompt(self) -> list[int] | None:
        return list(self._form.prompt) if self._form.token_ids else None

    def _text_logprobs(self, tokens: Sequence[Token]) -> dict[str, Any] | None:
        found = _text_logprobs(self._form, tokens, self._offset)
        self._offset += sum(len(token.text) for token in tokens)
        return found


def whole(form: Form, text: str, tokens: Sequence[Token], end: End) -> bytes:
    """The body of a unary answer."""
    choice: dict[str, Any] = {"index": 0}
    if form.chat:
        message = {"role": form.role, "content": text, "refusal": None, "annotations": None, "audio": None}
        choice |= {"message": message | {"function_call": None, "reasoning": None}}
        choice |= {"logprobs": _chat_logprobs(form, tokens)}
    else:
        choice |= {"text": text, "logprobs": _text_logprobs(form, tokens, 0)}
    choice |= {"finish_reason": end.finish_reason, "stop_reason": end.stop_reason}
    choice["token_ids"] = [token.id for token in tokens] if form.token_ids else None
    prompt = list(form.prompt) if form.token_ids else None
    if not form.chat:
        choice |= {"prompt_logprobs": None, "prompt_token_ids": prompt}
    choice["routed_experts"] = None
    body: dict[str, Any] = {
        "id": form.answer_id,
        "object": "chat.completion" if form.chat else "text_completion",
        "created": form.created,
        "model": form.model,
        "choices": [choice],
        "service_tier": None,
        "system_fingerprint": form.fingerprint,
        "usage": _usage(form, len(tokens), "prompt_tokens_details", "completion_tokens_details"),
    }
    if form.chat:
        body |= {"prompt_logprobs": None, "prompt_token_ids": prompt, "prompt_text": None}
    return orjson.dumps(body | {"kv_transfer_params": None, "ec_transfer_params": None, "metrics": None})


def _usage(form: Form, completion: int, *unknown: str) -> dict[str, int | None]:
    """The usage; ``unknown`` are the details that stand there as null."""
    prompt = len(form.prompt)
    counts = {"prompt_tokens": prompt, "total_tokens": prompt + completion, "completion_tokens": completion}
    return counts | dict.fromkeys(unknown)


def _chat_logprobs(form: Form, tokens: Sequence[Token]) -> dict[str, Any] | None:
    if form.logprobs is None:
        return None
    content = []
    for token in tokens:
        top = [_chat_logprob(text, logprob) for text, logprob in token.top[: form.logprobs]]
        content.append(_chat_logprob(token.text, token.logprob) | {"top_logprobs": top})
    return {"content": content}


def _chat_logprob(text: str, logprob: float) -> dict[str, Any]:
    return {"token": text, "logprob": max(logprob, _CLAMP), "bytes": list(text.encode("utf-8", "replace"))}


def _text_logprobs(form: Form, tokens: Sequence[Token], offset: int) -> dict[str, Any] | None:
    if form.logprobs is None:
        return None
    offsets = []
    for token in tokens:
        offsets.append(offset)
        offset += len(token.text)
    return {
        "text_offset": offsets,
        "token_logprobs": [max(token.logprob, _CLAMP) for token in tokens],
        "tokens": [token.text for token in tokens],
        "top_logprobs": [_top(token) for token in tokens],
    }


def _top(token: Token) -> dict[str, float]:
    """The token and its alternatives by their text; of equal texts the last stays, as in vLLM's dict."""
    entries = ((token.text, token.logprob), *token.top)
    return {text: max(logprob, _CLAMP) for text, logprob in entries}
