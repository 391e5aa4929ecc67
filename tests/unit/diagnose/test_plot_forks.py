"""The two plots of forks: what they count, and where."""

from dataclasses import replace

import pytest

from app.diagnose.investigation import Investigation
from app.diagnose.plot import Plot
from app.diagnose.plot_forks import margins, positions
from app.diagnose.report import Report
from app.diagnose.rungs import Rung
from app.diagnose.sample import Sample, Setting
from tests.unit.diagnose.made import DEPLOYMENT, TOKENS, URL, choice, realistic, report, sample
from tests.unit.diagnose.parsed import Node, axis, parse

FOUR = list(range(4))


def svg_of(plot: Plot) -> Node:
    assert plot.svg is not None
    return parse(plot.svg).one("svg")


def forked(*forks: tuple[int, float | None]) -> Report:
    """One answer alone, and for each fork one in a batch that leaves it at a token with a margin in nats."""
    length = 1 + max(token for token, _ in forks)
    alone = [sample([0] * length, number, logprob=-0.5) for number, _ in enumerate(forks)]
    batched = []
    for number, (token, margin) in enumerate(forks):
        ids = [0] * token + [number + 1] * (length - token)
        nats = None if margin is None else [margin] * length
        made = choice(ids, nats, [-0.5] * length)
        batched.append(Sample(number, Setting(size=2), made))
        if margin is None:
            alone[number] = Sample(number, Setting(), choice([0] * length, None, [-0.5] * length))
        else:
            alone[number] = sample([0] * length, number, margin=margin)
    return report({Rung.ALONE: alone, Rung.BATCH: [*alone, *batched]}, tokens=length)


def test_a_fork_is_counted_at_its_token() -> None:
    """One bar per token, as high as there are forks; the table holds the same counts."""
    plot = positions(forked((2, 0.1), (2, 3.0), (5, 0.1)))
    svg = svg_of(plot)
    x, y = axis(svg, "across"), axis(svg, "upright")
    heights: dict[int, float] = {}
    for mark in svg.every("rect", "mark"):
        token = next(t for t in range(6) if x(t) <= mark.number("x") < x(t + 1))
        heights[token] = heights.get(token, 0) + mark.number("height")

    assert heights == pytest.approx({2: y(0) - y(2), 5: y(0) - y(1)}, abs=0.02)
    assert plot.rows == (("token 2", "1", "0", "1", "0"), ("token 5", "1", "0", "0", "0"))


def test_a_fork_beyond_the_planned_answer_is_drawn_too() -> None:
    """A server may answer with more tokens than it was asked for."""
    plot = positions(replace(made := forked((5, 0.1)), course=replace(made.course, tokens=5)))
    assert [row[0] for row in plot.rows] == ["token 5"]


def test_long_answers_share_bars_among_tokens() -> None:
    """However long an answer is, the bars stay wide enough to see, and no fork is lost."""
    plot = positions(forked((0, 0.1), (300, 0.1), (301, 0.1), (999, 0.1)))

    assert sum(int(row[1]) for row in plot.rows) == 4
    assert all(mark.number("width") > 4 for mark in svg_of(plot).every("rect", "mark"))


@pytest.mark.parametrize(
    ("margin", "kind", "bin_"), [(0.0, 1, 0), (0.125, 1, 0), (0.25, 1, 1), (1.0, 2, 7), (2.0, 3, 15)]
)
def test_a_margin_on_an_edge_counts_below_it(margin: float, kind: int, bin_: int) -> None:
    """Margins of 16 bits are multiples of an eighth; one that is just at a limit is drawn on the limit's own side."""
    plot = margins(forked((1, margin)))
    svg = svg_of(plot)
    mark, x = svg.one("rect", "mark"), axis(svg, "across")

    assert [place for place, count in enumerate(plot.rows[0]) if count == "1"] == [kind]
    assert x(bin_ / 8) <= mark.number("x") < mark.number("x") + mark.number("width") <= x((bin_ + 1) / 8) + 0.02


def test_large_margins_have_the_last_bar() -> None:
    """However large; the bar is beyond all others, and the table says what it holds."""
    plot = margins(forked((1, 0.1), (2, 2.5), (3, 40.0)))
    marks = svg_of(plot).every("rect", "mark")

    assert plot.rows[-1] == ("more than 2 nats", "0", "0", "2", "0")
    assert max(mark.number("x") for mark in marks) >= axis(svg_of(plot), "across")(2.0)


def test_the_limits_of_ties_and_of_what_is_near_are_marked() -> None:
    """At the run's own tie limit, and at one nat."""
    made = forked((1, 0.1))
    svg = svg_of(margins(made))
    x = axis(svg, "across")

    places = [line.number("x1") for line in svg.every("line", "limit")]
    assert places == pytest.approx([x(made.verdict.forks.limit), x(1.0)], abs=0.02)


def test_unknown_margins_are_said_and_not_drawn() -> None:
    """A fork without a margin is in the plot of places, and only named in that of margins."""
    some = forked((1, 0.1), (2, None))

    assert "Of 1 more forks no margin is known." in margins(some).said
    assert sum(int(row[4]) for row in positions(some).rows) == 1
    assert margins(forked((2, None))) == Plot(
        margins(some).title, "No margin is known: the answers hold no logprobs at their forks."
    )


def test_sampled_answers_have_margins_that_say_little() -> None:
    """The reader is told, as a sampled token need not be the likeliest."""
    samples = {Rung.ALONE: [sample(FOUR), sample(FOUR), sample([0, 1, 5, 6])]}
    plot = margins(report(samples, investigation=Investigation(URL, temperature=0.7)))

    assert "sampled" in plot.said


@pytest.mark.parametrize(
    ("samples", "said"),
    [
        ({}, "There are no answers."),
        ({Rung.ALONE: [sample(FOUR), sample(FOUR)]}, "No answer forked."),
        (
            {
                Rung.ALONE: [
                    Sample(0, Setting(), choice(FOUR)._replace(token_ids=None, tokens=None, text=text)) for text in "ab"
                ]
            },
            "The answers do not tell their tokens, so where they part is not known.",
        ),
    ],
)
def test_where_no_fork_is_known_the_reason_is_said(samples: dict[Rung, list[Sample]], said: str) -> None:
    """And nothing is drawn."""
    made = report(samples, deployment=DEPLOYMENT)

    assert [(plot.said, plot.svg) for plot in (positions(made), margins(made))] == [(said, None)] * 2


def test_every_fork_of_a_run_is_in_both_plots() -> None:
    """The counts of a realistic run add up."""
    made = realistic()
    forks = made.verdict.forks

    assert len(forks.forks) > 3
    for plot in (positions(made), margins(made)):
        assert sum(int(count) for row in plot.rows for count in row[1:]) == len(forks.forks)
    assert max(fork.token for fork in forks.forks) < TOKENS
