"""The address of a gateway, what its errors say, and keys that no header can carry."""

import httpx
import pytest

from app.comparison.entry import NotComparable
from app.comparison.server import base_url, header_value, message_of, reason_of


@pytest.mark.parametrize("given", ["http://h:1", "http://h:1/", "http://h:1/v1", "http://h:1/v1/"])
def test_an_address_has_one_form(given: str) -> None:
    """With or without the version and a slash."""
    assert base_url(given) == "http://h:1"


@pytest.mark.parametrize("given", ["h:1", "ftp://h", "http://", "http://u:p@h", "http://h?x", "http://h:99999", "\x00"])
def test_what_is_no_address_is_refused(given: str) -> None:
    """The error names the option."""
    with pytest.raises(NotComparable, match=r"--url: .* is not an http or https address"):
        base_url(given)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b'{"error": {"message": "no\\nroom"}}', "no room"),
        (b'{"detail": "x"}', '{"detail": "x"}'),
        (b"[]", "[]"),
        (b"\xff", "\ufffd"),
        (b"", "no reason given"),
        (b"x" * 500, "x" * 400 + "..."),
    ],
)
def test_an_errors_message(body: bytes, said: str) -> None:
    """OpenAI's, or what there is; one line of bounded length."""
    assert message_of(body) == said


def test_reasons_of_transport() -> None:
    """What a person can act on, without a traceback."""
    assert reason_of(httpx.ReadTimeout("")) == "no answer in time"
    assert reason_of(httpx.ConnectError("")) == "connection refused or host unknown"
    assert reason_of(httpx.ReadError("")) == "the connection broke (ReadError)"


def test_a_key_must_fit_a_header() -> None:
    """The error names the option and not the key; an empty key is none."""
    assert header_value("--key", "abc") == "abc"
    assert header_value("--key", "") is None
    assert header_value("--key", None) is None
    for key in ("k\u00e9y", "a\nb"):
        with pytest.raises(NotComparable, match="--key") as caught:
            header_value("--key", key)
        assert key not in str(caught.value)
