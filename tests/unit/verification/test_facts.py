"""What the guard tells of the model, and what stands against verifying by it."""

from typing import Any

import pytest

from app.errors import DeterminismUnavailable
from app.verification.facts import ModelFacts

TOLD: dict[str, Any] = {
    "length": 4096,
    "vocabulary": 49152,
    "eos": 2,
    "stops": [0, 7],
    "defaults": {"temperature": 0.6, "top_k": 20},
    "max_tokens_default": None,
    "max_tokens_cap": 500,
    "reasoning_parser": None,
    "tool_parser": "hermes",
    "harmony": False,
    "multimodal": False,
    "logits_processors": False,
    "logprobs_mode": "raw_logprobs",
    "speculation": False,
    "block_size": 128,
    "prefix_caching": True,
    "of another version": {"whatever": 1},
}


def test_the_guards_object_becomes_a_model() -> None:
    """Every fact arrives, null where there is none, and names of another version are ignored."""
    model = ModelFacts.from_mapping(TOLD).model()
    assert (model.length, model.vocabulary, model.eos, model.stops) == (4096, 49152, 2, frozenset({0, 7}))
    assert model.defaults == {"temperature": 0.6, "top_k": 20}
    assert (model.max_tokens_default, model.max_tokens_cap) == (None, 500)
    assert (model.reasoning_parser, model.tool_parser, model.harmony) == (None, "hermes", False)
    assert (model.block_size, model.prefix_caching) == (128, True)


@pytest.mark.parametrize(
    "name",
    [
        "length",
        "vocabulary",
        "stops",
        "defaults",
        "harmony",
        "multimodal",
        "logits_processors",
        "logprobs_mode",
        "speculation",
        "block_size",
        "prefix_caching",
    ],
)
def test_an_unknown_fact_makes_verification_unavailable(name: str) -> None:
    """Null and left out both mean unknown, and the error names the fact."""
    for told in ({**TOLD, name: None}, {key: value for key, value in TOLD.items() if key != name}):
        with pytest.raises(DeterminismUnavailable, match=f"not known: {name}\\."):
            ModelFacts.from_mapping(told).model()


@pytest.mark.parametrize("name", ["eos", "max_tokens_default", "max_tokens_cap", "reasoning_parser", "tool_parser"])
def test_where_none_is_a_fact_silence_still_is_not(name: str) -> None:
    """Null says that there is none; a guard that does not speak of it says nothing."""
    assert getattr(ModelFacts.from_mapping({**TOLD, name: None}).model(), name) is None
    silent = {key: value for key, value in TOLD.items() if key != name}
    with pytest.raises(DeterminismUnavailable, match=f"not known: {name}\\."):
        ModelFacts.from_mapping(silent).model()


def test_nothing_told_is_everything_unknown() -> None:
    """Neither an empty object nor no facts at all pass for a model."""
    for facts in (ModelFacts.from_mapping({}), ModelFacts()):
        with pytest.raises(DeterminismUnavailable, match="block_size, defaults, eos, harmony"):
            facts.model()


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"logits_processors": True}, "processors"),
        ({"logprobs_mode": "raw_logits"}, "raw_logits"),
        ({"speculation": True}, "speculates"),
        ({"multimodal": True}, "multimodal"),
    ],
)
def test_what_stands_against_verifying_is_said(changed: dict[str, Any], words: str) -> None:
    """An engine whose rows do not tell what it would choose, or whose passes have other shapes."""
    with pytest.raises(DeterminismUnavailable, match=words) as caught:
        ModelFacts.from_mapping({**TOLD, **changed}).model()
    assert caught.value.param == "determinism"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("length", "4096"),
        ("length", True),
        ("length", 1.5),
        ("eos", [2]),
        ("harmony", 0),
        ("logprobs_mode", 1),
        ("stops", 2),
        ("stops", ["2"]),
        ("stops", [True]),
        ("defaults", []),
        ("defaults", {"temperature": "0.6"}),
        ("defaults", {"temperature": True}),
    ],
)
def test_a_fact_of_another_type_is_named(name: str, value: object) -> None:
    """What is no such fact is not read as one."""
    with pytest.raises(ValueError, match=f"'{name}'"):
        ModelFacts.from_mapping({**TOLD, name: value})
