"""How much of the ladder a budget allows: which rungs, and how many tokens per answer. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from app.diagnose.discovery import Deployment
from app.diagnose.investigation import Investigation
from app.diagnose.material import LONG_NEIGHBOUR, Material
from app.diagnose.rungs import LEAST_LONGS, Extent, Rung, neighbour_tokens

MOST_TOKENS: Final = 48
"""Beyond so many tokens a longer answer finds little more, and more repeats do."""

LEAST_TOKENS: Final = 12
"""Of an answer; where the budget allows fewer, rungs are left out instead."""

FEWEST_TOKENS: Final = 4

CURE_SHARE: Final = 0.4
"""Of the budget, for measuring modes, where the server is a gateway."""

_PLANNED: Final = 0.85
"""Of the time, that the least rounds are planned to take: estimates are rough, and what is unclear gets more."""


@dataclass(frozen=True, slots=True)
class Course:
    """What will be done. ``missing`` names the rungs that are left out, each with the reason."""

    extent: Extent
    tokens: int
    missing: Mapping[Rung, str]


def plan(investigation: Investigation, deployment: Deployment, material: Material, seconds: float) -> Course:
    """The most that fits into so many seconds; the least there is where nothing does."""
    missing = dict(_impossible(investigation, deployment, material))
    course = None
    for extent, spared in _extents(investigation, set(missing)):
        affordable = int(seconds * _PLANNED / (extent.weight(material) * max(deployment.token_seconds, 1e-6)))
        tokens = _within_context(investigation.tokens or min(affordable, MOST_TOKENS), deployment, material, extent)
        course = Course(extent, max(tokens, FEWEST_TOKENS), missing | spared)
        if affordable >= (investigation.tokens or LEAST_TOKENS):
            break
    if course is None:
        raise AssertionError("there is always a smallest extent")
    return course


def _impossible(investigation: Investigation, deployment: Deployment, material: Material) -> Iterator[tuple[Rung, str]]:
    context, least = deployment.context, investigation.tokens or LEAST_TOKENS
    fits = "the prompts are too long" if context is None else f"the model's context of {context} tokens is too short"
    if not material.longs:
        yield Rung.CACHE, f"{fits} for a prompt that fills a cache block"
    if context is not None and context < LONG_NEIGHBOUR + neighbour_tokens(least):
        yield Rung.KV, f"{fits} for neighbours with a long KV"
    elif len(material.longs) < LEAST_LONGS:
        yield Rung.KV, f"{fits} for prompts whose KV is split"
    if not investigation.replicas:
        yield Rung.REPLICA, "only one replica was named (--replica URL adds another)"
    if investigation.temperature == 0 or investigation.seed is not None:
        yield Rung.SAMPLER, "nothing is sampled without a seed"


def _extents(investigation: Investigation, impossible: set[Rung]) -> Iterator[tuple[Extent, dict[Rung, str]]]:
    """From the whole ladder down to its foot, each with the rungs that were spared."""
    possible = tuple(rung for rung in Rung if rung not in impossible)
    ends = tuple(sorted({investigation.sizes[0], investigation.sizes[-1]}))
    reason = "the budget is too short for it; give a longer --budget"
    for sizes, dropped in (
        (investigation.sizes, ()),
        (ends, ()),
        (ends, (Rung.KV,)),
        (ends, (Rung.KV, Rung.CACHE)),
        (ends, (Rung.KV, Rung.CACHE, Rung.BATCH)),
    ):
        rungs = tuple(rung for rung in possible if rung not in dropped)
        spared = {rung: reason for rung in dropped if rung in possible}
        yield Extent(sizes, rungs, len(investigation.replicas)), spared


def _within_context(tokens: int, deployment: Deployment, material: Material, extent: Extent) -> int:
    """So many tokens, or what the model's context leaves to the longest prompt's answer and to neighbours'."""
    context = deployment.context
    if context is None or not material.exact:
        return tokens
    tokens = min(tokens, context - max(len(prompt) for prompt in (*material.probes, *material.longs)))
    while Rung.KV in extent.rungs and tokens > FEWEST_TOKENS and LONG_NEIGHBOUR + neighbour_tokens(tokens) > context:
        tokens -= 1
    return tokens
