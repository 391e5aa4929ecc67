"""The whole diagnosis against a scripted engine: each layer alone and in pairs. The full size is a benchmark."""

from functools import cache
from itertools import combinations

import pytest

from app.diagnose.findings import State, Suspect
from tests.support.layered import LAYERS, Diagnosed, diagnose, expected

PAIRS = tuple(combinations(LAYERS, 2))
ROUNDING = ("shape", "cache", "run")
"""Layers that move a logit by its last bits, of which a tie makes another token."""


@cache
def once(layer: str) -> Diagnosed:
    """The diagnosis of an engine with one layer, which several tests look at."""
    return diagnose([layer], 0)


@pytest.mark.parametrize("layer", LAYERS)
def test_a_layer_that_acts_alone_is_the_only_one_blamed(layer: str) -> None:
    """Each layer by itself: it is blamed, and no other."""
    assert once(layer).blamed == expected([layer])


@pytest.mark.parametrize("layers", PAIRS, ids="+".join)
def test_both_layers_of_a_pair_are_blamed(layers: tuple[str, str]) -> None:
    """Each two layers together: both are blamed, and no third."""
    assert diagnose(layers, 0).blamed == expected(layers)


def test_nobody_is_blamed_on_a_clean_engine() -> None:
    """No layer acts: every suspect was tested, and none was seen."""
    verdict = diagnose([], 0).verdict

    assert {finding.state for finding in verdict.findings} == {State.NOT_SEEN}
    assert not verdict.diverged


@pytest.mark.parametrize("layer", ROUNDING)
def test_rounding_turns_ties(layer: str) -> None:
    """Where a layer moves last bits, the forks are at ties, and the fourth layer is named."""
    ties = once(layer).verdict.of(Suspect.TIES)

    assert ties is not None
    assert ties.state is State.PRESENT
    assert ties.tokens.k == ties.tokens.n > 0


@pytest.mark.parametrize("layer", ["content", "fault"])
def test_large_differences_are_no_ties(layer: str) -> None:
    """Another expert's tokens, or a fault's, are not the fourth layer's."""
    ties = once(layer).verdict.of(Suspect.TIES)

    assert ties is not None
    assert ties.state is State.NOT_SEEN
    assert ties.tokens.n > 0
