"""Header names of ours, and which headers pass in each direction."""

from collections.abc import Iterable
from typing import Final

from app.reply import Header

ADMISSION: Final = b"x-determinism-admission"
GUARD_KEY: Final = b"x-determinism-guard-key"
PRIORITY: Final = b"x-determinism-priority"
CALLER: Final = b"x-determinism-caller"
QUEUE_TIMEOUT: Final = b"x-determinism-queue-timeout"
FOR_GUARD: Final = frozenset({ADMISSION, GUARD_KEY, PRIORITY, CALLER, QUEUE_TIMEOUT})
"""What a gateway says to a guard. From a client none of it is obeyed, and none of it passes."""

RUN: Final = b"x-determinism-run"
"""The caller's label of a run: the ledger keeps which answers belong to it."""

REQUEST: Final = b"x-determinism-request"
COMMENT_PREFIX: Final = b": determinism "

_FORWARDED: Final = frozenset({b"accept", b"content-type", b"traceparent", b"tracestate", b"user-agent"})
"""What of a caller's headers reaches the engine.

An allow-list: whatever else a caller sends, admission headers among it, does not. The caller's Authorization passes
only where the gateway has no key of its own for the engine.
"""

_FORWARDED_WITH_KEY: Final = _FORWARDED | {b"authorization"}

_HOP_BY_HOP: Final = frozenset(
    {
        b"connection",
        b"content-length",
        b"date",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-connection",
        b"server",
        b"set-cookie",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
        b"x-request-id",
    }
)
"""What of an engine's headers stays behind.

Those that belong to one connection (RFC 9110, 7.6.1), those that our own server writes, cookies, and the request id,
which is the caller's.
"""


def of_fact(fact: tuple[str, object]) -> Header:
    """The header of ours that tells a fact."""
    name, value = fact
    return (f"x-determinism-{name.replace('_', '-')}".encode(), str(value).encode())


def to_engine(
    caller: Iterable[Header], *, request_id: bytes, api_key: bytes | None, ours: Iterable[Header]
) -> list[Header]:
    """The headers of the request to the engine."""
    passed = _FORWARDED if api_key is not None else _FORWARDED_WITH_KEY
    headers = [header for header in caller if header[0] in passed]
    headers.append((b"x-request-id", request_id))
    if api_key is not None:
        headers.append((b"authorization", b"Bearer " + api_key))
    headers += ours
    return headers


def to_caller(engine: Iterable[Header], ours: Iterable[Header]) -> list[Header]:
    """The headers of the answer to the caller. What the engine says of determinism is for the gateway alone."""
    headers = [
        header for header in engine if header[0] not in _HOP_BY_HOP and not header[0].startswith(b"x-determinism-")
    ]
    headers += ours
    return headers
