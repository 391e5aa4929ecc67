"""The sequence of mixed traffic."""

from collections import Counter
from itertools import pairwise

import pytest

from app.probe.mix_draws import Draw, Draws, mean_tokens


def drawn(percent: float, count: int, *, seed: int = 1) -> list[Draw]:
    """So many draws at one percentage."""
    draws = Draws(percent, seed=seed)
    return [draws.draw() for _ in range(count)]


@pytest.mark.parametrize("percent", [0.0, 0.5, 5.0, 10.0, 25.0, 33.3, 50.0, 99.0, 100.0])
@pytest.mark.parametrize("count", [20, 100, 333, 1000])
def test_the_percentage_is_met_closely_even_in_a_short_run(percent: float, count: int) -> None:
    """After any number of requests the isolated ones are within one block's worth of what is due."""
    due = percent / 100 * count
    assert abs(sum(draw.isolated for draw in drawn(percent, count)) - due) <= max(20 * percent / 100, 1.0)


def test_isolated_requests_come_in_clusters_and_gaps() -> None:
    """The sequence is not regular: neighbours occur, and gaps of more than the mean distance."""
    places = [place for place, draw in enumerate(drawn(10.0, 1000)) if draw.isolated]
    gaps = {later - earlier for earlier, later in pairwise(places)}
    assert min(gaps) == 1
    assert max(gaps) > 15


@pytest.mark.parametrize("percent", [5.0, 25.0, 50.0])
def test_both_classes_ask_for_the_same_lengths(percent: float) -> None:
    """After every eight requests of a class each length has come equally often, in either class; the order varies."""
    draws = drawn(percent, 2000)
    for isolated in (False, True):
        tokens = [draw.tokens for draw in draws if draw.isolated is isolated]
        whole = Counter(tokens[: len(tokens) // 8 * 8])
        assert len(whole) == 8
        assert len(set(whole.values())) == 1
        assert sum(tokens[:8]) / 8 == mean_tokens()
        assert tokens[:8] != tokens[8:16]


def test_equal_seeds_give_equal_traffic_and_other_seeds_other() -> None:
    """The sequence is the seed's and the percentage's alone."""
    assert drawn(25.0, 200) == drawn(25.0, 200)
    assert drawn(25.0, 200) != drawn(25.0, 200, seed=2)


def test_no_prompt_comes_twice_also_across_percentages() -> None:
    """Numbers go on when the percentage changes, so that nothing can be answered from a cache."""
    draws = Draws(seed=1)
    prompts = []
    for percent in (0.0, 10.0, 0.0, 50.0):
        draws.mix(percent)
        prompts += [draws.draw().prompt for _ in range(100)]
    assert len(set(prompts)) == 400
