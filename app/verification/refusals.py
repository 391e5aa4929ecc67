"""What a verified answer cannot honour: a clear 400 for each, never an answer that leaves it out.

A verified answer is greedy, and its rows are those of a prompt, which nothing that changes logits ever touches. So
sampling, penalties, biases and grammars are refused, also where they come from the model's own defaults. What vLLM
ignores, this ignores too, and members that mean nothing to a greedy answer are the engine's to check.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from app.determinism.sampling import ENGINE_LOWEST_TEMPERATURE
from app.errors import InvalidRequest
from app.verification.facts import Model
from app.verification.reading import flag, number, wrong

NOT_VERIFIABLE: Final = "not_verifiable"
"""The error's code where vLLM could answer the request, but not verified."""

_NEUTRAL: Final = {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
"""The penalties with vLLM's defaults, at which they do nothing."""

_VLLM_TEMPERATURE: Final = 1.0
_HIGHEST_TEMPERATURE: Final = 2.0
_UNLIMITED: Final = -1


def _absent(value: object) -> bool:
    return value is None


def _empty(value: object) -> bool:
    return value is None or value in ([], {})


def _off(value: object) -> bool:
    return value is None or value is False


def _plain(value: object) -> bool:
    return value is None or (isinstance(value, dict) and value.get("type") == "text")


def _unlimited(value: object) -> bool:
    return value is None or (type(value) is int and value == _UNLIMITED)


def _none(value: object) -> bool:
    return value is None or value == "none"


def _one(value: object) -> bool:
    return value is None or (type(value) is int and value == 1)


_COMMON: Final[Mapping[str, tuple[Callable[[object], bool], str]]] = {
    "n": (_one, "1"),
    "use_beam_search": (_off, "false"),
    "logit_bias": (_empty, "left out"),
    "allowed_token_ids": (_absent, "left out"),
    "bad_words": (_empty, "left out"),
    "structured_outputs": (_absent, "left out"),
    "response_format": (_plain, "of the type 'text'"),
    "thinking_token_budget": (_unlimited, "left out"),
    "repetition_detection": (_absent, "left out"),
    "watermarking": (_off, "false"),
    "logprob_token_ids": (_empty, "left out"),
    "prompt_logprobs": (_absent, "left out"),
    "echo": (_off, "false"),
    "truncate_prompt_tokens": (_absent, "left out"),
    "vllm_xargs": (_empty, "left out"),
    "kv_transfer_params": (_empty, "left out"),
    "ec_transfer_params": (_empty, "left out"),
    "return_tokens_as_token_ids": (_off, "false"),
}
_CHAT: Final[Mapping[str, tuple[Callable[[object], bool], str]]] = {
    "tools": (_absent, "left out"),
    "tool_choice": (_none, "'none'"),
    "mm_processor_kwargs": (_empty, "left out"),
    "media_io_kwargs": (_empty, "left out"),
    "return_prompt_text": (_off, "false"),
}
_TEXT: Final[Mapping[str, tuple[Callable[[object], bool], str]]] = {
    "suffix": (_absent, "left out"),
    "prompt_embeds": (_empty, "left out"),
}


def refuse(members: Mapping[str, Any], model: Model, *, chat: bool, pinned: bool) -> None:
    """Raise InvalidRequest for the first member, or default of the model, that no verified answer can honour.

    ``pinned`` says that the caller's mode makes an omitted temperature 0.
    """
    for name, (neutral, wanted) in {**_COMMON, **(_CHAT if chat else _TEXT)}.items():
        if not neutral(members.get(name)):
            raise _unverifiable(f"'{name}' must be {wanted} in a verified answer", name)
    for name, neutral_value in _NEUTRAL.items():
        _penalty(members, model, name, neutral_value)
    _temperature(members, model, pinned=pinned)
    if chat:
        flag(members, "add_generation_prompt")  # it decides whose turn the answer is
        _chat_model(model)


def _penalty(members: Mapping[str, Any], model: Model, name: str, neutral: float) -> None:
    value = number(members, name)
    if value is None and (default := model.defaults.get(name, neutral)) != neutral:
        raise _unverifiable(
            f"'{name}' is {default} by the model's generation config, and verified answers know no penalties: "
            f"send {neutral}",
            name,
        )
    if value is not None and value != neutral:
        raise _unverifiable(f"'{name}' must be {neutral} in a verified answer", name)


def _temperature(members: Mapping[str, Any], model: Model, *, pinned: bool) -> None:
    name = "temperature"
    value = number(members, name)
    if value is not None and not 0 <= value <= _HIGHEST_TEMPERATURE:
        raise wrong(name, "a number from 0 to 2")
    if value is None and not pinned:
        default = model.defaults.get(name)
        value = _VLLM_TEMPERATURE if default is None else default
        if value > ENGINE_LOWEST_TEMPERATURE:
            source = "vLLM's default" if default is None else "the model's generation config"
            raise _unverifiable(f"'{name}' is {value} by {source}, and verified answers do not sample: send 0", name)
    if value is not None and value > ENGINE_LOWEST_TEMPERATURE:
        raise _unverifiable(f"'{name}' must be 0 in a verified answer, which does not sample", name)


def _chat_model(model: Model) -> None:
    parser = "reasoning parser" if model.reasoning_parser else "tool parser" if model.tool_parser else None
    if model.harmony or parser:
        reason = f"the verifier runs a {parser}" if parser else "the model's chats are in the Harmony format"
        raise InvalidRequest(
            f"Chats cannot be verified here, since {reason}; /v1/completions can.",
            param="determinism",
            code=NOT_VERIFIABLE,
        )


def _unverifiable(text: str, name: str) -> InvalidRequest:
    return InvalidRequest(f"{text}.", param=name, code=NOT_VERIFIABLE)
