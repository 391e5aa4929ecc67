"""What is kept of texts: nothing that looks like a key, never more than the limit, nothing where the hook fails."""

import json
import logging

import pytest

from app.determinism.output import Choice, Output
from app.observation.texts import MASK, Texts, mask_secrets

PEM = "-----{} RSA PRIVATE " + "KEY-----"


def output(*texts: str) -> Output:
    """A whole answer with these choices."""
    return Output.of([Choice(index, text, finish_reason="stop") for index, text in enumerate(texts)])


@pytest.mark.parametrize(
    "secret",
    [
        "sk-proj-abcdefghijklmnop0123",
        "ghp_" + "a1" * 18,
        "hf_" + "x" * 34,
        "AKIA" + "A1B2" * 4,
        "xoxb-123456789012-abcdef",
        "xapp-1-A012-3456",
        "sk_live_abcdefghijklmnop",
        "AIza" + "Sy" * 17,
        "glpat-abcdefghij0123456789",
        "npm_" + "a1" * 18,
        "Bearer abcdefghijklmnop1234",
        "aws_secret_access_key=wJalrXUtnFEMIK7MDENG",
        'api_key": "0123456789abcdef',
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJlMTIz",
        PEM.format("BEGIN") + "MIIE" + PEM.format("END"),
        PEM.format("BEGIN") + "cut off",
    ],
)
def test_what_looks_like_a_key_is_masked(secret: str) -> None:
    """And what stands around it stays."""
    assert mask_secrets(f"use {secret} there") in {f"use {MASK} there", f"use {MASK}"}


@pytest.mark.parametrize("text", ["task-force of ten", "risk-averse", "a sk- b", "haf_x", "eyJ.a.b", "AKIA"])
def test_what_does_not_is_left_alone(text: str) -> None:
    """Ordinary words that begin alike."""
    assert mask_secrets(text) == text


@pytest.mark.parametrize("before", ["\\n", "\\t", "_", "é", '"', "(", "="])
def test_a_key_is_seen_whatever_stands_before_it(before: str) -> None:
    """The arguments of a tool call hold a line break as two characters."""
    assert "0123" not in mask_secrets(f"A{before}sk-{'abcd' * 4}0123")


def test_each_choice_is_kept_redacted_and_cut() -> None:
    """A list of texts; the limit is shared, and no character is cut in half."""
    keep = Texts(12, str.upper)
    assert json.loads(keep(output("abc", "defghijkl")) or "") == ["ABC", "DEFGHI…"]
    assert json.loads(Texts(4, str)(output("ééé")) or "") == ["éé…"]


def test_a_hook_that_fails_keeps_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """The answer is not kept, which is logged without it."""

    def broken(_text: str) -> str:
        raise RuntimeError(f"no: {_text}")

    with caplog.at_level(logging.ERROR):
        assert Texts(99, broken)(output("a secret answer")) is None
    assert "redaction hook failed" in caplog.text
    assert "secret answer" not in caplog.text
    assert "RuntimeError" in caplog.text
