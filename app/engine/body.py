"""Request bodies as the guard looks at them: all of one before it queues, so that no half-sent body holds a ticket."""

import asyncio
import json
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

from app.asgi import Receive
from app.engine.asgi import BodyTooLargeError, Inbox, Refusal

RESPONSES_PATH: Final = "/v1/responses"

_DISCONNECT: Final = "http.disconnect"

_T = TypeVar("_T")


class ClientLeftError(Exception):
    """The client has gone before its answer was complete; nobody is left to tell."""


async def take_in(inbox: Inbox, path: str, patience: float) -> Refusal | None:
    """Wait until the whole body is in the inbox; None when it may be served, else why not.

    Raises ClientLeftError, and TimeoutError is never: a body that takes over ``patience`` seconds is a refusal.
    """
    try:
        parts = await inbox.body(patience)
    except BodyTooLargeError:
        return Refusal(413, "request_too_large", f"the body is over {inbox.limit} bytes")
    except TimeoutError:
        return Refusal(408, "request_timeout", f"the body did not arrive within {patience:g} s")
    if parts is None:
        raise ClientLeftError
    return _background(b"".join(parts)) if path == RESPONSES_PATH else None


def _background(body: bytes) -> Refusal | None:
    """Why a POST to /v1/responses may not be served: it would not end with its handler, or cannot be read.

    vLLM reads the body with the same parser, but takes more than true for true ("yes", 1), so only what is surely false
    passes, and nothing that cannot be read here.
    """
    try:
        content = json.loads(body)
    except (ValueError, RecursionError):
        return Refusal(400, "invalid_request", "the body is not JSON, or too deeply nested")
    # Not `in`: 0 equals False, and what is no object vLLM refuses itself.
    if not isinstance(content, dict) or content.get("background") is None or content["background"] is False:
        return None
    message = (
        "background must be false or absent: this replica is guarded, and work that goes on after its answer would "
        "run unseen beside requests that were promised to be alone"
    )
    return Refusal(400, "invalid_request", message, param="background")


async def read_whole(receive: Receive) -> bytes:
    """The body that `take_in` left in the inbox; raises ClientLeftError."""
    parts: list[bytes] = []
    while True:
        message = await receive()
        if message["type"] == _DISCONNECT:
            raise ClientLeftError
        parts.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(parts)


async def departure(receive: Receive) -> None:
    """Wait for as long as the client stays, then raise ClientLeftError. To be called after its body was read."""
    while (await receive())["type"] != _DISCONNECT:
        pass
    raise ClientLeftError


async def attended(receive: Receive, work: Coroutine[Any, Any, _T]) -> _T | None:
    """What ``work`` gives, which raises nothing of its own; None where the client left first, which cancels it.

    To be called after the client's body was read.
    """
    found: _T | None = None
    try:
        async with asyncio.TaskGroup() as tasks:
            leaving = tasks.create_task(departure(receive))
            found = await work
            leaving.cancel()
    except* ClientLeftError:
        pass
    return found
