"""The plot of the modes: their speeds, and how many of their repeats diverged."""

from dataclasses import replace

import pytest

from app.determinism.mode import Mode
from app.determinism.statistics import rate_text
from app.diagnose.cure import Cure
from app.diagnose.investigation import Investigation
from app.diagnose.plot_modes import modes
from app.probe.tally import Status
from tests.unit.diagnose.made import CURES, DEPLOYMENT, URL, cure, report
from tests.unit.diagnose.parsed import axis, parse


def test_a_bar_is_as_long_as_the_mode_is_fast() -> None:
    """Each measured mode has one, with how many repeats diverged behind it."""
    plot = modes(report({}, cures=CURES))
    assert plot.svg is not None
    svg = parse(plot.svg).one("svg")
    ends = [mark.number("x") + mark.number("width") for mark in svg.every("rect", "mark")]
    measured = [each for each in CURES if each.measured]
    labels = {text.text for text in svg.every("text")}

    assert ends == pytest.approx([axis(svg, "across")(each.tokens_per_second) for each in measured], abs=0.02)
    assert {f"{each.row.diverged} of {each.row.compared} diverged" for each in measured} <= labels


def test_the_table_holds_bound_speed_and_wait() -> None:
    """Of each mode that was measured; of the others, why not."""
    rows = {row[0]: row[1:] for row in modes(report({}, cures=CURES)).rows}

    assert rows["verified"] == (rate_text(0, 64), "118", "0.25 s")
    assert rows["standard"] == (rate_text(21, 64), "212", "0.25 s")
    assert rows["invariant"] == ("not offered here: no replica has batch_invariance", "-", "-")


def test_colours_tell_a_mode_that_must_repeat_and_did_not() -> None:
    """One that repeated, standard that did not, and a deterministic one that did not differ."""
    several = (cure(Mode.STANDARD, 1, 8, 9.0), cure(Mode.ISOLATED, 0, 8, 9.0), cure(Mode.VERIFIED, 1, 8, 9.0))
    plot = modes(report({}, cures=several))
    assert plot.svg is not None
    styles = [mark.attributes["class"] for mark in parse(plot.svg).every("rect", "mark")]

    assert styles == ["mark near", "mark good", "mark clear"]


@pytest.mark.parametrize(
    ("gateway", "asked", "said"),
    [
        (False, True, "No mode was measured: this server offers none."),
        (True, False, "No mode was measured: that was not asked for."),
        (True, True, "No mode was measured: the budget was spent."),
    ],
)
def test_without_modes_the_reason_is_said(gateway: bool, asked: bool, said: str) -> None:
    """A server without modes, a run without them, a budget too short."""
    made = report({}, deployment=replace(DEPLOYMENT, gateway=gateway), investigation=Investigation(URL, cures=asked))

    assert (modes(made).said, modes(made).svg) == (said, None)


def test_modes_that_all_failed_are_listed_and_not_drawn() -> None:
    """A chart without a bar says nothing; the reasons do."""
    failed: tuple[Cure, ...] = (cure(Mode.STANDARD, 0, 0, 0.0, status=Status.FAILED, reason="HTTP 500: oops"),)
    plot = modes(report({}, cures=failed))

    assert plot.svg is None
    assert plot.rows == (("standard", "HTTP 500: oops", "-", "-"),)
