"""What is kept of texts: nothing that looks like a secret, never more than the limit, nothing where the hook fails."""

import json
import logging
import time

import pytest

from app.determinism.output import Choice, Output, ToolCall
from app.observation.texts import MASK, Texts, mask_secrets, read_kept

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


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMI/K7MDENG next", f"AWS_SECRET_ACCESS_KEY={MASK} next"),
        ("aws_secret_access_key=wJalrXUtnFEMIK7MDENG", f"aws_secret_access_key={MASK}"),
        ("API_KEY=abcdef0123456789", f"API_KEY={MASK}"),
        ('api_key": "0123456789abcdef"', f'api_key": "{MASK}"'),
        ("export DB_PASSWORD=correcthorsebattery", f"export DB_PASSWORD={MASK}"),
        ("Password: correcthorse99", f"Password: {MASK}"),
        ('{"apiKey":"abcdef0123456789","b":1}', f'{{"apiKey":"{MASK}","b":1}}'),
        ('{"secret":"abcdef0123456789"}', f'{{"secret":"{MASK}"}}'),
        ('{\\"password\\":\\"abcdefgh12\\",\\"b\\":1}', f'{{\\"password\\":\\"{MASK}\\",\\"b\\":1}}'),
        ("clientSecret = 'it has blanks'", f"clientSecret = '{MASK}'"),
        ("access_token => abcdefgh12", f"access_token => {MASK}"),
        (r"password=abc\def\ghi, next", f"password={MASK}, next"),
        ("authorization: bearer abcdefghijklmnop1234", f"authorization: bearer {MASK}"),
        ("Bearer abcdefghijklmnop1234", f"Bearer {MASK}"),
        ("Authorization: Basic dXNlcjpwYXNzd29yZA==", f"Authorization: Basic {MASK}"),
        ("postgres://user:s3cr3t@db/x", f"postgres://user:{MASK}@db/x"),
        ("redis://:hunter2@cache", f"redis://:{MASK}@cache"),
    ],
)
def test_what_is_named_as_a_secret_is_masked(text: str, kept: str) -> None:
    """In any case of letters, in shells, programs, JSON and URLs; its name and what holds it stay."""
    assert mask_secrets(text) == kept


@pytest.mark.parametrize(
    "text", ["max_tokens: 12345678", "http://host:8080/a@b", "a token of thanks", "passwords = 12345678", "basic needs"]
)
def test_what_is_named_alike_is_left_alone(text: str) -> None:
    """Counts, ports and prose."""
    assert mask_secrets(text) == text


@pytest.mark.parametrize(
    "piece",
    ["eyJ-", "eyJabcdefghijklmn.", "-----BEGIN A", 'password="', "token=\\", "api_key  ", "://a:", "bearer ", "secret"],
)
def test_no_text_is_slow_to_redact(piece: str) -> None:
    """Its time grows with its length, and not with its length times itself: twenty times the text takes no hundred."""

    def took(repeats: int) -> float:
        text, times = piece * repeats, []
        for _ in range(3):
            began = time.process_time()
            mask_secrets(text)
            times.append(time.process_time() - began)
        return min(times)

    assert took(40_000) < max(100 * took(2_000), 0.05)


def test_of_a_long_text_the_beginning_is_redacted() -> None:
    """Twice the limit and a little: what a model says beyond is no work, and no part of what is kept."""
    seen: list[int] = []

    def hook(text: str) -> str:
        seen.append(len(text))
        return text

    kept = json.loads(Texts(1000, hook)(output("x" * 10_000_000)) or "")
    assert kept == ["x" * 1000 + "…"]
    assert seen == [3024]


def test_a_secret_that_the_cut_breaks_is_not_kept() -> None:
    """Where redaction makes room, what stands before the cut may be the beginning of a secret: it goes."""
    text = PEM.format("BEGIN") + "M" * 2000 + PEM.format("END") + " fine " * 140 + "https://user:" + "p" * 999 + "@h"
    (kept,) = json.loads(Texts(1000, mask_secrets)(output(text)) or "")
    assert kept.startswith(f"{MASK} fine  fine")
    assert kept.endswith("…")
    assert "pp" not in kept


def test_each_choice_is_kept_redacted_and_cut() -> None:
    """A list of texts; the limit is shared, long ones have what short ones leave, and no character is cut in half."""
    keep = Texts(12, str.upper)
    assert json.loads(keep(output("abc", "defghijklm")) or "") == ["ABC", "DEFGHIJKL…"]
    assert json.loads(keep(output("abcdefg", "defghijkl")) or "") == ["ABCDEF…", "DEFGHI…"]
    assert json.loads(Texts(4, str)(output("ééé")) or "") == ["éé…"]


def test_the_parts_of_a_choice_are_kept_apart() -> None:
    """What it thought, said, refused and called, each redacted and cut for itself; what is empty is left out."""
    call = ToolCall("find", '{"password":"abcdefgh12"}')
    whole = Choice(0, "the answer", "a thought", "a refusal", (call,), "stop")
    called = Choice(1, tool_calls=(ToolCall("f", "{}"),), finish_reason="tool_calls")
    kept = Texts(1000, mask_secrets)(Output.of([whole, called, Choice(2, "plain", finish_reason="stop")])) or ""

    assert json.loads(kept) == [
        {
            "reasoning": "a thought",
            "text": "the answer",
            "refusal": "a refusal",
            "tool_calls": [["find", f'{{"password":"{MASK}"}}']],
        },
        {"tool_calls": [["f", "{}"]]},
        "plain",
    ]
    assert [choice.flow for choice in read_kept(kept)] == [
        whole.flow.replace("abcdefgh12", MASK),
        called.flow,
        "plain",
    ]
    assert json.loads(Texts(12, str)(Output.of([Choice(0, "said", "thought long", finish_reason="stop")])) or "") == [
        {"reasoning": "thought …", "text": "said"}
    ]


def test_kept_texts_of_before_are_read() -> None:
    """A list of texts; half a character, which JSON can carry, becomes a question mark."""
    assert [(choice.position, choice.text) for choice in read_kept(json.dumps(["one", "tw\ud800"]))] == [
        (0, "one"),
        (1, "tw?"),
    ]


@pytest.mark.parametrize(
    "kept", ["no json", "3", "null", '"text"', '{"text": "x"}', "[1]", '[{"text": 1}]', '[{"tool_calls": [["f"]]}]']
)
def test_what_was_never_kept_is_refused(kept: str) -> None:
    """Whatever another program put there."""
    with pytest.raises((ValueError, TypeError)):
        read_kept(kept)


def test_a_hook_that_fails_keeps_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """The answer is not kept, which is logged without it."""

    def broken(_text: str) -> str:
        raise RuntimeError(f"no: {_text}")

    with caplog.at_level(logging.ERROR):
        assert Texts(99, broken)(output("a secret answer")) is None
    assert "redaction hook failed" in caplog.text
    assert "secret answer" not in caplog.text
    assert "RuntimeError" in caplog.text
