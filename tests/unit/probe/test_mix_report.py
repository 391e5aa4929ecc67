"""How a finding of mixed traffic reads, for people and for machines."""

import io
import json
from dataclasses import replace

import pytest
from rich.console import Console

from app.probe.mix import MixPlan
from app.probe.mix_document import to_mix_document
from app.probe.mix_figures import ClassFigures, MixRow, Point, Quantiles, Window
from app.probe.mix_report import MixReport, mix_notes, render_mix

PLAN = MixPlan(url="http://server", percentages=(0.0, 10.0), api_key="secret")
NONE = ClassFigures(answers=0, failed=0, tokens=0.0, waits=None, latencies=None)
SHARED = ClassFigures(
    answers=400, failed=0, tokens=9000.0, waits=Quantiles(0.0, 0.01, 400), latencies=Quantiles(2.0, 4.0, 400)
)
ISOLATED = ClassFigures(
    answers=30, failed=0, tokens=750.0, waits=Quantiles(2.5, 7.25, 30), latencies=Quantiles(4.0, 9.0, 30)
)
BASE = MixRow(Window(5.0, 65.0, 16, 0.0), SHARED, NONE, 0.0, ("one",), not_alone=0, unconfirmed=0, reason=None)
MIXED = MixRow(
    Window(75.0, 135.0, 16, 10.0),
    replace(SHARED, answers=270, tokens=6000.0, waits=Quantiles(1.5, 6.0, 270)),
    ISOLATED,
    0.42,
    ("one",),
    not_alone=0,
    unconfirmed=0,
    reason=None,
)
POINT = Point(Window(0.0, 15.0, 1, 0.0), 12, 0, 20.5, ((8, 6, 0.4), (48, 6, 2.4)), ("one",))
REPORT = MixReport(PLAN, "tiny", (BASE, MIXED), (POINT,))


def printed(report: MixReport) -> str:
    """The tables as text."""
    console = Console(file=io.StringIO(), width=160)
    for table in render_mix(report):
        console.print(table)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_table_says_what_isolation_costs() -> None:
    """Rate, retention, requests, waits of both classes and exclusive time stand in the percentage's line."""
    line = next(line for line in printed(REPORT).splitlines() if line.strip().startswith("10 %"))

    for figure in ("112.5", "75.0 %", "270", "1.50 / 6.00 s", "30", "2.50 / 7.25 s", "42.0 %"):
        assert figure in line


def test_the_calibration_has_a_table_of_its_own() -> None:
    """It is printed where it was measured, and nowhere else."""
    assert "calibration" in printed(REPORT)
    assert "20.5" in printed(REPORT)
    assert "calibration" not in printed(replace(REPORT, points=()))


def test_unknown_figures_are_dashes() -> None:
    """Without 0 % there is no retention, without the server's word no wait."""
    silent = replace(BASE, window=replace(BASE.window, percent=5.0), shared=replace(SHARED, waits=None))
    line = next(
        line for line in printed(replace(REPORT, rows=(silent,))).splitlines() if line.strip().startswith("5 %")
    )

    assert line.split().count("-") == 3


@pytest.mark.parametrize(
    ("report", "status"),
    [
        (REPORT, 0),
        (replace(REPORT, rows=(BASE, replace(MIXED, not_alone=1))), 1),
        (replace(REPORT, rows=(BASE,)), 2),
        (replace(REPORT, lost="HTTP 502"), 2),
        (replace(REPORT, rows=(BASE, replace(MIXED, unconfirmed=1))), 2),
        (replace(REPORT, rows=(BASE, replace(MIXED, shared=replace(SHARED, failed=1)))), 2),
        (replace(REPORT, rows=(BASE, replace(MIXED, shared=NONE, isolated=NONE))), 2),
        (replace(REPORT, rows=(BASE, replace(MIXED, not_alone=1)), interrupted=True), 130),
    ],
)
def test_exit_status(report: MixReport, status: int) -> None:
    """0 fine; 1 a request was not alone; 2 something was not measured; 130 interrupted."""
    assert report.exit_code == status


@pytest.mark.parametrize(
    ("report", "said"),
    [
        (replace(REPORT, rows=(BASE, replace(MIXED, not_alone=2))), "10 %: 2 of 30 isolated requests were not alone"),
        (replace(REPORT, rows=(BASE, replace(MIXED, unconfirmed=3))), "10 %: the server did not confirm 3 of 30"),
        (
            replace(
                REPORT, rows=(BASE, replace(MIXED, isolated=replace(ISOLATED, failed=2), reason="no answer in time"))
            ),
            "10 %: 2 of 302 requests failed (no answer in time).",
        ),
        (replace(REPORT, lost="HTTP 502: gone"), "nothing but failures came back (HTTP 502: gone)"),
        (replace(REPORT, interrupted=True), "Interrupted"),
        (replace(REPORT, rows=(BASE, replace(MIXED, replicas=("one", "two")))), "on 2 replicas"),
    ],
)
def test_what_must_be_said_is_said(report: MixReport, said: str) -> None:
    """Each doubt is a sentence beside the table; without a doubt none is there."""
    assert any(said in note for note in mix_notes(report))
    assert not any(said in note for note in mix_notes(REPORT))


def test_the_document_holds_every_figure_and_no_secret() -> None:
    """JSON with the same figures as the table; the key is not in it."""
    text = json.dumps(to_mix_document(REPORT))
    document = json.loads(text)

    assert "secret" not in text
    assert (document["format"], document["exit_code"]) == ("reprise-mix/1", 0)
    assert document["settings"]["clients"] == 16
    mixed = document["sweep"][1]
    assert (mixed["percent"], mixed["tokens_per_second"], mixed["retention"]) == (10.0, 112.5, 0.75)
    assert mixed["shared"]["wait_seconds"] == {"p50": 1.5, "p99": 6.0, "known": 270}
    assert (mixed["isolated"]["answers"], mixed["isolated"]["not_alone"]) == (30, 0)
    assert document["sweep"][0]["isolated"]["wait_seconds"] is None
    assert document["calibration"][0]["latency_by_tokens"][1] == {"tokens": 48, "answers": 6, "mean_seconds": 2.4}
