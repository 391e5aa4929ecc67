"""What the guard tells of the model: vLLM's own objects say it, and what they do not have is unknown."""

from types import SimpleNamespace
from typing import Any

import pytest

from app.engine import model
from app.engine.model import Limits, model_facts
from app.errors import DeterminismUnavailable


def engine(**changes: Any) -> SimpleNamespace:
    """A vLLM's app.state; ``changes`` are of the model's configuration."""
    config = {
        "max_model_len": 4096,
        "get_vocab_size": lambda: 49152,
        "max_logprobs": 20,
        "logprobs_mode": "raw_logprobs",
        "logits_processors": None,
        "is_multimodal_model": False,
        "hf_config": SimpleNamespace(model_type="llama"),
        "generation_config": "vllm",
        "override_generation_config": {},
        "get_diff_sampling_param": dict,
        "try_get_generation_config": dict,
    }
    return SimpleNamespace(
        args=SimpleNamespace(reasoning_parser="", tool_call_parser=None),
        engine_client=SimpleNamespace(
            renderer=SimpleNamespace(get_eos_token_id=lambda: 2),
            input_processor=SimpleNamespace(generation_config_fields={"eos_token_id": [7, 2, 5, 7]}),
        ),
        vllm_config=SimpleNamespace(
            model_config=SimpleNamespace(**{**config, **changes}),
            cache_config=SimpleNamespace(block_size=128, enable_prefix_caching=True),
            speculative_config=None,
        ),
    )


def told(state: object) -> dict[str, Any]:
    facts = model_facts(state)
    assert facts is not None
    return facts


def test_a_plain_model() -> None:
    """Every fact, as JSON has it."""
    assert model_facts(engine()) == {
        "length": 4096,
        "vocabulary": 49152,
        "eos": 2,
        "stops": [5, 7],
        "defaults": {},
        "max_tokens_default": None,
        "max_tokens_cap": None,
        "reasoning_parser": None,
        "tool_parser": None,
        "harmony": False,
        "multimodal": False,
        "logits_processors": False,
        "logprobs_mode": "raw_logprobs",
        "speculation": False,
        "block_size": 128,
        "prefix_caching": True,
    }


def test_defaults_of_the_model_and_the_operator() -> None:
    """Sampling defaults by themselves, the number of tokens by itself; an operator's is a cap too."""
    given = {"temperature": 0.6, "repetition_penalty": 1.1, "max_tokens": 100}
    facts = told(engine(get_diff_sampling_param=lambda: dict(given), generation_config="auto"))
    assert facts["defaults"] == {"temperature": 0.6, "repetition_penalty": 1.1}
    assert (facts["max_tokens_default"], facts["max_tokens_cap"]) == (100, None)
    facts = told(engine(get_diff_sampling_param=lambda: dict(given), generation_config="/of/the/operator"))
    assert (facts["max_tokens_default"], facts["max_tokens_cap"]) == (100, 100)
    facts = told(engine(override_generation_config={"max_new_tokens": 50}))
    assert facts["max_tokens_cap"] == 50


@pytest.mark.parametrize(("entries", "expected"), [(None, []), (2, []), (9, [9]), ([2], []), ([9, 2], [9])])
def test_end_tokens_beside_the_first(entries: object, expected: list[int]) -> None:
    """One or a list, without the tokenizer's own."""
    state = engine()
    state.engine_client.input_processor.generation_config_fields = {"eos_token_id": entries}
    assert told(state)["stops"] == expected


@pytest.mark.parametrize("entries", ["2", ["2"], 2.0, [2, None], [True], True, {"a": 1}, [[2]]])
def test_odd_end_tokens_are_unknown(entries: object) -> None:
    """That one fact; an odd file must not hide the engine's posture."""
    state = engine()
    state.engine_client.input_processor.generation_config_fields = {"eos_token_id": entries}
    facts = told(state)
    assert (facts["stops"], facts["eos"], facts["length"]) == (None, 2, 4096)


@pytest.mark.parametrize("value", ["100", 100.0, True])
def test_where_null_means_none_an_odd_value_makes_everything_unknown(value: object) -> None:
    """As where it cannot be read."""
    assert model_facts(engine(get_diff_sampling_param=lambda: {"max_tokens": value})) is None
    assert model_facts(engine(override_generation_config={"max_new_tokens": value})) is None
    state = engine()
    state.engine_client.renderer.get_eos_token_id = lambda: value
    assert model_facts(state) is None


def test_end_tokens_are_read_from_the_model_where_vllm_does_not_keep_them() -> None:
    """The same file, read again; where that cannot be had either they are unknown."""
    state = engine(try_get_generation_config=lambda: {"eos_token_id": [2, 11]})
    del state.engine_client.input_processor
    assert told(state)["stops"] == [11]
    del state.vllm_config.model_config.try_get_generation_config
    assert told(state)["stops"] is None


def test_what_changes_sampled_rows_alone_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processors of the operator, of a plugin, and a watermark."""
    assert told(engine(logits_processors=["a.b.C"]))["logits_processors"] is True
    state = engine()
    state.vllm_config.watermark_config = object()
    assert told(state)["logits_processors"] is True
    monkeypatch.setattr(model, "entry_points", lambda *, group: [group])
    assert told(engine())["logits_processors"] is True


def test_what_kind_of_engine_it_is() -> None:
    """Parsers, Harmony, several modalities, speculation."""
    state = engine(hf_config=SimpleNamespace(model_type="gpt_oss"), is_multimodal_model=True)
    state.args = SimpleNamespace(reasoning_parser="qwen3", tool_call_parser="hermes")
    state.vllm_config.speculative_config = object()
    facts = told(state)
    names = ("harmony", "multimodal", "reasoning_parser", "tool_parser", "speculation")
    assert [facts[name] for name in names] == [True, True, "qwen3", "hermes", True]


@pytest.mark.parametrize(
    ("gone", "fact"),
    [
        ("max_model_len", "length"),
        ("get_vocab_size", "vocabulary"),
        ("get_diff_sampling_param", "defaults"),
        ("hf_config", "harmony"),
        ("is_multimodal_model", "multimodal"),
        ("logits_processors", "logits_processors"),
        ("logprobs_mode", "logprobs_mode"),
    ],
)
def test_what_another_vllm_does_not_have_is_unknown(gone: str, fact: str) -> None:
    """One fact; the others stand."""
    state = engine()
    delattr(state.vllm_config.model_config, gone)
    facts = told(state)
    assert facts[fact] is None
    assert facts["eos"] == 2


@pytest.mark.parametrize("gone", ["args", "engine_client"])
def test_where_null_would_mean_none_everything_is_unknown(gone: str) -> None:
    """No end token, and not knowing of one, must not look alike."""
    state = engine()
    delattr(state, gone)
    assert model_facts(state) is None
    assert model_facts(SimpleNamespace()) is None


def test_limits_are_the_engines() -> None:
    """Without a bound of logprobs, the vocabulary is one."""
    assert Limits.of(engine()) == Limits(length=4096, vocabulary=49152, block=128, caches=True, logprobs=20)
    assert Limits.of(engine(max_logprobs=-1)).logprobs == 49152


def test_limits_that_are_unknown_are_named() -> None:
    """A pass is not run on a guess."""
    state = engine()
    del state.vllm_config.cache_config
    with pytest.raises(DeterminismUnavailable, match="does not tell its block, caches"):
        Limits.of(state)
