"""From a parsed request and the verifier's model to what a verified answer is wanted: vLLM's members and defaults.

Only what decides something here is read. The rest, prompts and lengths among it, is the engine's own to judge when it
renders the request.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

from app.determinism.output import CHAT_PATH, READABLE_PATHS
from app.determinism.request import InferenceRequest
from app.errors import InvalidRequest, NotFound
from app.verification.ending import Ending
from app.verification.facts import Model
from app.verification.reading import flag, ids, integer, strings, wrong
from app.verification.refusals import NOT_VERIFIABLE, refuse

MOST_STOP_STRINGS: Final = 4
"""vLLM's ``VLLM_MAX_STOP_STRINGS`` as it is by default (0.32)."""

_TEXT_MAX_TOKENS: Final = 16
"""What /v1/completions takes where no ``max_tokens`` is given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """One verified answer as wanted. Members are named as vLLM names them.

    ``max_tokens`` is the caller's or the default, within the operator's cap, and None where only the model's length
    bounds it; ``limit`` is the member that named it. ``logprobs`` is how many alternatives each token's logprobs name,
    None for no logprobs. ``window`` is in tokens.
    """

    path: str
    window: int
    max_tokens: int | None
    limit: str
    min_tokens: int
    ignore_eos: bool
    stop: tuple[str, ...]
    stop_token_ids: tuple[int, ...]
    skip_special_tokens: bool
    spaces_between_special_tokens: bool
    include_stop_str_in_output: bool
    logprobs: int | None
    stream: bool
    include_usage: bool
    continuous_usage_stats: bool
    return_token_ids: bool

    @property
    def chat(self) -> bool:
        """Whether it is a chat's."""
        return self.path == CHAT_PATH

    def ending(self, prompt: int, model: Model) -> Ending:
        """The end rules after a prompt of so many tokens.

        Raises InvalidRequest where the prompt leaves no room, or less than ``min_tokens``.
        """
        room = model.length - prompt
        if room < 1:
            raise InvalidRequest(
                f"The prompt has {prompt} tokens, and the model's length of {model.length} leaves no room for another.",
                param="messages" if self.chat else "prompt",
                code="context_length_exceeded",
            )
        most = room if self.max_tokens is None else min(self.max_tokens, room)
        if self.min_tokens > most:
            raise InvalidRequest(
                f"'min_tokens' is {self.min_tokens}, but the answer can have {most} tokens at most.", param="min_tokens"
            )
        return Ending(
            prompt=prompt,
            length=model.length,
            max_tokens=most,
            min_tokens=self.min_tokens,
            eos=model.eos,
            model_stops=model.stops - {model.eos},
            stops=frozenset(self.stop_token_ids),
            ignore_eos=self.ignore_eos,
        )


def read_wanted(
    request: InferenceRequest, model: Model, *, window: int, most_logprobs: int, pinned: bool = False
) -> Wanted:
    """What the request wants of a verified answer.

    ``most_logprobs`` is how many the verifier shows of a row; ``pinned`` says that the caller's mode makes an omitted
    temperature 0. Raises InvalidRequest naming the member that is wrong or cannot be honoured, NotFound for a path
    that gives no text.
    """
    if request.path not in READABLE_PATHS:
        raise NotFound(f"{request.path} has no verified answers.")
    members, chat = request.members, request.path == CHAT_PATH
    if not chat:
        _one_prompt(members.get("prompt"))
    refuse(members, model, chat=chat, pinned=pinned)
    max_tokens, limit = _max_tokens(members, model, chat=chat)
    min_tokens = integer(members, "min_tokens", 0) or 0
    if max_tokens is not None and min_tokens > max_tokens:
        raise InvalidRequest(f"'min_tokens' must be at most '{limit}', which is {max_tokens}.", param="min_tokens")
    stop_token_ids = ids(members, "stop_token_ids", model.vocabulary)
    if min_tokens:
        _choosable({*stop_token_ids, *model.stops, model.eos} - {None}, most_logprobs, asked=bool(stop_token_ids))
    stream = flag(members, "stream")
    include_usage, continuous = _stream_options(members, stream=stream)
    return Wanted(
        path=request.path,
        window=window,
        max_tokens=max_tokens,
        limit=limit,
        min_tokens=min_tokens,
        ignore_eos=flag(members, "ignore_eos"),
        stop=strings(members, "stop", MOST_STOP_STRINGS),
        stop_token_ids=stop_token_ids,
        skip_special_tokens=flag(members, "skip_special_tokens", default=True),
        spaces_between_special_tokens=flag(members, "spaces_between_special_tokens", default=True),
        include_stop_str_in_output=flag(members, "include_stop_str_in_output"),
        logprobs=_logprobs(members, most_logprobs, chat=chat),
        stream=stream,
        include_usage=include_usage,
        continuous_usage_stats=continuous,
        return_token_ids=flag(members, "return_token_ids"),
    )


def _one_prompt(prompt: object) -> None:
    """Refuse several prompts, by the first of them: an array of ids may be long, and is not walked over here."""
    if isinstance(prompt, list) and len(prompt) > 1 and isinstance(prompt[0], str | list):
        raise InvalidRequest("'prompt' must be a single one in a verified answer.", param="prompt", code=NOT_VERIFIABLE)


def _choosable(masked: Collection[int | None], most: int, *, asked: bool) -> None:
    """Refuse ``min_tokens`` that mask as many end tokens as a row shows: nothing might be left to choose from.

    ``asked``: some of them are the caller's.
    """
    if len(masked) >= most:
        raise InvalidRequest(
            f"Until 'min_tokens' are there, 'stop_token_ids' and the model's end tokens mask {len(masked)} tokens, and "
            f"the verifier shows {most}.",
            param="stop_token_ids" if asked else "min_tokens",
        )


def _max_tokens(members: Mapping[str, Any], model: Model, *, chat: bool) -> tuple[int | None, str]:
    """The limit without the prompt's part in it, and its member; see vLLM's ``get_max_tokens``."""
    asked, limit = integer(members, "max_tokens", 1), "max_tokens"
    if chat:
        newer = integer(members, "max_completion_tokens", 1)
        asked, limit = (asked, limit) if newer is None else (newer, "max_completion_tokens")
    elif asked is None:
        asked = _TEXT_MAX_TOKENS
    if asked is not None and asked > model.length and members.get(limit) is not None:
        raise InvalidRequest(f"'{limit}' must be at most the model's length, {model.length}.", param=limit)
    bounds = (model.max_tokens_default if asked is None else asked, model.max_tokens_cap)
    return min((bound for bound in bounds if bound is not None), default=None), limit


def _logprobs(members: Mapping[str, Any], most: int, *, chat: bool) -> int | None:
    """How many alternatives; None for no logprobs. All of the vocabulary (-1) is more than a row shows."""
    name = "top_logprobs" if chat else "logprobs"
    count = integer(members, name, 0)
    if chat:
        wanted = flag(members, "logprobs")
        if count and not wanted:
            raise InvalidRequest("'top_logprobs' needs 'logprobs' to be true.", param=name)
        count = (count or 0) if wanted else None
    if count is not None and count > most:
        raise InvalidRequest(f"'{name}' must be at most {most}, which is what the verifier shows.", param=name)
    return count


def _stream_options(members: Mapping[str, Any], *, stream: bool) -> tuple[bool, bool]:
    options = members.get("stream_options")
    if options is None or options == {}:
        return False, False
    if not isinstance(options, dict):
        raise wrong("stream_options", "an object")
    if not stream:
        raise InvalidRequest("'stream_options' needs 'stream' to be true.", param="stream_options")
    for name in ("include_usage", "continuous_usage_stats"):
        if not isinstance(options.get(name), bool | None):
            raise wrong(f"stream_options.{name}", "true or false")
    usage = options.get("include_usage") is True
    return usage, usage and options.get("continuous_usage_stats") is True
