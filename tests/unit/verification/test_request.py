"""What a request wants of a verified answer. What is refused as unverifiable is test_refusals.py."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import orjson
import pytest

from app.determinism.request import InferenceRequest, parse
from app.errors import InvalidRequest, NotFound
from app.verification.ending import Ending
from app.verification.facts import Model
from app.verification.refusals import NOT_VERIFIABLE
from app.verification.request import Wanted, read_wanted

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
MODEL = Model(
    length=100,
    vocabulary=1000,
    eos=2,
    stops=frozenset({2, 3}),
    defaults={},
    max_tokens_default=None,
    max_tokens_cap=None,
    reasoning_parser=None,
    tool_parser=None,
    harmony=False,
    block_size=128,
    prefix_caching=True,
)


def read(path: str, model: Model = MODEL, **members: Any) -> Wanted:
    """What is read of a body with a prompt and temperature 0, and these members."""
    needed: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}]} if path == CHAT else {"prompt": "Hi"}
    body = orjson.dumps({"temperature": 0} | needed | members)
    return read_wanted(parse(path, body), model, window=64, most_logprobs=20)


def test_the_defaults_are_vllms() -> None:
    """Of a request that says nothing but its prompt."""
    assert read(CHAT) == Wanted(
        path=CHAT,
        window=64,
        max_tokens=None,
        limit="max_tokens",
        min_tokens=0,
        ignore_eos=False,
        stop=(),
        stop_token_ids=(),
        skip_special_tokens=True,
        spaces_between_special_tokens=True,
        include_stop_str_in_output=False,
        logprobs=None,
        stream=False,
        include_usage=False,
        continuous_usage_stats=False,
        return_token_ids=False,
    )
    assert read(TEXT) == replace(read(CHAT), path=TEXT, max_tokens=16)


def test_every_member_arrives() -> None:
    """As the caller wrote it."""
    wanted = read(
        TEXT,
        max_tokens=40,
        min_tokens=5,
        ignore_eos=True,
        stop=["END", "\n"],
        stop_token_ids=[7, 0, 999],
        skip_special_tokens=False,
        spaces_between_special_tokens=False,
        include_stop_str_in_output=True,
        logprobs=3,
        stream=True,
        stream_options={"include_usage": True, "continuous_usage_stats": True},
        return_token_ids=True,
    )
    assert wanted == Wanted(
        path=TEXT,
        window=64,
        max_tokens=40,
        limit="max_tokens",
        min_tokens=5,
        ignore_eos=True,
        stop=("END", "\n"),
        stop_token_ids=(7, 0, 999),
        skip_special_tokens=False,
        spaces_between_special_tokens=False,
        include_stop_str_in_output=True,
        logprobs=3,
        stream=True,
        include_usage=True,
        continuous_usage_stats=True,
        return_token_ids=True,
    )


@pytest.mark.parametrize(
    ("path", "members", "default", "cap", "expected"),
    [
        (CHAT, {}, None, None, None),
        (CHAT, {}, 50, None, 50),
        (CHAT, {}, 500, None, 500),
        (CHAT, {}, 50, 30, 30),
        (CHAT, {}, None, 30, 30),
        (CHAT, {"max_tokens": 40}, 50, None, 40),
        (CHAT, {"max_tokens": 40}, 50, 30, 30),
        (CHAT, {"max_completion_tokens": 20, "max_tokens": 40}, None, None, 20),
        (CHAT, {"max_completion_tokens": 20, "max_tokens": 400}, None, None, 20),
        (CHAT, {"max_completion_tokens": None, "max_tokens": 40}, None, None, 40),
        (CHAT, {"max_tokens": 100}, None, None, 100),
        (TEXT, {}, 50, None, 16),
        (TEXT, {"max_tokens": None}, 50, None, 16),
        (TEXT, {}, 50, 8, 8),
        (TEXT, {"max_tokens": 40}, None, None, 40),
        (TEXT, {"max_completion_tokens": 20}, None, None, 16),
    ],
)
def test_the_limit_is_the_callers_or_the_models(
    path: str, members: dict[str, Any], default: int | None, cap: int | None, expected: int | None
) -> None:
    """A default where none is named, which texts never take from the model, and a cap over both."""
    model = replace(MODEL, max_tokens_default=default, max_tokens_cap=cap)
    assert expected == read(path, model, **members).max_tokens


@pytest.mark.parametrize(
    ("path", "members", "expected"),
    [
        (CHAT, {}, None),
        (CHAT, {"logprobs": False, "top_logprobs": 0}, None),
        (CHAT, {"logprobs": True}, 0),
        (CHAT, {"logprobs": True, "top_logprobs": None}, 0),
        (CHAT, {"logprobs": True, "top_logprobs": 20}, 20),
        (TEXT, {}, None),
        (TEXT, {"logprobs": 0}, 0),
        (TEXT, {"logprobs": 20}, 20),
    ],
)
def test_logprobs_are_asked_for_in_two_ways(path: str, members: dict[str, Any], expected: int | None) -> None:
    """A chat has a switch and a number, a text has a number."""
    assert expected == read(path, **members).logprobs


@pytest.mark.parametrize(
    ("options", "usage", "continuous"),
    [
        (None, False, False),
        ({}, False, False),
        ({"include_usage": True}, True, False),
        ({"continuous_usage_stats": True}, False, False),
        ({"include_usage": None, "continuous_usage_stats": True}, False, False),
    ],
)
def test_usage_in_every_chunk_needs_usage(options: object, usage: bool, continuous: bool) -> None:
    """As vLLM's ``should_include_usage``."""
    wanted = read(CHAT, stream=True, stream_options=options)
    assert (wanted.include_usage, wanted.continuous_usage_stats) == (usage, continuous)


@pytest.mark.parametrize("prompt", [["a", "b"], [[1, 2], [3]]])
def test_several_prompts_are_refused(prompt: object) -> None:
    """There is one answer."""
    with pytest.raises(InvalidRequest, match="'prompt' must be a single one") as caught:
        read(TEXT, prompt=prompt)
    assert (caught.value.param, caught.value.error_code) == ("prompt", NOT_VERIFIABLE)


class Unwalked(list[int]):
    """Ids that nobody may walk over."""

    def __iter__(self) -> Iterator[int]:
        """Not before their number is known."""
        raise AssertionError


@pytest.mark.parametrize("prompt", ["Hi", [5], ["Hi"], "", [], None, 5, {}, [1000], [True, None], Unwalked([1, 2])])
def test_what_one_prompt_is_the_engine_says(prompt: object) -> None:
    """When it renders it: nothing here looks at ids of which there may be millions."""
    request = InferenceRequest(TEXT, b"", {"temperature": 0, "prompt": prompt, "logprobs": 1})
    assert read_wanted(request, MODEL, window=64, most_logprobs=20).logprobs == 1


@pytest.mark.parametrize(
    ("path", "members", "param"),
    [
        (CHAT, {"add_generation_prompt": 1}, "add_generation_prompt"),
        (CHAT, {"max_completion_tokens": 0}, "max_completion_tokens"),
        (CHAT, {"max_completion_tokens": 101}, "max_completion_tokens"),
        (CHAT, {"max_completion_tokens": "5"}, "max_completion_tokens"),
        (CHAT, {"logprobs": 1}, "logprobs"),
        (CHAT, {"top_logprobs": 3}, "top_logprobs"),
        (CHAT, {"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        (CHAT, {"logprobs": True, "top_logprobs": -1}, "top_logprobs"),
        (CHAT, {"n": 2}, "n"),
        (TEXT, {"logprobs": True}, "logprobs"),
        (TEXT, {"logprobs": 21}, "logprobs"),
        (TEXT, {"logprobs": -1}, "logprobs"),
        (TEXT, {"max_tokens": 0}, "max_tokens"),
        (TEXT, {"max_tokens": -1}, "max_tokens"),
        (TEXT, {"max_tokens": 101}, "max_tokens"),
        (TEXT, {"max_tokens": 5.0}, "max_tokens"),
        (TEXT, {"min_tokens": -1}, "min_tokens"),
        (TEXT, {"min_tokens": "1"}, "min_tokens"),
        (TEXT, {"min_tokens": 17}, "min_tokens"),
        (TEXT, {"ignore_eos": 1}, "ignore_eos"),
        (TEXT, {"stop": 5}, "stop"),
        (TEXT, {"stop": ""}, "stop"),
        (TEXT, {"stop": ["a", "b", "c", "d", "e"]}, "stop"),
        (TEXT, {"stop_token_ids": [1000]}, "stop_token_ids"),
        (TEXT, {"stop_token_ids": 5}, "stop_token_ids"),
        (TEXT, {"skip_special_tokens": "no"}, "skip_special_tokens"),
        (TEXT, {"spaces_between_special_tokens": 0}, "spaces_between_special_tokens"),
        (TEXT, {"include_stop_str_in_output": 1}, "include_stop_str_in_output"),
        (TEXT, {"return_token_ids": 1}, "return_token_ids"),
        (TEXT, {"stream_options": {"include_usage": True}}, "stream_options"),
        (TEXT, {"stream": True, "stream_options": True}, "stream_options"),
        (TEXT, {"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
        (TEXT, {"temperature": 0.7}, "temperature"),
    ],
)
def test_what_is_wrong_is_named(path: str, members: dict[str, Any], param: str) -> None:
    """One member each; the error's param is its name."""
    with pytest.raises(InvalidRequest) as caught:
        read(path, **members)
    assert param == caught.value.param
    assert f"'{param}'" in caught.value.message


@pytest.mark.parametrize(
    ("members", "most", "param"),
    [
        ({"min_tokens": 1, "stop_token_ids": [7, 8, 9]}, 5, "stop_token_ids"),
        ({"min_tokens": 1, "stop_token_ids": [7, 8, 2]}, 4, "stop_token_ids"),
        ({"min_tokens": 1}, 2, "min_tokens"),
        ({"min_tokens": 1, "ignore_eos": True}, 2, "min_tokens"),
        ({"min_tokens": 1, "stop_token_ids": [7, 8, 9]}, 6, None),
        ({"min_tokens": 1, "stop_token_ids": [2, 3]}, 3, None),
        ({"min_tokens": 0, "stop_token_ids": list(range(90))}, 5, None),
    ],
)
def test_some_token_must_be_left_to_choose(members: dict[str, Any], most: int, param: str | None) -> None:
    """While ``min_tokens`` mask the end tokens, the caller's and the model's two, a row must show more than those."""
    request = parse(TEXT, orjson.dumps({"prompt": "Hi", "temperature": 0, **members}))
    if param is None:
        assert read_wanted(request, MODEL, window=64, most_logprobs=most).min_tokens == members["min_tokens"]
        return
    with pytest.raises(InvalidRequest, match=f"the verifier shows {most}") as caught:
        read_wanted(request, MODEL, window=64, most_logprobs=most)
    assert caught.value.param == param


def test_another_path_has_no_verified_answers() -> None:
    """Only what gives text of a model can be verified."""
    with pytest.raises(NotFound):
        read("/v1/embeddings")


def test_the_pin_of_a_mode_counts() -> None:
    """A temperature that was left out is vLLM's 1.0, unless the mode makes it 0."""
    request = parse(TEXT, b'{"prompt":"Hi"}')
    assert read_wanted(request, MODEL, window=64, most_logprobs=20, pinned=True).max_tokens == 16
    with pytest.raises(InvalidRequest, match="send 0"):
        read_wanted(request, MODEL, window=64, most_logprobs=20)


def test_the_end_rules_follow_from_prompt_and_model() -> None:
    """The model's length bounds what the caller left open, and its end tokens are told apart from his."""
    wanted = read(CHAT, min_tokens=3, stop_token_ids=[7], ignore_eos=True)
    assert wanted.ending(40, MODEL) == Ending(
        prompt=40,
        length=100,
        max_tokens=60,
        min_tokens=3,
        eos=2,
        model_stops=frozenset({3}),
        stops=frozenset({7}),
        ignore_eos=True,
    )
    assert read(CHAT, max_tokens=50).ending(40, MODEL).most == 50
    assert read(CHAT, max_tokens=80).ending(40, MODEL).most == 60


@pytest.mark.parametrize(("path", "param"), [(CHAT, "messages"), (TEXT, "prompt")])
def test_a_prompt_that_fills_the_model_is_refused(path: str, param: str) -> None:
    """One more token must fit."""
    assert read(path, max_tokens=5).ending(99, MODEL).most == 1
    for size in (100, 101):
        with pytest.raises(InvalidRequest, match="no room") as caught:
            read(path, max_tokens=5).ending(size, MODEL)
        assert param == caught.value.param


def test_a_prompt_that_leaves_too_little_is_refused() -> None:
    """``min_tokens`` could not be honoured."""
    wanted = read(TEXT, max_tokens=50, min_tokens=20)
    assert wanted.ending(80, MODEL).most == 20
    with pytest.raises(InvalidRequest, match="19 tokens at most") as caught:
        wanted.ending(81, MODEL)
    assert caught.value.param == "min_tokens"
