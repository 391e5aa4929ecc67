"""The finding at a terminal, and the exit status."""

from dataclasses import replace

import pytest
from rich.console import Console

from app.comparison.entry import Entry, Side
from app.comparison.finding import Finding, find
from app.comparison.report import exit_code, figures, notes, render_tables
from tests.unit.comparison.made import answer, example, finding, line


def printed(found: Finding, worst: int = 10) -> str:
    console = Console(width=180, highlight=False)
    with console.capture() as capture:
        for table in render_tables(found, worst):
            console.print(table)
    return capture.get()


def test_the_tables_say_what_was_found() -> None:
    """The sides with mode and posture, each figure with its bound, and the worst pairs."""
    text = printed(example())

    for said in (
        "A: a.jsonl",
        "isolated",
        "4 pairs, 3 with a verdict, of 3 requests",
        "1 of 3 agree",
        "2 of 3, 66.7 %, below 98.4 % (95 %)",
        "median 0.853, least 0.824",
        "1 tie, 1 unknown",
        '1 of 1, 100 %, by the rule "answer is (\\w+)"',
        "2 in A, 2 in B",
        "1: A: HTTP 503: full",
        "token 2",
        "yes | no",
    ):
        assert said in text


def test_nothing_hostile_reaches_the_terminal() -> None:
    """Titles, names and results with escapes or rich's own markup are plain text."""
    entries = [Entry("k", "line 1", "\x1b[2J[red]", f"o-{n}", None, mode="\x1b]0;x\x07[bold]") for n in range(2)]
    text = printed(find(Side("[blink]a\x1b", (entries[0],)), Side("b", (entries[1],))))

    assert "\x1b" not in text
    assert "[blink]a\\x1b" in text
    assert "[red]" in text
    assert "[bold]" in text


def test_the_list_of_the_worst_has_an_end() -> None:
    """So many are listed, and of how many is said; none at all where none are wanted."""
    assert "1 of 2" in printed(example(), worst=1)
    assert "Pairs that differ" not in printed(example(), worst=0)


def test_meaning_is_called_advice() -> None:
    """Semantic figures are there only where they were asked for, and are called advisory."""
    found = example()

    assert "semantic" not in dict(figures(found))
    assert dict(figures(replace(found, semantic=True)))["semantic"] == "unknown (advisory)"


@pytest.mark.parametrize(
    ("right", "fail", "status"),
    [("a", True, 0), ("b", False, 0), ("b", True, 1), (None, True, 2), (None, False, 2)],
)
def test_the_exit_status(right: str | None, fail: bool, status: int) -> None:
    """0 compared, 1 where differences are to fail, 2 where there is nothing to compare."""
    found = finding([line("q", answer("a"))], [line("q", None if right is None else answer(right))])
    assert exit_code(found, fail_on_difference=fail) == status


def test_a_missing_counterpart_fails_too() -> None:
    """Whoever asks for equality does not get it from an answer that is not there."""
    found = finding([line("q", answer("a")), line("r", answer("a"))], [line("q", answer("a"))])

    assert exit_code(found, fail_on_difference=True) == 1
    assert exit_code(found, fail_on_difference=False) == 0


def test_one_answer_is_the_reference_of_several() -> None:
    """On either side; so many were compared that way is said, and a repeat that differs is found."""
    once, often = [line("q", answer("a"))], [line("q", answer(text)) for text in "aba"]

    for found in (finding(once, often), finding(often, once)):
        said = dict(figures(found))
        assert said["matched"] == "3 pairs, 3 with a verdict, of 1 request"
        assert said["one to several"].startswith("3 pairs: several answers")
        assert said["verbatim"] == "2 of 3 agree"
        assert "left over" not in said
        assert found.only_left + found.only_right == ()
    assert "one to several" not in dict(figures(finding(often, often)))


def test_repeats_that_are_left_over_are_counted() -> None:
    """Where both sides have several; an answer to a request that the other side lacks altogether is none of them."""
    left = [line("q", answer("a"))] * 4 + [line("only", answer("a"))]
    said = dict(figures(finding(left, [line("q", answer("a"))] * 2)))

    assert said["matched"].startswith("2 pairs")
    assert said["left over"] == "2 in A, 0 in B: the other side has fewer repeats of their requests"


def test_reasons_have_an_end() -> None:
    """The commonest are told, and the rest is counted: a reason may hold anything, a request's id for one."""
    failures = [line(str(n), None, error=f"request {max(n, 2)} is lost") for n in range(9)]
    said = dict(figures(finding(failures, [line(str(n), answer("a")) for n in range(9)])))["incomparable"]

    assert said.startswith("3: A: request 2 is lost; 1: A: request 3 is lost")
    assert said.endswith("; 2: other reasons")


def test_an_interruption_is_said() -> None:
    """In the notes, and by the exit status of a process that was interrupted."""
    found = replace(example(), interrupted=True)

    assert exit_code(found, fail_on_difference=False) == 130
    assert notes(found)[0].startswith("Interrupted")


def test_what_must_be_said_is_said() -> None:
    """Repeats that are no trials, postures that differ, nothing compared; and nothing where nothing must."""
    twice = finding([line("q", answer("a"))] * 2, [line("q", answer("a"))] * 2)
    postures = [[line("q", answer("a"), determinism={"posture": name})] for name in ("p-1", "p-2")]

    assert "2 pairs of 1 request: repeats" in notes(twice)[0]
    assert "The postures differ" in notes(finding(*postures))[0]
    assert notes(finding([line("q", answer("a"))], [line("r", answer("a"))])) == (
        "Nothing was compared, so nothing is known.",
    )
    assert notes(example()) == ()
