"""Files of requests and answers: what is read, and that whatever is wrong names its line."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from app.comparison.entry import NotComparable
from app.comparison.jsonl import CUT_SHORT, NO_ANSWER, read_file, read_lines
from tests.unit.comparison.made import answer, line, read, request, written

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
MEMBERS = ("path", "url", "request", "body", "answer", "response", "error", "determinism", "custom_id")


@settings(deadline=None)
@given(st.lists(st.binary(max_size=60), max_size=4))
@example([b"[" * 3000])
@example([b'{"request":' + b"[" * 900 + b"]" * 900 + b"}"])
@example([b'{"request": {"seed": ' + b"9" * 5000 + b"}}"])
@example([b'{"path": "/v1/completions", "request": {"prompt": "\xff"}}'])
def test_bytes_are_read_or_named(lines: list[bytes]) -> None:
    """No bytes crash the reader: they are records, or an error with file and line."""
    assert_read_or_named(lines)


@settings(deadline=None)
@given(st.lists(st.dictionaries(st.sampled_from(MEMBERS), JSON | st.just("/v1/completions"), max_size=6), max_size=3))
def test_json_is_read_or_named(lines: list[dict[str, Any]]) -> None:
    """Nor do lines that have our members with anything in them."""
    assert_read_or_named([json.dumps(each).encode() for each in lines])


@settings(deadline=None)
@given(JSON)
def test_answers_are_read_or_named(found: Any) -> None:
    """Nor does an answer of any shape to a good request."""
    assert_read_or_named([json.dumps(line("x", {}) | {"answer": found}).encode()])


def assert_read_or_named(lines: list[bytes]) -> None:
    try:
        records = list(read_lines(lines, "some file"))
    except NotComparable as error:
        assert re.match(r"some file:\d+: \S", str(error))  # noqa: PT017 - either outcome is right
    else:
        assert len(records) <= len(lines)
        assert all((record.output is None) == (record.problem is not None) for record in records)


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ("no json", "not valid JSON"),
        ('["a"]', "not a JSON object"),
        ("{}", "neither 'request' nor 'body'"),
        ('{"request": {}}', "'path' must be /v1/chat/completions or /v1/completions"),
        ('{"path": "/v1/embeddings", "request": {}}', "'path' must be"),
        ('{"path": ["/v1/completions"], "request": {}}', "'path' must be"),
        ('{"path": "/v1/completions", "request": []}', "'request' must be a JSON object"),
        ('{"path": "/v1/completions", "request": {"model": 3}}', "'request': 'model' must be a string"),
        ('{"path": "/v1/completions", "request": {}, "answer": 3}', "'answer' must be a JSON object"),
        ('{"path": "/v1/completions", "request": {}, "answer": {"choices": 3}}', "'answer' is no answer of /v1/comp"),
        ('{"path": "/v1/completions", "request": {}, "determinism": "isolated"}', "'determinism' must be"),
        ('{"path": "/v1/completions", "request": {}, "custom_id": 3}', "'custom_id' must be a string"),
        ('{"custom_id": "a", "response": 3}', "'response' must be a JSON object"),
        ('{"custom_id": "a", "response": {"body": {"object": "list"}}}', "'response.body' is no answer of a known"),
    ],
)
def test_a_bad_line_is_named(bad: str, said: str) -> None:
    """The second line is wrong, and the error says so, and how."""
    with pytest.raises(NotComparable, match=re.escape(said)) as caught:
        list(read_lines([written(line("fine", answer("a"))), bad.encode()], "runs/a.jsonl"))
    assert str(caught.value).startswith("runs/a.jsonl:2: ")


def test_a_line_keeps_the_requests_bytes() -> None:
    """Numbers, escapes and the order of a request's members stay as they are in the file."""
    body = '{"temperature": 0.10, "seed": 18446744073709551615, "prompt": "\\u0041", "model":"m"}'
    (record,) = read_lines([f'{{"path": "/v1/completions", "request": {body}}}'.encode()], "a")

    assert record.request is not None
    assert record.request.body == body.encode()
    assert record.problem == NO_ANSWER


def test_a_line_of_ours() -> None:
    """Request, answer and what the server said of it; line numbers count empty lines too."""
    lines = b"\xef\xbb\xbf\n  \n" + written(line("q", answer("a"), determinism={"mode": "isolated", "peak": 1}))
    (record,) = read_lines(lines.splitlines(keepends=True), "a")

    assert record.line == 3
    assert record.output is not None
    assert record.output.choices[0].text == "a"
    assert record.facts == {"mode": "isolated", "peak": "1"}
    assert record.problem is None


def test_batch_files_are_read() -> None:
    """A batch's requests, its results, and its failures in OpenAI's members."""
    asked, answered, refused, failed = read(
        {"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": request("q")},
        {"custom_id": "1", "response": {"status_code": 200, "body": answer("a")}, "error": None},
        {"custom_id": "2", "response": {"status_code": 429, "body": {"error": {"message": "later"}}}, "error": None},
        {"custom_id": "3", "response": None, "error": {"code": "expired", "message": "too late"}},
    )

    assert asked.request is not None
    assert (asked.custom_id, asked.problem) == ("1", NO_ANSWER)
    assert answered.request is None
    assert answered.output is not None
    assert (refused.problem, failed.problem) == ("HTTP 429: later", "too late")


def test_an_answer_that_is_an_error_is_no_bad_line() -> None:
    """What failed is a record that says why; so is an answer that was cut short."""
    error, text, cut = read(
        line("q", {"error": {"message": "out of memory", "code": 500}}),
        line("q", None, error="the connection broke"),
        line("q", answer("half", finish_reason="abort")),
    )

    assert [error.problem, text.problem, cut.problem] == ["out of memory", "the connection broke", CUT_SHORT]


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    """A missing file, a folder and an empty file are clear errors."""
    (tmp_path / "empty").write_bytes(b"\n")
    for name, said in (("missing", "No such file"), ("", "Is a directory"), ("empty", "there is no line in it")):
        with pytest.raises(NotComparable, match=said):
            read_file(str(tmp_path / name))
