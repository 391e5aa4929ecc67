"""Reading what came back."""

import json
from typing import Any

import pytest

from app.probe.answer import Answer, Failure, Outcome, Refusal, read_answer
from app.probe.tally import fork

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"


def read(
    document: object, *, status: int = 200, headers: dict[str, str] | None = None, path: str = TEXT, choices: int = 1
) -> Outcome:
    """The outcome of a JSON answer."""
    return read_answer(path, choices, status, headers or {}, json.dumps(document).encode(), 0.5)


def text(
    content: str, ids: list[int] | None = None, *, finish: str | None = "length", index: int = 0
) -> dict[str, Any]:
    """One choice of /v1/completions."""
    return {"index": index, "text": content, "finish_reason": finish, **({} if ids is None else {"token_ids": ids})}


def answer(*choices: dict[str, Any]) -> Answer:
    """An answer that must be readable."""
    outcome = read({"choices": list(choices)}, choices=len(choices))
    assert isinstance(outcome, Answer)
    return outcome


def test_facts_of_an_answer() -> None:
    """Peak, wait and mode come from the headers, the token count from the usage."""
    headers = {
        "x-determinism-mode": "isolated",
        "x-determinism-coresident-peak": "3",
        "x-determinism-admission-wait": "0.25",
    }
    outcome = read({"choices": [text("a b", [1, 2])], "usage": {"completion_tokens": 9}}, headers=headers)

    assert isinstance(outcome, Answer)
    assert (outcome.mode, outcome.coresident_peak, outcome.admission_wait) == ("isolated", 3, 0.25)
    assert (outcome.completion_tokens, outcome.latency) == (9, 0.5)


@pytest.mark.parametrize("said", ["", "-1", "many", "1" * 40, "²"])
def test_a_peak_that_is_no_number_is_unknown(said: str) -> None:
    """A header of another shape is not guessed at."""
    outcome = read({"choices": [text("a", [1])]}, headers={"x-determinism-coresident-peak": said})
    assert isinstance(outcome, Answer)
    assert outcome.coresident_peak is None


@pytest.mark.parametrize("said", ["", "nan", "inf", "-0.5", "soon"])
def test_a_wait_that_is_no_duration_is_unknown(said: str) -> None:
    """Only a finite duration counts as one."""
    outcome = read({"choices": [text("a", [1])]}, headers={"x-determinism-admission-wait": said})
    assert isinstance(outcome, Answer)
    assert outcome.admission_wait is None


def test_equal_text_from_other_tokens_is_another_answer() -> None:
    """Identity is that of the token ids: two tokenisations of one text differ."""
    assert answer(text("ab", [1, 2])).identity != answer(text("ab", [3])).identity


def test_another_finish_reason_is_another_answer() -> None:
    """Equal tokens that ended for another reason differ, and the fork lies at their end."""
    one, other = answer(text("ab", [1, 2])), answer(text("ab", [1, 2], finish="stop"))

    assert one.identity != other.identity
    assert fork(one, other) == 2


def test_fork_is_the_earliest_over_the_choices() -> None:
    """In a list, the choice that differs first places the fork, and choices are compared by their index."""
    one = answer(text("", [1, 2, 3], index=0), text("", [4, 5, 6], index=1))
    other = answer(text("", [4, 9, 6], index=1), text("", [1, 2, 8], index=0))

    assert fork(one, other) == 1


def test_fork_without_token_ids_is_unknown() -> None:
    """Text alone does not say which token differs."""
    assert fork(answer(text("ab")), answer(text("ac"))) is None


@pytest.mark.parametrize(
    ("status", "code"),
    [(503, "determinism_unavailable"), (400, "not_verifiable"), (501, None)],
)
def test_a_mode_that_is_not_offered_is_a_refusal(status: int, code: str | None) -> None:
    """The server's own words are kept, on one line."""
    outcome = read({"error": {"message": "not\n here", "code": code}}, status=status)
    assert outcome == Refusal("not here")


@pytest.mark.parametrize(
    ("status", "document", "said"),
    [
        (503, {"error": {"message": "full", "code": "not_ready"}}, "HTTP 503: full"),
        (400, {"error": {"message": "'x' is unknown", "code": 400}}, "HTTP 400: 'x' is unknown"),
        (404, {"detail": "Not Found"}, 'HTTP 404: {"detail": "Not Found"}'),
        (500, {"error": "flat"}, 'HTTP 500: {"error": "flat"}'),
        (200, {"choices": []}, "the answer is not 1 choice(s) in OpenAI's shape"),
        (200, {"choices": [{"index": 0}]}, "the answer is not 1 choice(s) in OpenAI's shape"),
        (200, {"error": {"message": "late"}}, "the answer is not 1 choice(s) in OpenAI's shape"),
        (200, {"choices": [text("a", [1], finish="abort")]}, "the answer was cut short"),
        (200, {"choices": [text("a", [1], finish=None)]}, "the answer was cut short"),
    ],
)
def test_everything_else_is_a_failure_with_its_reason(status: int, document: object, said: str) -> None:
    """Errors, foreign shapes and answers that were cut short never count as answers."""
    assert read(document, status=status) == Failure(said)


def test_an_error_that_is_no_json_is_cut_to_a_line() -> None:
    """A proxy's page of HTML does not fill the terminal."""
    outcome = read_answer(CHAT, 1, 502, {}, b"<html>\n" + b"x" * 5000, 0.1)

    assert isinstance(outcome, Failure)
    assert outcome.reason.startswith("HTTP 502: <html> xxx")
    assert len(outcome.reason) < 500


def test_an_empty_error_still_says_something() -> None:
    """An empty body gives a reason too."""
    assert read_answer(CHAT, 1, 502, {}, b"", 0.1) == Failure("HTTP 502: no reason given")
