"""Canary files: what is in them, and what is refused with its line."""

import json

import pytest

from app.measuring.canaries import CanaryError, bundled, parse


def test_the_bundled_ones_are_requests() -> None:
    """Both kinds are among them, each with its path and a temperature of 0."""
    canaries = bundled()
    assert len(canaries) >= 8
    assert {canary.path for canary in canaries} == {"/v1/chat/completions", "/v1/completions"}
    for canary in canaries:
        body = json.loads(canary.body("m"))
        assert (body["model"], body["temperature"]) == ("m", 0)
        assert body["max_tokens"] > 0


def test_lines_are_requests_and_comments_are_skipped() -> None:
    """What a line says itself rules."""
    text = '# a comment\n\n{"prompt": "x\u2028y", "temperature": 0.7, "seed": 1}\n  {"messages": [{}]}\n'
    first, second = parse(text, "f")
    assert dict(first.members) == {"temperature": 0.7, "max_tokens": 48, "prompt": "x\u2028y", "seed": 1}
    assert (first.path, second.path) == ("/v1/completions", "/v1/chat/completions")


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("{", "not valid JSON"),
        ('{"prompt": NaN}', "not valid JSON"),
        ("[1]", "must be a JSON object"),
        ("[" * 5000, "not valid JSON"),
        ("{}", "a canary has 'messages'"),
        ('{"messages": []}', "a canary has 'messages'"),
        ('{"prompt": null}', "a canary has 'messages'"),
        ('{"prompt": "a", "messages": [{}]}', "either 'messages' or"),
        ('{"messages": "hello"}', "a canary has 'messages'"),
        ('{"prompt": "a", "temperature": 1}', "without a 'seed'"),
        ('{"prompt": "a", "stream_options": {}}', "'stream_options' is the gateway's"),
        ('{"prompt": "a", "model": "m"}', "'model' is the gateway's"),
        ('{"prompt": "a", "stream": true}', "'stream' is the gateway's"),
        ('{"prompt": "a", "determinism": "isolated"}', "'determinism' is the gateway's"),
    ],
)
def test_a_bad_line_is_named(line: str, why: str) -> None:
    """With the file and the number of the line as an editor counts it."""
    with pytest.raises(CanaryError, match=f"^mine.jsonl, line 3: .*{why}"):
        parse(f'# first\n{{"prompt": "a"}}\n{line}\n', "mine.jsonl")


def test_a_file_without_any_is_refused() -> None:
    """It would mean that nothing is measured."""
    with pytest.raises(CanaryError, match="holds no canary"):
        parse("# nothing\n\n", "f")
