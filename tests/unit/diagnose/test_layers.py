"""The whole diagnosis against a scripted engine: each layer alone and in pairs. The full size is a benchmark."""

from itertools import combinations

import pytest

from app.diagnose.findings import State, Suspect
from tests.support.layered import LAYERS, diagnose, expected

PAIRS = tuple(combinations(LAYERS, 2))
ROUNDING = ("shape", "cache", "run")
"""Layers that move a logit by its last bits, of which a tie makes another token."""


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("layer", LAYERS)
def test_a_layer_that_acts_alone_is_the_only_one_blamed(layer: str, seed: int) -> None:
    """Each layer by itself, some seeds: it is blamed, and no other."""
    assert diagnose([layer], seed).blamed == expected([layer])


@pytest.mark.parametrize("layers", PAIRS, ids="+".join)
def test_both_layers_of_a_pair_are_blamed(layers: tuple[str, str]) -> None:
    """Each two layers together: both are blamed, and no third."""
    assert diagnose(layers, 0).blamed == expected(layers)


@pytest.mark.parametrize("seed", range(3))
def test_nobody_is_blamed_on_a_clean_engine(seed: int) -> None:
    """No layer acts: every suspect was tested, and none was seen."""
    verdict = diagnose([], seed).verdict

    assert {finding.state for finding in verdict.findings} == {State.NOT_SEEN}
    assert not verdict.diverged


@pytest.mark.parametrize("layer", ROUNDING)
def test_rounding_turns_ties(layer: str) -> None:
    """Where a layer moves last bits, the forks are at ties, and the fourth layer is named."""
    ties = diagnose([layer], 0).verdict.of(Suspect.TIES)

    assert ties is not None
    assert ties.state is State.PRESENT
    assert ties.tokens.k == ties.tokens.n > 0


@pytest.mark.parametrize("layer", ["content", "fault"])
def test_large_differences_are_no_ties(layer: str) -> None:
    """Another expert's tokens, or a fault's, are not the fourth layer's."""
    ties = diagnose([layer], 0).verdict.of(Suspect.TIES)

    assert ties is not None
    assert ties.state is State.NOT_SEEN
    assert ties.tokens.n > 0
