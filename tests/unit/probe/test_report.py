"""How a finding reads, for people and for machines."""

import io
import json
from dataclasses import replace

import pytest
from rich.console import Console

from app.determinism.mode import Mode
from app.probe.document import to_document
from app.probe.experiment import Experiment
from app.probe.report import Report, notes, render_tables
from app.probe.tally import Row, Spread, Status, WaitSource

EXPERIMENT = Experiment(url="http://server", modes=(Mode.STANDARD, Mode.ISOLATED), api_key="secret")

ISOLATED = Row(
    mode=Mode.ISOLATED,
    status=Status.MEASURED,
    reason=None,
    asked=64,
    compared=64,
    diverged=0,
    failed=0,
    distinct=(1, 1, 1, 1),
    fork=None,
    fork_median=None,
    answers=68,
    peak=1,
    peaks_known=68,
    confirmed=True,
    tokens_per_second=20.4,
    background_per_second=151.0,
    latency=Spread(4.0, 6.0),
    wait=Spread(1.5, 2.25),
    wait_source=WaitSource.LATENCY_OVER_STANDARD,
)
STANDARD = replace(
    ISOLATED,
    mode=Mode.STANDARD,
    diverged=48,
    distinct=(3, 2, 5, 4),
    fork=5,
    fork_median=11.5,
    peak=12,
    wait=None,
    wait_source=None,
)
UNAVAILABLE = replace(
    ISOLATED,
    mode=Mode.HARDENED,
    status=Status.UNAVAILABLE,
    reason="'eager' is off",
    compared=0,
    distinct=(),
    answers=0,
    peak=None,
    peaks_known=0,
    confirmed=False,
    tokens_per_second=None,
    background_per_second=None,
    latency=None,
    wait=None,
    wait_source=None,
)


def shown(*rows: Row) -> str:
    """The table as a wide terminal shows it."""
    return rendered(200, *rows)


def rendered(width: int, *rows: Row) -> str:
    """What a terminal of this width shows."""
    out = io.StringIO()
    console = Console(file=out, width=width)
    for table in render_tables(Report(EXPERIMENT, "smollm2", rows), width):
        console.print(table)
    return out.getvalue()


def line(text: str, mode: str) -> str:
    """The line of one mode."""
    return next(line for line in text.splitlines() if line.split()[:1] == [mode])


def test_a_line_holds_every_figure_of_its_mode() -> None:
    """Mode, repeats, distinct outputs, rate with its bound, fork, peak, rates and added wait."""
    table = shown(STANDARD, ISOLATED)

    standard, isolated = line(table, "standard").split("  "), line(table, "isolated")
    assert [cell.strip() for cell in standard if cell.strip()] == [
        "standard",
        "64",
        "3 2 5 4",
        "48 of 64, 75.0 %, below 83.7 % (95 %)",
        "token 5 (median 11.5)",
        "12",
        "20",
        "151",
        "-",
    ]
    assert "0 of 64, below 4.6 % (95 %)" in isolated
    assert "+1.50 / +2.25 s" in isolated
    assert "smollm2 at http://server" in table


@pytest.mark.parametrize("width", [80, 100, 129, 130, 160])
def test_no_terminal_loses_a_figure(width: int) -> None:
    """From 80 columns on, every header and figure is there, whole, and no line is longer than the terminal."""
    table = rendered(width, STANDARD, ISOLATED, UNAVAILABLE)

    words = table.split()
    for figure in (
        "distinct",
        "outputs",
        "co-resident",
        "tokens/s",
        "48",
        "75.0",
        "11.5)",
        "12",
        "151",
        "+1.50",
        "+2.25",
    ):
        assert figure in words
    assert "\u2026" not in table
    assert max(map(len, table.splitlines())) <= width


def test_zero_is_never_a_rate() -> None:
    """No divergence seen is printed with its bound, never as 0 %."""
    report = Report(EXPERIMENT, "m", (replace(STANDARD, diverged=0, fork=None), ISOLATED))
    text = shown(*report.rows) + " ".join(notes(report)) + json.dumps(to_document(report))

    assert "0 %" not in text.replace("100 %", "")


def test_an_unavailable_mode_says_why_in_its_row() -> None:
    """The server's reason stands in the row, and the exit status does not suffer."""
    assert "unavailable: 'eager' is off" in line(shown(UNAVAILABLE), "hardened")
    assert Report(EXPERIMENT, "m", (ISOLATED, UNAVAILABLE)).exit_code == 0


def test_a_failed_mode_keeps_what_it_compared() -> None:
    """Failed requests are counted with their reason beside what the others showed."""
    row = replace(ISOLATED, status=Status.FAILED, reason="HTTP 500: broken", failed=3, compared=10)

    cells = line(shown(row), "isolated")
    assert "10 of 64" in cells
    assert "0 of 10, below 25.9 % (95 %); 3 failed: HTTP 500: broken" in cells


def test_what_a_server_says_is_not_markup() -> None:
    """Square brackets in a reason reach the terminal as they are."""
    assert "[bold]x[/nope]" in shown(replace(UNAVAILABLE, reason="[bold]x[/nope]"))


def test_many_prompts_show_a_range_of_distinct_outputs() -> None:
    """With more prompts than fit, the least and the most are shown."""
    assert " 1 to 9 " in shown(replace(STANDARD, distinct=(1, 2, 9, 3, 3, 3, 3)))


@pytest.mark.parametrize(
    ("rows", "interrupted", "code"),
    [
        ((STANDARD, ISOLATED), False, 0),
        ((replace(ISOLATED, mode=Mode.SEEDED, diverged=3),), False, 0),
        ((replace(ISOLATED, diverged=1),), False, 1),
        ((replace(ISOLATED, mode=Mode.INVARIANT, diverged=1),), False, 1),
        ((replace(ISOLATED, mode=Mode.HARDENED, diverged=1),), False, 1),
        ((replace(ISOLATED, mode=Mode.VERIFIED, diverged=1),), False, 1),
        ((replace(STANDARD, status=Status.FAILED),), False, 2),
        ((UNAVAILABLE,), False, 2),
        ((STANDARD, UNAVAILABLE), False, 0),
        ((replace(STANDARD, status=Status.FAILED), replace(ISOLATED, diverged=1)), False, 1),
        ((replace(ISOLATED, diverged=1),), True, 130),
    ],
)
def test_exit_status(rows: tuple[Row, ...], interrupted: bool, code: int) -> None:
    """1 for a deterministic mode that diverged, else 2 when it was not measured; 130 when interrupted."""
    assert Report(EXPERIMENT, "m", rows, interrupted=interrupted).exit_code == code


def said(*rows: Row, **facts: object) -> str:
    """The sentences below a table."""
    return "\n".join(notes(Report(EXPERIMENT, "m", rows, **facts)))  # type: ignore[arg-type]  # test data


def test_the_closing_sentence_says_what_zero_means() -> None:
    """The last sentence bounds the figure and says that it is not never."""
    closing = said(STANDARD, ISOLATED).splitlines()[-1]

    assert '"0 of 64, below 4.6 % (95 %)"' in closing
    assert "not never" in closing


def test_standard_without_divergence_is_said_plainly() -> None:
    """A standard mode that showed nothing is named, with its bound; one that diverged is not."""
    assert "standard: no divergence seen, 0 of 64, below 4.6 % (95 %)." in said(replace(STANDARD, diverged=0))
    assert "no divergence seen" not in said(STANDARD)


def test_a_divergence_in_a_deterministic_mode_is_named() -> None:
    """The alarm is a sentence, not only a colour."""
    assert "isolated: 2 of 64" in said(replace(ISOLATED, diverged=2))


def test_a_request_that_was_not_alone_is_named() -> None:
    """A peak over 1 in a mode with batch isolation is said."""
    assert "isolated: the co-resident peak is 3" in said(replace(ISOLATED, peak=3))
    assert "co-resident" not in said(STANDARD, ISOLATED)


def test_an_unconfirmed_mode_is_named() -> None:
    """A server that ignores modes is not credited with them."""
    assert "did not confirm isolated" in said(replace(ISOLATED, confirmed=False))
    assert "did not confirm" not in said(replace(STANDARD, confirmed=False), ISOLATED)


def test_a_lighter_load_and_an_interruption_are_said() -> None:
    """What weakens the finding stands beside it."""
    text = said(ISOLATED, load_requests=9, load_failures=4, load_failure="HTTP 429: busy", interrupted=True)

    assert "4 of 9 background requests failed (HTTP 429: busy)" in text
    assert "Interrupted" in text


def test_sampling_without_a_seed_is_said() -> None:
    """Standard answers that differ because they are sampled are not blamed on the batch."""
    report = Report(replace(EXPERIMENT, temperature=0.8), "m", (STANDARD,))
    assert any("samples without a seed" in note for note in notes(report))
    seeded = Report(replace(EXPERIMENT, temperature=0.8, seed=1), "m", (STANDARD,))
    assert not any("samples without a seed" in note for note in notes(seeded))


def test_nothing_compared_claims_nothing() -> None:
    """Without a comparison the closing sentence has no figure."""
    assert said(UNAVAILABLE) == "Nothing was compared, so nothing is known."


def test_the_document_holds_the_figures_and_no_key() -> None:
    """The JSON form round-trips, has the exact bound, and keeps the API key to itself."""
    report = Report(EXPERIMENT, "smollm2", (STANDARD, ISOLATED, UNAVAILABLE), load_requests=300)
    text = json.dumps(to_document(report), allow_nan=False)
    document = json.loads(text)

    assert "secret" not in text
    assert document["format"] == "reprise-probe/1"
    assert document["exit_code"] == 0
    standard, isolated, hardened = document["modes"]
    assert standard["diverged"]["k"] == 48
    assert standard["fork_tokens"] == {"first": 5, "median": 11.5}
    assert isolated["diverged"]["below"] == pytest.approx(1 - 0.05 ** (1 / 64))
    assert isolated["coresident_peak"] == {"max": 1, "known": 68, "answers": 68}
    assert isolated["added_wait_seconds"] == {"source": "latency_over_standard", "median": 1.5, "p95": 2.25}
    assert (hardened["status"], hardened["reason"]) == ("unavailable", "'eager' is off")
    assert hardened["diverged"]["below"] is None
