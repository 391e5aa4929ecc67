"""Every member, and every default of a model, that a verified answer cannot honour."""

from dataclasses import replace
from typing import Any

import pytest

from app.errors import InvalidRequest
from app.verification.facts import Model
from app.verification.refusals import NOT_VERIFIABLE, refuse

MODEL = Model(
    length=4096,
    vocabulary=1000,
    eos=2,
    stops=frozenset(),
    defaults={"temperature": 0.0},
    max_tokens_default=None,
    max_tokens_cap=None,
    reasoning_parser=None,
    tool_parser=None,
    harmony=False,
    block_size=128,
    prefix_caching=True,
)
REFUSED: list[tuple[str, Any]] = [
    ("n", 2),
    ("n", 0),
    ("n", True),
    ("n", "1"),
    ("use_beam_search", True),
    ("use_beam_search", 0),
    ("logit_bias", {"5": 1}),
    ("allowed_token_ids", [5]),
    ("allowed_token_ids", []),
    ("bad_words", ["x"]),
    ("structured_outputs", {"regex": "a+"}),
    ("response_format", {"type": "json_object"}),
    ("response_format", {"type": "json_schema", "json_schema": {}}),
    ("response_format", "text"),
    ("thinking_token_budget", 0),
    ("thinking_token_budget", 100),
    ("repetition_detection", {"max_pattern_size": 5}),
    ("watermarking", True),
    ("logprob_token_ids", [5]),
    ("prompt_logprobs", 0),
    ("echo", True),
    ("truncate_prompt_tokens", 5),
    ("vllm_xargs", {"a": 1}),
    ("kv_transfer_params", {"prompt_token_ids": [1]}),
    ("ec_transfer_params", {"a": 1}),
    ("return_tokens_as_token_ids", True),
    ("repetition_penalty", 1.1),
    ("presence_penalty", 0.1),
    ("frequency_penalty", -0.1),
    ("temperature", 0.7),
    ("temperature", 0.011),
]
OF_CHATS: list[tuple[str, Any]] = [
    ("tools", [{"type": "function", "function": {"name": "f"}}]),
    ("tools", []),
    ("tool_choice", "auto"),
    ("tool_choice", {"type": "function", "function": {"name": "f"}}),
    ("mm_processor_kwargs", {"a": 1}),
    ("media_io_kwargs", {"a": {}}),
    ("return_prompt_text", True),
]
OF_TEXTS: list[tuple[str, Any]] = [("suffix", "x"), ("prompt_embeds", "AAAA")]
TAKEN: list[dict[str, Any]] = [
    {},
    {"temperature": 0},
    {"temperature": 1e-5},
    {"temperature": 0.01},
    {"temperature": None},
    {"n": 1, "logit_bias": {}, "bad_words": [], "response_format": {"type": "text"}, "thinking_token_budget": -1},
    {"repetition_penalty": 1, "presence_penalty": 0, "frequency_penalty": 0.0},
    {"top_p": 0.5, "top_k": -1, "min_p": 1, "seed": -5, "length_penalty": 2, "stream_interval": 3, "user": "u"},
    {"top_p": 7, "top_k": "x", "min_p": [], "seed": 2**64, "length_penalty": "y", "stream_interval": 0, "user": 5},
    {"priority": 3, "cache_salt": "s", "request_id": "r", "session_id": "s", "parallel_tool_calls": False},
    {"tool_choice": "none", "include_reasoning": True, "echo": False, "guided_json": {"ignored": "by vLLM too"}},
    dict.fromkeys([name for name, _ in REFUSED]),
]


@pytest.mark.parametrize(
    ("chat", "name", "value"),
    [(chat, *one) for chat in (True, False) for one in REFUSED]
    + [(True, *one) for one in OF_CHATS]
    + [(False, *one) for one in OF_TEXTS],
)
def test_what_cannot_be_honoured_is_a_400_that_names_it(chat: bool, name: str, value: object) -> None:
    """Nothing is left out silently."""
    with pytest.raises(InvalidRequest, match=f"'{name}' must be") as caught:
        refuse({name: value}, MODEL, chat=chat, pinned=True)
    assert (caught.value.param, caught.value.error_code) == (name, NOT_VERIFIABLE)
    assert caught.value.status == 400


@pytest.mark.parametrize("chat", [True, False])
@pytest.mark.parametrize("members", TAKEN, ids=str)
def test_what_means_nothing_to_a_greedy_answer_is_taken(members: dict[str, Any], chat: bool) -> None:
    """Neutral values, null, what vLLM ignores, and members of a sampler that greedy answers never reach."""
    refuse(members, MODEL, chat=chat, pinned=False)
    with pytest.raises(InvalidRequest, match="'n'"):
        refuse({**members, "n": 2}, MODEL, chat=chat, pinned=False)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", "0"),
        ("temperature", True),
        ("temperature", -0.5),
        ("temperature", 2.5),
        ("repetition_penalty", "1"),
        ("presence_penalty", [0]),
        ("add_generation_prompt", 1),
    ],
)
def test_a_wrong_type_or_range_is_named(name: str, value: object) -> None:
    """Of what decides something here: vLLM would read "0" as 0. Everything else is its own to check."""
    with pytest.raises(InvalidRequest, match=f"'{name}' must be") as caught:
        refuse({name: value}, MODEL, chat=True, pinned=False)
    assert (caught.value.param, caught.value.error_code) == (name, "invalid_request")


@pytest.mark.parametrize(
    ("defaults", "words"),
    [
        ({"temperature": 0.6}, "0.6 by the model's generation config.*send 0"),
        ({}, "1.0 by vLLM's default.*send 0"),
    ],
)
def test_a_temperature_left_out_is_the_models(defaults: dict[str, float], words: str) -> None:
    """It may sample, and then the caller is told where that comes from, unless his mode makes it 0."""
    model = replace(MODEL, defaults=defaults)
    with pytest.raises(InvalidRequest, match=words) as caught:
        refuse({}, model, chat=True, pinned=False)
    assert (caught.value.param, caught.value.error_code) == ("temperature", NOT_VERIFIABLE)
    refuse({}, model, chat=True, pinned=True)
    refuse({"temperature": 0}, model, chat=True, pinned=False)


def test_a_pin_is_for_what_was_left_out() -> None:
    """A temperature that the caller names is never replaced."""
    with pytest.raises(InvalidRequest, match="'temperature' must be 0"):
        refuse({"temperature": 0.7}, MODEL, chat=True, pinned=True)


@pytest.mark.parametrize(
    ("name", "default", "neutral"),
    [("repetition_penalty", 1.1, 1.0), ("presence_penalty", 0.5, 0.0), ("frequency_penalty", 0.5, 0.0)],
)
def test_a_penalty_of_the_model_is_refused_and_can_be_sent_away(name: str, default: float, neutral: float) -> None:
    """The error says where it comes from and what to send; sending it is enough."""
    model = replace(MODEL, defaults={"temperature": 0, name: default})
    with pytest.raises(InvalidRequest, match=f"{default} by the model's generation config.*send {neutral}") as caught:
        refuse({}, model, chat=False, pinned=False)
    assert caught.value.param == name
    refuse({name: neutral}, model, chat=False, pinned=False)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"reasoning_parser": "deepseek_r1"}, "reasoning parser"),
        ({"tool_parser": "hermes"}, "tool parser"),
        ({"harmony": True}, "Harmony"),
    ],
)
def test_chats_that_a_parser_rewrites_are_refused(changed: dict[str, Any], words: str) -> None:
    """Plain completions of the same verifier stay possible."""
    model = replace(MODEL, **changed)
    with pytest.raises(InvalidRequest, match=words):
        refuse({}, model, chat=True, pinned=False)
    refuse({}, model, chat=False, pinned=False)
