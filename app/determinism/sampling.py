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
    return Pinned(edit(request.body, changes), Sampling(asked, _effective(temperature), seed))


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
