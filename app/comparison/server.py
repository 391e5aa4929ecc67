"""The gateway that a command asks: its address, and what its errors say. httpx is fit for it: nothing is cancelled."""

from typing import Final

import httpx
import orjson

from app.comparison.entry import NotComparable

_HIGHEST_PORT: Final = 65_535
_REASON_CHARACTERS: Final = 400


def base_url(text: str) -> str:
    """The address without a slash or ``/v1`` at its end. Raises NotComparable for what is none."""
    try:
        url = httpx.URL(text)
        plain = not (url.query or url.fragment or url.userinfo) and (url.port or 1) <= _HIGHEST_PORT
        valid = plain and url.scheme in {"http", "https"} and bool(url.host)
    except (httpx.InvalidURL, UnicodeError):
        valid = False
    if not valid:
        raise NotComparable(f"--url: {text!r} is not an http or https address")
    return text.rstrip("/").removesuffix("/v1").rstrip("/")


def header_value(name: str, value: str | None) -> str | None:
    """A key as a header can carry it. Raises NotComparable naming the option, and never the key."""
    if value is not None and not (value.isascii() and value.isprintable()):
        raise NotComparable(f"{name}: it holds characters that no HTTP header can carry")
    return value or None


def message_of(body: bytes) -> str:
    """The message of an error in OpenAI's shape, or what there is of a body in another; one line."""
    try:
        text = str(orjson.loads(body)["error"]["message"])
    except (orjson.JSONDecodeError, LookupError, TypeError):
        text = body.decode("utf-8", "replace")
    words = " ".join(text.split()) or "no reason given"
    return words if len(words) <= _REASON_CHARACTERS else f"{words[:_REASON_CHARACTERS]}..."


def reason_of(error: httpx.HTTPError) -> str:
    """What went wrong on the way."""
    if isinstance(error, httpx.TimeoutException):
        return "no answer in time"
    if isinstance(error, httpx.ConnectError):
        return "connection refused or host unknown"
    return f"the connection broke ({type(error).__name__})"
