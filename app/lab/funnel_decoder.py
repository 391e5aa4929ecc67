"""Decoding under some of the layers: the answers of repeated requests, and what the layers do to their logits."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from app.lab.funnel_layers import Step, Traffic, exact_logits, experts_of, logits, quiet, slices_of
from app.lab.funnel_model import Model, Numbers, Tokens
from app.lab.precision import Array, rounded

LARGEST: Final = "largest"
ARBITER: Final = "arbiter"
LOWEST_ID: Final = "lowest id"
"""How a token is chosen: the largest logit, which is L4; an arbiter that knows the exact sums and gives their winner
wherever it is within reach of the largest; the lowest token id within reach."""

REACH_STEPS: Final = 4
"""What counts as a tie for the last two: so many steps of the number format, at the largest logit."""


class Setting(NamedTuple):
    """What all runs of a demonstration share. ``prompts`` are states, ``(prompts, hidden)``."""

    model: Model
    traffic: Traffic
    prompts: Numbers
    repeats: int
    tokens: int
    dtype: str


@dataclass(frozen=True, slots=True)
class Reference:
    """Each prompt's answer ``(prompts, tokens)`` on a server that does nothing else, and the logits on the way.

    ``states (tokens, prompts, hidden)`` come before each token; ``margins (prompts, tokens)`` are the distances of the
    two largest logits.
    """

    answers: Tokens
    states: Numbers
    logits: Array
    margins: Numbers


class Effect(NamedTuple):
    """What layers did to the logits along the reference's path, over all steps of all repeats.

    ``touched_share`` is the share of steps at which a logit had other bits; ``typical`` is the median over those steps
    of the mean absolute change of a logit, 0 where there is none; ``largest`` is the largest of all.
    """

    touched_share: float
    typical: float
    largest: float


def refer(setting: Setting, rule: str) -> Reference:
    """The answers without any layer but the rule's."""
    state = setting.prompts
    answers, states, found = [], [], []
    for number in range(setting.tokens):
        seen = _seen(setting, frozenset(), state, quiet(len(state)))
        token = _chosen(setting, state, seen, rule)
        answers.append(token)
        states.append(state)
        found.append(seen)
        state = setting.model.next_state(state, token, number)
    wide = np.sort(np.stack(found).astype(np.float64), axis=-1)
    return Reference(np.stack(answers, axis=1), np.stack(states), np.stack(found), (wide[..., -1] - wide[..., -2]).T)


def decode(setting: Setting, layers: Iterable[str], rule: str) -> Tokens:
    """The answers of all repeats, prompt by prompt: ``(prompts * repeats, tokens)``."""
    on = frozenset(layers)
    state = np.repeat(setting.prompts, setting.repeats, axis=0)
    answers = []
    for number in range(setting.tokens):
        seen = _seen(setting, on, state, setting.traffic.step(number, len(state)))
        answers.append(_chosen(setting, state, seen, rule))
        state = setting.model.next_state(state, answers[-1], number)
    return np.stack(answers, axis=1)


def effect(setting: Setting, reference: Reference, layers: Iterable[str]) -> Effect:
    """The change of the logits under the same traffic, with the reference's tokens before each step."""
    on = frozenset(layers)
    means, largest = [], []
    for number, (states, alone) in enumerate(zip(reference.states, reference.logits, strict=True)):
        state = np.repeat(states, setting.repeats, axis=0)
        seen = _seen(setting, on, state, setting.traffic.step(number, len(state)))
        change = np.abs(seen.astype(np.float64) - np.repeat(alone, setting.repeats, axis=0).astype(np.float64))
        means.append(change.mean(axis=1))
        largest.append(change.max(axis=1))
    touched = np.concatenate(largest) > 0
    typical = np.median(np.concatenate(means)[touched]) if touched.any() else 0.0
    return Effect(float(np.mean(touched)), float(typical), float(np.max(largest)))


def forks(setting: Setting, reference: Reference, answers: Tokens) -> Tokens:
    """The first token at which each answer differs from its reference, counted from 0; -1 where none does."""
    other = answers != np.repeat(reference.answers, setting.repeats, axis=0)
    return np.where(other.any(axis=1), np.argmax(other, axis=1), -1)


def margins_at(setting: Setting, reference: Reference, places: Tokens) -> NDArray[np.float64]:
    """The margins of the reference at these forks, one per repeat; those of repeats without a fork are left out."""
    rows = np.flatnonzero(places >= 0)
    return reference.margins[rows // setting.repeats, places[rows]]


def reach(largest: Numbers, dtype: str) -> Numbers:
    """How far below the largest logit another one still counts as tied with it."""
    return REACH_STEPS * np.abs(np.spacing(rounded(largest, dtype))).astype(np.float64)


def _seen(setting: Setting, on: frozenset[str], state: Numbers, step: Step) -> Array:
    alone = quiet(len(state))
    own = setting.model.expert(state)
    experts = experts_of(own, step if "L1" in on else alone)
    slices = slices_of((step if "L2" in on else alone).size)
    arrival = (step if "L3" in on else alone).arrival
    return logits(setting.model, setting.model.features(state, experts), slices, arrival, setting.dtype)


def _chosen(setting: Setting, state: Numbers, seen: Array, rule: str) -> Tokens:
    wide = seen.astype(np.float64)
    top: Tokens = np.argmax(wide, axis=1)
    if rule == LARGEST:
        return top
    largest = np.take_along_axis(wide, top[:, np.newaxis], axis=1)
    tied = wide >= largest - reach(largest, setting.dtype)
    lowest: Tokens = np.argmax(tied, axis=1)
    if rule == LOWEST_ID:
        return lowest
    features = setting.model.features(state, setting.model.expert(state))
    right: Tokens = np.argmax(exact_logits(setting.model, features), axis=1)
    return np.where(np.take_along_axis(tied, right[:, np.newaxis], axis=1)[:, 0], right, top)
