"""The report at a terminal: tables with the figures, sentences with what must be said, and no stranger's commands."""

import io
import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

import pytest
from rich.console import Console
from rich.table import Table

from app.determinism.mode import Mode
from app.determinism.statistics import rate_text
from app.diagnose.advice import Advice
from app.diagnose.findings import State
from app.diagnose.report import TITLES, Report, confidence, counted, doubts, summary
from app.diagnose.rungs import Rung
from app.diagnose.terminal import sentences, tables
from app.probe.tally import Status
from tests.unit.diagnose.made import CURES, DEPLOYMENT, cure, realistic, report

REPORT = realistic()
EVIL = "\x1b[2J\x1b]0;owned\x07[bold red]name[/]\nnext line\u202e"


def rows(table: Table) -> list[tuple[str, ...]]:
    """The cells of a table as texts, row by row."""
    columns = [[str(cell) for cell in column.cells] for column in table.columns]
    return list(zip(*columns, strict=True))


def parts(whole: Report) -> dict[str, Table]:
    """The tables by the first of their columns."""
    return {str(table.columns[0].header): table for table in tables(whole)}


def shown(whole: Report, width: int) -> str:
    """Everything as it is printed."""
    return printed(tables(whole), width) + printed(sentences(whole), width)


def printed(things: Iterable[Table | str], width: int) -> str:
    """These as the command prints them."""
    out = io.StringIO()
    console = Console(file=out, width=width, highlight=False, force_terminal=True, color_system="truecolor")
    for thing in things:
        console.print(thing, markup=False)
    return out.getvalue()


def test_every_finding_is_a_row_with_its_evidence() -> None:
    """Layer, suspect, verdict, counts with their bounds, chance, and what was compared."""
    assert {finding.state for finding in REPORT.verdict.findings} == {State.PRESENT, State.NOT_SEEN}
    assert rows(parts(REPORT)["layer"]) == [
        (
            finding.layer.value,
            TITLES[finding.suspect],
            finding.state.value,
            counted(finding),
            confidence(finding),
            finding.reason,
        )
        for finding in REPORT.verdict.findings
    ]


def test_the_title_says_what_was_asked_of_whom() -> None:
    """Model, address, prompts, tokens, temperature and how long it took."""
    title = str(parts(REPORT)["layer"].title)

    assert title == f"small-model at {DEPLOYMENT.url}: 4 prompts, {REPORT.course.tokens} tokens, temperature 0, 241 s"


def test_every_rung_is_a_row() -> None:
    """With what it took, or why it was left out; what was never reached says that."""
    records, missing = REPORT.evidence.records, {Rung.SAMPLER: "nothing is sampled without a seed"}
    expected = [
        (rung.value, str(record.rounds), str(record.requests), f"{record.seconds:.0f}", "")
        if (record := records.get(rung)) is not None
        else (rung.value, "-", "-", "-", missing[rung])
        for rung in Rung
    ]
    assert rows(parts(REPORT)["rung"]) == expected

    none = rows(parts(report({}))["rung"])
    assert none == [(rung.value, "-", "-", "-", "it was not reached") for rung in Rung]


def test_every_measured_mode_is_a_row() -> None:
    """Its rate with the bound, its speed with the load's, the wait; or why there is no figure."""
    whole = replace(REPORT, cures=(*CURES, cure(Mode.HARDENED, 0, 0, 0.0, status=Status.FAILED, reason="HTTP 500")))

    assert rows(parts(whole)["mode"]) == [
        ("standard", rate_text(21, 64), "212", "0.25 s"),
        ("invariant", "not offered here: no replica has batch_invariance", "-", "-"),
        ("verified", rate_text(0, 64), "118", "0.25 s"),
        ("isolated", rate_text(0, 48), "41", "0.25 s"),
        ("hardened", "HTTP 500", "-", "-"),
    ]


def test_without_modes_there_is_no_table_of_them() -> None:
    """A stock engine has none."""
    assert "mode" not in parts(report({}))


def test_a_wait_that_is_not_known_is_not_zero() -> None:
    """A dash."""
    known = cure(Mode.ISOLATED, 0, 8, 40.0)
    unknown = replace(known, row=replace(known.row, wait=None))

    assert rows(parts(replace(REPORT, cures=(unknown,)))["mode"])[0][-1] == "-"


@pytest.mark.parametrize(
    ("mode", "diverged", "alarm"), [(Mode.ISOLATED, 3, True), (Mode.ISOLATED, 0, False), (Mode.STANDARD, 3, False)]
)
def test_a_mode_that_must_not_diverge_and_did_stands_out(mode: Mode, diverged: int, alarm: bool) -> None:
    """In red; the standard mode promises nothing, so its divergence is no alarm."""
    (table,) = [parts(replace(REPORT, cures=(cure(mode, diverged, 8, 40.0),)))["mode"]]
    styles = [str(getattr(cell, "style", "")) for cell in list(table.columns[1].cells)]

    assert styles == ["bold red" if alarm else ""]


def test_the_sentences_are_verdict_advice_and_doubts_in_order() -> None:
    """A sentence per layer, what to do, what to send in both forms, what must be said beside it, and how to read it."""
    said = list(sentences(REPORT))
    advice, doubtful = REPORT.advice, doubts(REPORT)
    assert advice.header
    assert doubtful

    (header,) = advice.header.items()
    assert said[:-1] == [
        *summary(REPORT.verdict),
        "",
        *advice.sentences,
        f"  as a header:    {header[0]}: {header[1]}",
        f"  or in the body: {json.dumps(dict(advice.body))}",
        "",
        *doubtful,
    ]
    assert "it is not never" in said[-1]


def test_what_is_not_to_be_sent_is_not_shown() -> None:
    """An advice without a mode has neither header nor body."""
    said = list(sentences(replace(REPORT, advice=Advice(("Nothing was measured.",)))))

    assert "Nothing was measured." in said
    assert not [sentence for sentence in said if "as a header" in sentence or "in the body" in sentence]


def test_an_interrupted_run_says_so() -> None:
    """Among the doubts."""
    said = list(sentences(replace(REPORT, interrupted=True)))

    assert "Interrupted: the findings are on what had been answered by then." in said


def strange() -> Report:
    """A report on a server whose every text is hostile."""
    whole = report(
        {},
        deployment=replace(DEPLOYMENT, model=EVIL, unsaid=(EVIL,)),
        cures=(cure(Mode.ISOLATED, 0, 0, 0.0, status=Status.FAILED, reason=EVIL),),
        missing={Rung.BATCH: "no time"},
    )
    record = realistic().evidence.records[Rung.KV]
    record.troubles.append(EVIL)
    record.reason = EVIL
    evidence = replace(whole.evidence, records={Rung.KV: record})
    findings = tuple(replace(finding, reason=EVIL) for finding in whole.verdict.findings)
    return replace(
        whole, evidence=evidence, verdict=replace(whole.verdict, findings=findings), left_out={"r-2": 3, EVIL: 2}
    )


def test_nothing_that_a_server_says_reaches_the_terminal() -> None:
    """Neither control characters nor markup nor another line: names and reasons are shown, not obeyed."""
    ours = shown(replace(strange(), deployment=replace(DEPLOYMENT, model="m", unsaid=())), width=2000)
    out = shown(strange(), width=2000)

    assert "\x1b[2J" not in out
    assert "\x07" not in out
    assert "\u202e" not in out
    # In the title, each finding, the rung, a mode and four doubts.
    assert out.count("[bold red]name[/]") == 7 + len(strange().verdict.findings)
    # The server's line break is no line break: the model's name and what it left unsaid add one sentence.
    assert len(out.splitlines()) == len(ours.splitlines()) + 1
    assert all(not sentence.startswith("next line") for sentence in sentences(strange()))


def test_a_long_reason_is_cut() -> None:
    """At a length that a terminal still shows."""
    whole = replace(
        REPORT,
        verdict=replace(
            REPORT.verdict, findings=tuple(replace(each, reason="x" * 5000) for each in REPORT.verdict.findings)
        ),
    )

    assert max(len(row[-1]) for row in rows(parts(whole)["layer"])) <= 300


def test_the_figures_are_not_lost_where_the_terminal_is_narrow() -> None:
    """Cells are folded, never cut."""
    text = Counter(printed(tables(REPORT), width=40))
    cells = Counter("".join("".join(cell for row in rows(table) for cell in row) for table in tables(REPORT)))

    del cells[" "]
    assert cells
    assert cells <= text
