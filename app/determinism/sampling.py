"""The edits that request mitigations make, and what they did to the sampler.

vLLM 0.32 raises any temperature in (0, 0.01) to 0.01, which samples; only 0 is greedy
(``SamplingParams.__post_init__``). So ``tiny_temperature`` alone repeats nothing: together with ``pinned_seed`` the
sampler's stream is the same each time. Both temperatures are reported, the one asked for and the one that took effect.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from app.determinism.canonical import canonical, derived_seed
from app.determinism.mode import Mitigation
from app.determinism.plan import Plan
from app.determinism.request import InferenceRequest, edit
from app.errors import InvalidRequest

ENGINE_LOWEST_TEMPERATURE: Final = 0.01
"""vLLM's floor for a temperature above 0 (``_MAX_TEMP`` in vllm/sampling_params.py, 0.32)."""

SEED_UNSET: Final = -1
"""vLLM reads this seed as none given."""

_STEERING: Final = frozenset(
    {
        "allowed_token_ids", "bad_words", "frequency_penalty", "guided_choice", "guided_grammar", "guided_json",
        "guided_regex", "logit_bias", "logits_processors", "min_tokens", "presence_penalty", "repetition_penalty",
        "response_format", "structured_outputs", "thinking_token_budget", "tools", "use_beam_search", "vllm_xargs",
        "watermarking",
    }
)  # fmt: skip
"""Members that keep vLLM from the token that the model finds likeliest, by SamplingParams and the two protocols."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """What the sampler was asked for and got. Temperatures and seed are None where the engine's own default rules."""

    requested_temperature: float | None
    effective_temperature: float | None
    seed: int | None

    @property
    def repeatable(self) -> bool:
        """Whether the sampler itself repeats: greedy, or with a seed."""
        return self.seed is not None or self.effective_temperature == 0


@dataclass(frozen=True, slots=True)
class Pinned:
    """The request as the engine gets it."""

    body: bytes
    sampling: Sampling


def pin(
    request: InferenceRequest,
    plan: Plan,
    *,
    salt: str,
    tiny: float,
    keep_priority: bool = False,
) -> Pinned:
    """Apply the request mitigations of a plan.

    ``salt`` must be new for each request (it makes the prefix cache miss); ``tiny`` replaces a temperature of 0;
    ``keep_priority`` is for engines that schedule by priority (others refuse the member). With nothing to change the
    body is the caller's own object. Raises InvalidRequest as `edit` does, and for a wrongly typed
    temperature or seed.
    """
    members = request.members
    if plan.mitigations:
        _check(members)
    temperature = asked = _number(members.get("temperature"))
    seed = _seed(members)
    changes: dict[str, Any] = {}
    if Mitigation.TINY_TEMPERATURE in plan.mitigations and asked == 0:
        changes["temperature"] = temperature = tiny
    if Mitigation.PINNED_SEED in plan.mitigations and seed is None:
        changes["seed"] = seed = derived_seed(canonical(request, plan.model))
    if Mitigation.CACHE_BYPASS in plan.mitigations:
        changes["cache_salt"] = salt
    if plan.model != request.model:
        changes["model"] = plan.model
    ours = ("determinism",) if keep_priority else ("determinism", "priority")
    changes |= {name: None for name in ours if name in members}
    effective = _effective(temperature)
    if Mitigation.VERIFICATION in plan.mitigations and (temperature or 0) <= ENGINE_LOWEST_TEMPERATURE:
        effective = 0.0  # a verified answer has no sampler; what would need one is refused
    return Pinned(edit(request.body, changes), Sampling(asked, effective, seed))


def takes_likeliest(members: Mapping[str, Any], sampling: Sampling) -> bool:
    """Whether each token is the one that the model finds likeliest, as far as the request tells.

    Only then does the distance of the two likeliest say how close a choice was: vLLM reports logprobs as the model gave
    them, before penalties and grammars, and a seeded draw at a higher temperature may well take the third. At the
    engine's lowest temperature a draw moves a choice by less than a tenth of a nat. What the engine does on its own
    account (a penalty in the model's generation config) a request does not tell.
    """
    temperature = sampling.effective_temperature
    if temperature is None or temperature > ENGINE_LOWEST_TEMPERATURE:
        return False
    if _STEERING.isdisjoint(members):
        return True
    # Null, 0 or empty is as good as left out.
    return not any(value and name in _STEERING and _steers(name, value, members) for name, value in members.items())


def _steers(name: str, value: object, members: Mapping[str, Any]) -> bool:
    if name == "repetition_penalty":
        return value != 1
    if name == "response_format":
        return not (isinstance(value, dict) and value.get("type") == "text")
    # A tool that is strict, or that must be called, has a grammar; which parsers add one, only the engine knows.
    return name != "tools" or members.get("tool_choice") != "none"


def _check(members: Mapping[str, Any]) -> None:
    """Refuse what could mean one thing here and another in the engine, which reads "0" as 0."""
    temperature, seed = members.get("temperature"), members.get("seed")
    if temperature is not None and _number(temperature) is None:
        raise InvalidRequest("'temperature' must be a number.", param="temperature")
    if seed is not None and (not isinstance(seed, int) or isinstance(seed, bool)):
        raise InvalidRequest("'seed' must be an integer of 64 bits.", param="seed")


def _effective(temperature: float | None) -> float | None:
    if temperature is None or temperature <= 0:
        return temperature
    return max(temperature, ENGINE_LOWEST_TEMPERATURE)


def _seed(members: Mapping[str, Any]) -> int | None:
    seed = members.get("seed")
    return seed if isinstance(seed, int) and not isinstance(seed, bool) and seed != SEED_UNSET else None


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
