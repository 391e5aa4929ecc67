"""The report as a JSON document: every figure of it, no secret, and nothing that JSON cannot say."""

import json
from dataclasses import replace
from typing import Any

import pytest

from app.determinism.mode import Mode
from app.determinism.statistics import CONFIDENCE, clopper_pearson_upper
from app.diagnose.attribution import Attribution
from app.diagnose.document import FORMAT, to_document
from app.diagnose.findings import State
from app.diagnose.investigation import Investigation
from app.diagnose.report import TITLES, Report, doubts, summary
from app.diagnose.rungs import Rung
from app.probe.tally import Status
from tests.unit.diagnose.made import CURES, DEPLOYMENT, OTHER, URL, cure, realistic, report

REPORT = realistic()


def document(whole: Report = REPORT, exit_code: int = 0) -> Any:
    """What a reader of the JSON gets; it raises where JSON has no word for a value."""
    return json.loads(json.dumps(to_document(whole, exit_code), allow_nan=False))


def count(k: int, n: int) -> dict[str, Any]:
    """A count with its exact bound."""
    return {"k": k, "n": n, "below": clopper_pearson_upper(k, n) if n else None, "confidence": CONFIDENCE}


def test_it_says_what_it_is() -> None:
    """A format with its version, the server, how the run ended."""
    found = document(exit_code=1)

    assert (found["format"], found["url"], found["model"]) == (FORMAT, URL, DEPLOYMENT.model)
    assert (found["exit_code"], found["interrupted"], found["seconds"]) == (1, False, 241.0)
    assert document(replace(REPORT, interrupted=True))["interrupted"] is True


def test_the_run_can_be_repeated_from_it() -> None:
    """Prompts, tokens, sizes, sampling, replicas and budget."""
    investigation = replace(REPORT.investigation, temperature=0.8, seed=7, budget=60.0)

    assert document(replace(REPORT, investigation=investigation))["settings"] == {
        "prompts": list(DEPLOYMENT.prompts),
        "tokens": REPORT.course.tokens,
        "batch_sizes": list(REPORT.course.extent.sizes),
        "temperature": 0.8,
        "seed": 7,
        "replicas": [OTHER],
        "budget_seconds": 60.0,
    }


def test_the_server_is_described_as_it_was_found() -> None:
    """What is not known is null."""
    assert document()["deployment"] == {
        "gateway": True,
        "alone_proven": True,
        "posture": "p-1234",
        "context_tokens": 2048,
        "seconds_per_token": 0.04,
        "logprobs": True,
        "token_ids": True,
    }
    bare = replace(DEPLOYMENT, posture=None, context=None)
    unknown = document(replace(REPORT, deployment=bare))["deployment"]
    assert (unknown["posture"], unknown["context_tokens"]) == (None, None)


def test_every_finding_is_there_with_its_evidence() -> None:
    """Counts with bounds, the largest difference, the p-value and the least one that was possible."""
    chance = replace(REPORT.verdict.findings[0], attribution=Attribution(p=0.3, attainable=0.001))
    whole = replace(REPORT, verdict=replace(REPORT.verdict, findings=(chance, *REPORT.verdict.findings)))
    found = document(whole)["findings"]

    for each, finding in zip(found, whole.verdict.findings, strict=True):
        assert each == {
            "layer": finding.layer.value,
            "suspect": finding.suspect.value,
            "title": TITLES[finding.suspect],
            "state": finding.state.value,
            "reason": finding.reason,
            "tokens": count(finding.tokens.k, finding.tokens.n),
            "logprobs": count(finding.bits.k, finding.bits.n),
            "largest_difference_nats": finding.delta,
            "p": None if finding.attribution is None else finding.attribution.p,
            "p_attainable": None if finding.attribution is None else finding.attribution.attainable,
        }
    assert any(each["p"] is not None and each["tokens"]["k"] for each in found)
    assert document()["diverged"] is True
    assert document()["layers"] == list(summary(REPORT.verdict))


def test_what_was_not_tested_has_no_bound() -> None:
    """Nothing of nothing bounds nothing; the reason is there."""
    found = document(report({}))

    assert {each["state"] for each in found["findings"]} == {State.UNTESTED.value}
    assert all(each["tokens"] == each["logprobs"] == count(0, 0) for each in found["findings"])
    assert all(each["reason"] for each in found["findings"])
    assert found["diverged"] is False


def test_every_rung_is_there() -> None:
    """With what it took and what it did not get, or why it was left out."""
    found = document()["rungs"]

    assert list(found) == [rung.value for rung in Rung]
    for rung, record in REPORT.evidence.records.items():
        assert found[rung.value] == {
            "rounds": record.rounds,
            "tokens": record.tokens,
            "requests": record.requests,
            "seconds": record.seconds,
            "reason": record.reason,
            "without_answer": record.troubles,
        }
    assert found["kv"]["without_answer"] == ["HTTP 429: slow down"]
    assert found["sampler"]["reason"] == "nothing is sampled without a seed"
    assert (found["sampler"]["rounds"], found["sampler"]["requests"], found["sampler"]["tokens"]) == (0, 0, None)


def test_every_fork_is_there_with_its_kind() -> None:
    """Where answers part, how close the choice was, and by what limit that was judged."""
    forks = REPORT.verdict.forks
    found = document()["forks"]

    assert (found["noise_nats"], found["tie_limit_nats"]) == (forks.noise, forks.limit)
    assert (found["tokens"], found["tokens_within_limit"]) == (forks.tokens, forks.exposed)
    assert forks.forks
    assert [(each["prompt"], each["token"], each["margin_nats"]) for each in found["list"]] == [
        (fork.prompt, fork.token, fork.margin) for fork in forks.forks
    ]
    assert [each["kind"] for each in found["list"]] == [forks.closeness(fork).value for fork in forks.forks]


def test_every_mode_is_there() -> None:
    """With figures where there are any, else with null and the reason."""
    whole = replace(
        REPORT, cures=(*CURES[:2], cure(Mode.ISOLATED, 1, 8, 41.0, status=Status.FAILED, reason="HTTP 500"))
    )

    assert document(whole)["modes"] == [
        {
            "mode": "standard",
            "diverged": count(21, 64),
            "tokens_per_second": 212.0,
            "added_wait_seconds": {"median": 0.25, "p95": 0.5},
            "reason": None,
        },
        {
            "mode": "invariant",
            "diverged": count(0, 0),
            "tokens_per_second": None,
            "added_wait_seconds": None,
            "reason": "not offered here: no replica has batch_invariance",
        },
        {
            "mode": "isolated",
            "diverged": count(1, 8),
            "tokens_per_second": 41.0,
            "added_wait_seconds": {"median": 0.25, "p95": 0.5},
            "reason": None,
        },
    ]


def test_the_advice_can_be_sent_as_it_stands() -> None:
    """Header and body are what a request takes."""
    advice = REPORT.advice
    assert advice.mode == "verified"

    assert document()["advice"] == {
        "sentences": list(advice.sentences),
        "mode": "verified",
        "header": {"x-determinism-mode": "verified"},
        "body": {"determinism": "verified"},
    }


def test_what_must_be_said_beside_it_is_there() -> None:
    """The same doubts as at a terminal."""
    assert document()["notes"] == list(doubts(REPORT))
    assert any("r-2" in note for note in document()["notes"])


@pytest.mark.parametrize("whole", [REPORT, report({})], ids=["whole", "empty"])
def test_the_key_is_nowhere(whole: Report) -> None:
    """Whatever was found."""
    secret = replace(whole, investigation=replace(whole.investigation, api_key="sk-very-secret"))

    assert "sk-very-secret" not in json.dumps(document(secret))


def test_every_member_is_there_whatever_was_found() -> None:
    """A reader finds the same names in each document."""
    empty = report({}, investigation=Investigation(URL), deployment=replace(DEPLOYMENT, gateway=False))

    assert document(empty).keys() == document().keys()
    assert document(empty)["forks"].keys() == document()["forks"].keys()
    assert document(empty)["advice"].keys() == document()["advice"].keys()
