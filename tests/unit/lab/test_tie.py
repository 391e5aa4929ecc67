"""Close logits change places under noise, far ones do not, and the counts are those of the arithmetic."""

import argparse
import json
import math
from collections.abc import Sequence

import ml_dtypes
import numpy as np
import pytest
from matplotlib.figure import Figure
from numpy.typing import NDArray

from app.lab.demonstration import Result
from app.lab.tie import DEMONSTRATION
from app.lab.tie_margins import Margins, answers_with_a_flip, expected_flip_share, measure
from app.lab.tie_pair import pairs

SMALL = ("--rows", "60", "--vocabulary", "500")
NOISES = (1e-5, 0.0625, 0.5)


def run(*words: str) -> Result:
    """The demonstration with these options."""
    parser = argparse.ArgumentParser()
    DEMONSTRATION.add_arguments(parser)
    parser.add_argument("--seed", type=int, default=0)
    return DEMONSTRATION.run(parser.parse_args(words))


def measured(rows: int = 400, vocabulary: int = 300, noises: Sequence[float] = NOISES, seed: int = 5) -> Margins:
    return measure(np.random.default_rng(seed), rows, vocabulary, 3.0, noises)


def logits(rows: int, vocabulary: int, seed: int = 5) -> NDArray[np.float32]:
    """The logits that `measured` draws, where all of them fit into its first draw."""
    return np.random.default_rng(seed).standard_normal((rows, vocabulary), np.float32) * np.float32(3.0)


def test_noise_of_a_ten_millionth_exchanges_two_close_logits() -> None:
    """In a format that can tell the two apart, the second overtakes the first; float64 always can."""
    fine = [pair for pair in pairs(1e-7) if pair.format == "float64"]

    assert [(pair.before, pair.after) for pair in fine] == [(0, 1)] * 3
    assert all(pair.second < pair.level < pair.disturbed for pair in fine)
    assert next(pair for pair in pairs(1e-7) if pair.format == "float32" and pair.level == 0.5).flipped


def test_a_format_with_larger_steps_rounds_the_noise_away() -> None:
    """bfloat16 holds the two as equal, before the noise and after it, and the lowest index wins."""
    coarse = [pair for pair in pairs(1e-7) if pair.format == "bfloat16"]

    assert all(pair.second == pair.disturbed == pair.level for pair in coarse)
    assert not any(pair.flipped for pair in coarse)
    assert [pair.step for pair in coarse] == [float(np.spacing(ml_dtypes.bfloat16(level))) for level in (0.5, 4, 16)]


def test_noise_of_some_steps_exchanges_them_in_every_format() -> None:
    """What protects the pair is the size of the noise, not the coarse format."""
    assert all(pair.flipped for pair in pairs(1.0))


def test_the_margins_are_those_of_the_sorted_rows() -> None:
    """Sorting every row gives the same distances between its two largest, and the same share below one."""
    ordered = np.sort(logits(400, 300), axis=1)
    expected = np.sort((ordered[:, -1] - ordered[:, -2]).astype(np.float64))

    seen = measured()

    assert np.array_equal(seen.margins, expected)
    assert seen.share_below(0.5) == np.mean(expected < 0.5)
    assert seen.largest_mean == pytest.approx(float(np.mean(ordered[:, -1])))


def test_only_rows_with_a_margin_in_reach_can_flip() -> None:
    """No row flips in float32 whose margin exceeds twice the noise, and larger noise reaches more rows."""
    flips = measured().flips

    assert all(one.float32 <= one.in_reach for one in flips)
    assert [one.in_reach for one in flips] == sorted(one.in_reach for one in flips)
    assert flips[0].in_reach == flips[0].float32 == 0
    assert 0 < flips[1].float32 < flips[2].float32


def test_flips_happen_as_often_as_the_margins_let_expect() -> None:
    """Both counts over 2,000 rows lie within four standard deviations of the formula's: coarse steps protect nobody."""
    seen = measured(rows=2000, vocabulary=200, noises=(0.1,))
    share = expected_flip_share(0.1, seen.mean)
    deviation = math.sqrt(2000 * share * (1 - share))

    assert abs(seen.flips[0].float32 - 2000 * share) < 4 * deviation
    assert abs(seen.flips[0].bfloat16 - 2000 * share) < 4 * deviation


@pytest.mark.parametrize("noise", [1e-5, 0.003, 0.2, 5.0])
def test_the_expected_share_is_the_integral_that_it_stands_for(noise: float) -> None:
    """The closed form and its limit for small noise equal the integral over the margins, done numerically."""
    mean = 0.7
    margin = np.linspace(0.0, 2 * noise, 200_001)
    density = np.exp(-margin / mean) / mean * (2 * noise - margin) ** 2 / (8 * noise**2)

    assert expected_flip_share(noise, mean) == pytest.approx(float(np.trapezoid(density, margin)), rel=1e-4)


def test_rounding_makes_ties_and_the_lowest_index_wins() -> None:
    """Rounding whole rows to bfloat16 gives the counts reported, and float32 has no tie to break here."""
    exact = logits(400, 300)
    rounded = exact.astype(ml_dtypes.bfloat16).astype(np.float32)
    equal = int(np.count_nonzero(np.sum(rounded == rounded.max(axis=1, keepdims=True), axis=1) > 1))
    moved = int(np.count_nonzero(np.argmax(rounded, axis=1) != np.argmax(exact, axis=1)))

    ties = {one.format: one for one in measured().ties}

    assert (ties["bfloat16"].equal, ties["bfloat16"].moved) == (equal, moved)
    assert 0 < moved < equal
    assert ties["float32"].equal == ties["float32"].moved == 0
    assert ties["float16"].equal < equal


def test_a_flip_in_an_answer_is_likelier_than_one_at_a_token() -> None:
    """The share of answers is that of independent tokens: none without noise, and 1 - (1 - p) ** n with it."""
    assert answers_with_a_flip(0.0, 1000) == 0.0
    assert answers_with_a_flip(0.01, 1) == pytest.approx(0.01)
    assert answers_with_a_flip(0.01, 1000) == pytest.approx(1 - 0.99**1000)


def test_rows_drawn_in_parts_are_all_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where memory allows only some rows at a time, none is left out, the last part being shorter."""
    monkeypatch.setattr("app.lab.tie_margins._LOGITS_AT_ONCE", 300 * 7)

    assert measured(rows=100).rows == 100


def test_equal_options_give_an_equal_result() -> None:
    """A seed repeats the run; another one draws other rows."""
    first, again, other = run(*SMALL), run(*SMALL), run(*SMALL, "--seed", "1")

    assert (first.sheets, first.findings, first.data) == (again.sheets, again.findings, again.data)
    assert first.data["margin_mean_logits"] != other.data["margin_mean_logits"]


def test_the_noise_asked_for_meets_the_rows_too() -> None:
    """``--noise`` is one of the levels, once, and the levels ascend."""
    levels = [one["noise_logits"] for one in run(*SMALL, "--noise", "0.03").data["flips"]]

    assert levels == sorted(set(levels))
    assert 0.03 in levels
    assert len(levels) == len(run(*SMALL).data["flips"]) + 1


def test_the_findings_carry_the_counts() -> None:
    """The sentences name the counts of the data, and a count of none comes with its bound."""
    result = run(*SMALL)
    coarse = result.data["ties"][-1]

    assert f"exactly equal in {coarse['rows_equal']} of 60" in " ".join(result.findings)
    assert result.sheets[1].rows[0][2] == "0 of 60, below 4.9 %"


def test_the_data_is_json() -> None:
    """``--json`` can print it."""
    assert json.loads(json.dumps(run(*SMALL).data, allow_nan=False))["rows"] == 60


def test_a_plot_shows_margins_and_flips() -> None:
    """The left axes rise to every row, the right ones carry a mark for each level of noise or its bound."""
    figure = Figure()

    run(*SMALL).draw(figure)

    left, right = figure.axes
    assert np.asarray(left.lines[0].get_ydata())[-1] == 1.0
    assert len(np.asarray(right.lines[0].get_xdata())) == 6
    assert left.get_legend() is not None


@pytest.mark.parametrize(
    "words", [("--noise", "0"), ("--vocabulary", "1"), ("--rows", "5"), ("--scale", "nan"), ("--rows", "many")]
)
def test_options_out_of_range_are_refused_by_name(words: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    """The message names the option, and nothing runs."""
    with pytest.raises(SystemExit):
        run(*words)
    assert f"argument {words[0]}:" in capsys.readouterr().err
