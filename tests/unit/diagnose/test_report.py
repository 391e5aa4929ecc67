"""The sentences that terminal, JSON and page share, and the exit status."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from app.determinism.statistics import rate_text
from app.diagnose.advice import advise
from app.diagnose.attribution import Attribution
from app.diagnose.findings import Count, Finding, Layer, State, Suspect
from app.diagnose.forks import gather
from app.diagnose.investigation import Investigation
from app.diagnose.ladder import Record
from app.diagnose.planning import Course
from app.diagnose.report import LAYER_NAMES, TITLES, Report, confidence, counted, doubts, summary
from app.diagnose.rungs import Extent, Rung
from app.diagnose.verdict import Verdict
from tests.unit.diagnose.samples import deployment, evidence


def finding(suspect: Suspect, state: State, *, tokens: int = 0, bits: int = 0, n: int = 12, **members: Any) -> Finding:
    """A finding with so many differences of n."""
    return Finding(suspect, state, "what was compared", Count(tokens, n), Count(max(tokens, bits), n), **members)


def verdict(*findings: Finding) -> Verdict:
    """A verdict without forks."""
    return Verdict(findings, gather([]))


def report(
    *findings: Finding,
    records: Mapping[Rung, Record] | None = None,
    found: Mapping[str, Any] | None = None,
    **members: Any,
) -> Report:
    """A whole report around some findings."""
    judged = verdict(*findings)
    return Report(
        investigation=Investigation("http://server"),
        deployment=deployment(**{"gateway": True, "alone_proven": True, **(found or {})}),
        course=Course(Extent((2,), (Rung.ALONE,)), 12, {}),
        evidence=evidence(rungs=(), records={} if records is None else records),
        verdict=judged,
        cures=(),
        advice=advise(judged, (), gateway=True),
        seconds=1.0,
        **members,
    )


PRESENT = finding(Suspect.BATCH_SHAPE, State.PRESENT, tokens=3)
LOGPROBS = finding(Suspect.BATCH_SHAPE, State.LOGPROBS_ONLY, bits=3)
NOT_SEEN = finding(Suspect.RUN_TO_RUN, State.NOT_SEEN)
UNDECIDED = finding(Suspect.KV_LENGTH, State.UNDECIDED, tokens=1)
UNTESTED = Finding(Suspect.PREFIX_CACHE, State.UNTESTED, "it was not tried")


@pytest.mark.parametrize(
    ("findings", "never", "diverged"),
    [
        ((NOT_SEEN,), 0, 0),
        ((LOGPROBS, NOT_SEEN), 0, 0),
        ((PRESENT, NOT_SEEN), 0, 1),
        ((UNDECIDED,), 0, 1),
        ((UNTESTED, NOT_SEEN), 0, 0),
        ((UNTESTED,), 2, 2),
        ((), 2, 2),
    ],
    ids=["nothing seen", "logprobs only", "present", "undecided tokens", "some tested", "none tested", "no finding"],
)
def test_the_exit_status(findings: tuple[Finding, ...], never: int, diverged: int) -> None:
    """2 where nothing was tested; 1 where tokens changed and that is to fail; else 0; interrupted is 130 always."""
    assert report(*findings).exit_code("never") == never
    assert report(*findings).exit_code("diverged") == diverged
    assert {report(*findings, interrupted=True).exit_code(fail_on) for fail_on in ("never", "diverged")} == {130}


def test_counts_come_with_their_bound() -> None:
    """Tokens as a rate with its bound, logprobs as a count, and the largest difference."""
    assert counted(finding(Suspect.BATCH_SHAPE, State.PRESENT, tokens=3, bits=9, delta=0.123)) == (
        f"tokens {rate_text(3, 12)}; logprobs 9 of 12, by up to 0.12 nats"
    )
    assert counted(finding(Suspect.BATCH_SHAPE, State.NOT_SEEN, delta=0.0)) == (
        f"tokens {rate_text(0, 12)}; logprobs 0 of 12"
    )


def test_unknown_logprobs_are_not_counted() -> None:
    """A server that tells none is not said to have had equal ones."""
    assert counted(finding(Suspect.BATCH_SHAPE, State.PRESENT, tokens=3)) == f"tokens {rate_text(3, 12)}"


@pytest.mark.parametrize("suspect", [Suspect.TIES, Suspect.FAULT])
def test_forks_are_counted_as_such(suspect: Suspect) -> None:
    """What is counted of ties and faults are forks and repeats, not tokens and logprobs."""
    assert counted(finding(suspect, State.PRESENT, tokens=3)) == rate_text(3, 12)
    assert counted(Finding(suspect, State.NOT_SEEN, "no answer forked")) == "-"


@pytest.mark.parametrize("suspect", Suspect)
def test_an_untested_suspect_has_no_figures(suspect: Suspect) -> None:
    """Nothing compared is no rate and no chance."""
    assert counted(Finding(suspect, State.UNTESTED, "why")) == "-"
    assert confidence(Finding(suspect, State.UNTESTED, "why")) == "-"


@pytest.mark.parametrize(
    ("p", "attainable", "shown"),
    [
        (0.0213, 0.001, "p = 0.021"),
        (0.001, 0.001, "p \u2264 0.001"),
        (0.0005, 0.001, "p \u2264 0.0005"),
        (1.0, 0.1, "p = 1"),
    ],
)
def test_chance_is_told_as_a_bound_where_it_is_one(p: float, attainable: float, shown: str) -> None:
    """A p at the least that could be reached may be smaller in truth."""
    assert (
        confidence(finding(Suspect.KV_LENGTH, State.PRESENT, bits=3, attribution=Attribution(p, attainable))) == shown
    )


def test_without_a_difference_there_is_no_chance_to_tell() -> None:
    """Equal answers have their bound beside the count, and no p; nor has what needs no test."""
    equal = finding(Suspect.KV_LENGTH, State.NOT_SEEN, attribution=Attribution(1.0, 1.0))

    assert confidence(equal) == "-"
    assert confidence(finding(Suspect.RUN_TO_RUN, State.PRESENT, tokens=2)) == "-"


def test_every_layer_has_its_sentence() -> None:
    """Four, in their order, each by number and name, whatever there is to say."""
    sentences = summary(verdict())

    names = [f"{layer.value} {LAYER_NAMES[layer]}" for layer in Layer if layer is not Layer.NONE]
    assert [sentence.partition(":")[0] for sentence in sentences] == names
    assert all(sentence.endswith(": untested") for sentence in sentences)
    assert set(TITLES) == set(Suspect)


@pytest.mark.parametrize(
    ("findings", "said"),
    [
        ((PRESENT, UNDECIDED, UNTESTED), "present (the batch's shape); undecided (the neighbours' length (KV split))"),
        (
            (LOGPROBS, UNDECIDED),
            "changes logprobs, no token (the batch's shape); undecided (the neighbours' length (KV split))",
        ),
        ((UNDECIDED, UNTESTED), "undecided (the neighbours' length (KV split))"),
        ((finding(Suspect.BATCH_SHAPE, State.NOT_SEEN), UNTESTED), "not seen (the batch's shape)"),
        ((UNTESTED,), "untested"),
    ],
)
def test_a_layer_is_what_its_suspects_are(findings: tuple[Finding, ...], said: str) -> None:
    """Present, then logprobs alone, then undecided; not seen where none of them holds; each with its suspects."""
    (sentence,) = (each for each in summary(verdict(*findings, NOT_SEEN)) if each.startswith("L2"))

    assert sentence == f"L2 operator: {said}"


def test_all_suspects_of_a_state_are_named() -> None:
    """Two that act are both in the sentence."""
    both = verdict(PRESENT, finding(Suspect.PREFIX_CACHE, State.PRESENT, tokens=1))

    assert "present (the batch's shape, the prefix cache)" in summary(both)[1]


def test_a_fault_is_no_layers() -> None:
    """What belongs to no layer makes no layer present."""
    assert all("present" not in each for each in summary(verdict(finding(Suspect.FAULT, State.PRESENT, tokens=1))))


def test_a_run_without_a_blemish_leaves_no_doubt() -> None:
    """Nothing is said beside the findings of a whole run on a gateway."""
    assert doubts(report(NOT_SEEN, records={Rung.ALONE: Record(rounds=3)})) == ()


def test_what_weakens_the_findings_is_said() -> None:
    """Unsaid things, an unproven alone, other replicas' answers, failed requests, a rung cut short, an interruption."""
    said = doubts(
        report(
            NOT_SEEN,
            records={
                Rung.KV: Record(rounds=1, reason="the budget was spent"),
                Rung.CACHE: Record(rounds=3, troubles=["HTTP 500: first", "HTTP 429: last"]),
            },
            found={"alone_proven": False, "unsaid": ("it gives no logprobs",)},
            left_out={"r-2": 7},
            interrupted=True,
        )
    )

    assert said[0] == "Not told by the server: it gives no logprobs."
    assert said[1].startswith("That requests ran alone is an assumption")
    assert said[2] == "7 answers came from r-2 and are in no finding: they are another replica's."
    assert said[3:5] == (
        "kv: cut short after 1 rounds, the budget was spent.",
        "cache: 2 requests without an answer (HTTP 429: last).",
    )
    assert said[5].startswith("Interrupted")
    assert len(said) == 6


def test_answers_shorter_than_asked_for_are_said() -> None:
    """A context that leaves no room for --tokens cuts them, and not in silence."""
    made = report(NOT_SEEN)
    asked = [replace(made, investigation=replace(made.investigation, tokens=tokens)) for tokens in (12, 40)]

    assert [doubts(each) for each in asked] == [
        (),
        ("--tokens 40 does not fit into the model's context: answers have 12 tokens.",),
    ]


def test_answers_that_were_not_alone_are_said() -> None:
    """How many the server says shared the engine otherwise than asked, and that no finding holds them."""
    (said,) = doubts(report(NOT_SEEN, crowded=5))

    assert said.startswith("Of 5 answers the server says")
    assert "in no finding" in said
