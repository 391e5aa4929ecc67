"""What the request mitigations change in the body."""

from typing import Any

import orjson
import pytest

from app.determinism.mode import MODE_MITIGATIONS, Mitigation, Mode
from app.determinism.plan import Plan
from app.determinism.request import parse
from app.determinism.sampling import Pinned, Sampling, pin, takes_likeliest


def pinned(plan: Plan, **members: Any) -> Pinned:
    request = parse("/v1/completions", orjson.dumps({"model": "m", "prompt": "p", **members}))
    return pin(request, plan, salt="salt", tiny=1e-5)


def plan(*mitigations: Mitigation, model: str = "m") -> Plan:
    return Plan(Mode.CUSTOM, model, frozenset(mitigations))


def test_standard_forwards_the_same_object() -> None:
    """Nothing to change means the caller's own bytes."""
    request = parse("/v1/completions", b'{"model":"m","prompt":"p"}')
    assert pin(request, Plan(Mode.STANDARD, "m"), salt="s", tiny=1e-5).body is request.body


def test_tiny_temperature_replaces_only_zero() -> None:
    """0, 0.0 and -0.0 are replaced; any other temperature and a missing one stay."""
    for given, sent, effective in ((0, 1e-5, 0.01), (0.0, 1e-5, 0.01), (0.8, 0.8, 0.8), (0.001, 0.001, 0.01)):
        result = pinned(plan(Mitigation.TINY_TEMPERATURE), temperature=given)
        assert sent == orjson.loads(result.body)["temperature"]
        assert (given, effective) == (result.sampling.requested_temperature, result.sampling.effective_temperature)
    missing = pinned(plan(Mitigation.TINY_TEMPERATURE))
    assert "temperature" not in orjson.loads(missing.body)
    assert missing.sampling.effective_temperature is None


def test_pinned_seed_keeps_the_callers_else_derives_one() -> None:
    """A seed of the caller's stays to the last digit; without one the same request always gets the same."""
    kept = pinned(plan(Mitigation.PINNED_SEED), seed=2**63 - 1)
    first, again = pinned(plan(Mitigation.PINNED_SEED)), pinned(plan(Mitigation.PINNED_SEED), stream=True)
    other = pinned(plan(Mitigation.PINNED_SEED), prompt="q")

    assert 2**63 - 1 == orjson.loads(kept.body)["seed"] == kept.sampling.seed
    assert first.sampling.seed == again.sampling.seed == orjson.loads(first.body)["seed"]
    assert first.sampling.seed != other.sampling.seed
    assert first.sampling.seed is not None
    assert 0 <= first.sampling.seed < 2**53


@pytest.mark.parametrize("unset", [None, -1])
def test_an_unset_seed_is_replaced(unset: int | None) -> None:
    """VLLM reads null and -1 as no seed."""
    assert pinned(plan(Mitigation.PINNED_SEED), seed=unset).sampling.seed not in {None, -1}


def test_cache_bypass_sets_a_fresh_salt() -> None:
    """The caller's salt gives way: a known one could hit the cache."""
    assert orjson.loads(pinned(plan(Mitigation.CACHE_BYPASS), cache_salt="known").body)["cache_salt"] == "salt"


def test_what_is_the_gateways_does_not_reach_the_engine() -> None:
    """`determinism`, `priority` and the model's suffix go; `priority` stays for engines that schedule by it."""
    request = parse("/v1/completions", b'{"model":"m@seeded","determinism":"seeded","priority":3,"x":1}')

    plain = pin(request, plan(), salt="s", tiny=1e-5)
    kept = pin(request, plan(), salt="s", tiny=1e-5, keep_priority=True)

    assert plain.body == b'{"model":"m","x":1}'
    assert kept.body == b'{"model":"m","priority":3,"x":1}'


def test_hardened_makes_all_its_edits() -> None:
    """Tiny temperature, seed and salt together."""
    body = orjson.loads(pinned(Plan(Mode.HARDENED, "m", MODE_MITIGATIONS[Mode.HARDENED]), temperature=0).body)
    assert {"temperature", "seed", "cache_salt"} <= body.keys()


@pytest.mark.parametrize("temperature", [None, 0, 1e-5, 0.01])
def test_a_verified_answer_has_no_sampler(temperature: float | None) -> None:
    """Greedy whatever low temperature was named, so it repeats without a seed."""
    verified = Plan(Mode.VERIFIED, "m", MODE_MITIGATIONS[Mode.VERIFIED], window=128)
    sampling = pinned(verified, temperature=temperature).sampling
    assert (sampling.requested_temperature, sampling.effective_temperature) == (temperature, 0)
    assert sampling.repeatable
    assert pinned(verified, temperature=0.7).sampling.effective_temperature == 0.7


def test_repeatable() -> None:
    """Greedy or seeded sampling repeats; anything else does not."""
    assert pinned(plan(), temperature=0).sampling.repeatable
    assert pinned(plan(), temperature=0.7, seed=1).sampling.repeatable
    assert not pinned(plan(), temperature=0.7).sampling.repeatable
    assert not pinned(plan()).sampling.repeatable


@pytest.mark.parametrize(
    ("temperature", "likeliest"),
    [(None, False), (0.0, True), (0.01, True), (0.0101, False), (0.8, False)],
)
def test_the_likeliest_token_is_taken_at_no_temperature_or_the_lowest(
    temperature: float | None, likeliest: bool
) -> None:
    """A seed makes no difference: a seeded draw repeats, and it is a draw. The engine's own default may be anything."""
    assert takes_likeliest({}, Sampling(temperature, temperature, 1)) is likeliest


@pytest.mark.parametrize(
    "members",
    [
        {"presence_penalty": 0.5},
        {"frequency_penalty": -0.5},
        {"repetition_penalty": 1.1},
        {"logit_bias": {"7": 5}},
        {"bad_words": ["no"]},
        {"min_tokens": 4},
        {"allowed_token_ids": [1]},
        {"response_format": {"type": "json_object"}},
        {"response_format": "json"},
        {"structured_outputs": {"choice": ["a", "b"]}},
        {"guided_regex": "a+"},
        {"tools": [{"type": "function"}]},
        {"tools": [{"type": "function"}], "tool_choice": "required"},
        {"thinking_token_budget": 5},
        {"vllm_xargs": {"x": 1}},
        {"temperature": 0, "top_p": 1, "logit_bias": {"7": 5}},
    ],
)
def test_what_steers_the_choice_takes_not_the_likeliest(members: dict[str, Any]) -> None:
    """Penalties, biases and grammars act after the logprobs that are reported."""
    assert not takes_likeliest(members, Sampling(0.0, 0.0, None))


def test_members_that_change_nothing_leave_the_likeliest() -> None:
    """Null, empty, and the values that mean none."""
    neutral = {
        "model": "m", "stop": ["x"], "max_tokens": 5, "seed": 1, "presence_penalty": 0, "frequency_penalty": None,
        "repetition_penalty": 1.0, "logit_bias": {}, "bad_words": [], "min_tokens": 0, "allowed_token_ids": None,
        "response_format": {"type": "text"}, "tools": [{"type": "function"}], "tool_choice": "none",
        "structured_outputs": None, "use_beam_search": False,
    }  # fmt: skip
    assert takes_likeliest(neutral, Sampling(0.0, 0.0, None))
