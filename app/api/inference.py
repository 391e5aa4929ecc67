"""The hot path's HTTP face: raw ASGI, no framework, no middleware.

Reads the call, watches for the client leaving, and lets the gateway answer.
"""

import asyncio
import re
import secrets
from typing import Final

from app.api.presence import LEAVING, Presence
from app.asgi import Receive, Scope, Send
from app.determinism.plan import (
    MITIGATIONS_HEADER,
    MODE_HEADER,
    ON_UNAVAILABLE_HEADER,
    WINDOW_HEADER,
    Wish,
    read_headers,
)
from app.errors import (
    InvalidRequest,
    MethodNotAllowed,
    NotReady,
    RepriseError,
    RequestTimeout,
    RequestTooLarge,
    UnsupportedMediaType,
)
from app.gateway import Call, Gateway
from app.headers import FOR_GUARD, REQUEST, RUN
from app.measuring.shadows import Shadows
from app.reply import ClientGone, Header, Reply

PATHS: Final = ("/v1/chat/completions", "/v1/completions")

_CLOSE: Final[Header] = (b"connection", b"close")
_ALLOW: Final[Header] = (b"allow", b"POST")
_LABEL: Final = re.compile(rb"[A-Za-z0-9._-]{1,64}")
_ECHOABLE: Final = re.compile(rb"[\x21-\x7e]{1,200}")


class InferenceApp:
    """The ASGI application of the generating endpoints.

    ``max_body_bytes`` bounds a body. In seconds: ``body_timeout`` is how long it may take to arrive, ``write_timeout``
    how long a client may take nothing of its answer.
    """

    def __init__(
        self,
        gateway: Gateway,
        *,
        max_body_bytes: int,
        body_timeout: float,
        write_timeout: float,
        shadows: Shadows | None = None,
    ) -> None:
        self._gateway = gateway
        self._shadows = shadows
        self._write_timeout = write_timeout
        self._max_body_bytes = max_body_bytes
        self._body_timeout = body_timeout
        self._ids = _RequestIds()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one HTTP request."""
        request_id = self._ids.next()
        headers: tuple[Header, ...] = tuple(scope["headers"])
        ours = request_id.encode()
        echo = [(b"x-request-id", _echoed(headers) or ours), (REQUEST, ours)]
        leaving = scope.get("extensions", {}).get(LEAVING)
        abort = leaving["abort"] if leaving is not None else None
        reply = Reply(send, echo, patience=self._write_timeout, on_stall=abort)
        try:
            with self._gateway.exchange(request_id) as exchange:
                exchange.labelled(read_run(headers))
                wish = read_wish(scope, headers)
                async with self._presence(scope, receive, reply) as client:
                    body = await self._read_body(headers, receive)
                    client.body_arrived()
                    call = Call(scope["path"], body, headers, wish, request_id)
                    await self._gateway.handle(call, reply, exchange)
                if self._shadows is not None and (mode := exchange.repeatable_mode) is not None:
                    self._shadows.offer(call, mode)
        except ClientGone:
            return
        except (RequestTooLarge, RequestTimeout, UnsupportedMediaType, MethodNotAllowed) as error:
            # The body was not read to its end, so the connection cannot serve another request.
            await reply.fail(error, [_CLOSE, *([_ALLOW] if isinstance(error, MethodNotAllowed) else ())])
        except RepriseError as error:
            await reply.fail(error)
        except asyncio.CancelledError:
            # The server ends what outlived its grace at shutdown; this task ends with it.
            await reply.fail(NotReady("The gateway is shutting down."))
        except Exception:
            # A fault of ours: the client gets the one shape that all errors have, the server's log gets the traceback.
            await reply.fail(RepriseError("The gateway failed; its log has the cause."))
            raise
        finally:
            reply.close()

    def _presence(self, scope: Scope, receive: Receive, reply: Reply) -> Presence:
        if self._loop is None:
            # Asked for once: CPython 3.11 makes a system call of every get_running_loop().
            self._loop = asyncio.get_running_loop()
        return Presence(scope, receive, reply, body_timeout=self._body_timeout, loop=self._loop)

    async def _read_body(self, headers: tuple[Header, ...], receive: Receive) -> bytes:
        check_body_head(headers, self._max_body_bytes)
        message = await receive()
        if message["type"] == "http.request" and not message.get("more_body", False):
            body: bytes = message.get("body", b"")
            if len(body) > self._max_body_bytes:
                raise RequestTooLarge(f"The body is over {self._max_body_bytes} bytes.")
            return body
        pieces = bytearray()
        while True:
            if message["type"] == "http.disconnect":
                raise ClientGone
            pieces += message.get("body", b"")
            if len(pieces) > self._max_body_bytes:
                raise RequestTooLarge(f"The body is over {self._max_body_bytes} bytes.")
            if not message.get("more_body", False):
                return bytes(pieces)
            message = await receive()


class _RequestIds:
    """Random request ids of 32 hex digits. The system is asked for 256 at a time, not in every request."""

    def __init__(self) -> None:
        self._pool = ""

    def next(self) -> str:
        """One that was never used."""
        if not self._pool:
            self._pool = secrets.token_hex(16 * 256)
        request_id, self._pool = self._pool[:32], self._pool[32:]
        return request_id


def check_body_head(headers: tuple[Header, ...], most: int) -> None:
    """Refuse a body by what its head says. Raises UnsupportedMediaType, and RequestTooLarge over ``most`` bytes."""
    if (coding := _first(headers, b"content-encoding")) not in {None, b"identity"}:
        raise UnsupportedMediaType(
            f"The body must not be compressed (content-encoding: {(coding or b'')[:20].decode('latin-1')})."
        )
    declared = _first(headers, b"content-length") or b"0"
    if declared.isdigit() and int(declared) > most:
        raise RequestTooLarge(f"The body is over {most} bytes.")


def read_wish(scope: Scope, headers: tuple[Header, ...]) -> Wish:
    """What the head of the request says. Raises MethodNotAllowed and InvalidRequest."""
    if scope["method"] != "POST":
        raise MethodNotAllowed(f"{scope['path']} takes POST, not {scope['method'][:20]}.")
    mode = mitigations = on_unavailable = window = None
    for name, value in headers:
        if name.startswith(b"x-determinism-"):
            text = value.decode("latin-1")
            if name == MODE_HEADER.encode():
                mode = _once(mode, text, MODE_HEADER)
            elif name == MITIGATIONS_HEADER.encode():
                mitigations = text if mitigations is None else f"{mitigations},{text}"
            elif name == ON_UNAVAILABLE_HEADER.encode():
                on_unavailable = _once(on_unavailable, text, ON_UNAVAILABLE_HEADER)
            elif name == WINDOW_HEADER.encode():
                window = _once(window, text, WINDOW_HEADER)
            elif name not in FOR_GUARD and name != RUN:
                unknown = name.decode("latin-1")[:80]
                raise InvalidRequest(f"The header '{unknown}' is unknown.", param=unknown, code="unknown_header")
    return read_headers(mode, mitigations, on_unavailable, window)


def read_run(headers: tuple[Header, ...]) -> str | None:
    """The label of the run that a request belongs to. Raises InvalidRequest for what is no label."""
    labels = {value for name, value in headers if name == RUN}
    if not labels:
        return None
    given = labels.pop()
    if labels:
        raise InvalidRequest(f"The header '{RUN.decode()}' is given twice.", param=RUN.decode())
    if not _LABEL.fullmatch(given):
        raise InvalidRequest(
            f"'{RUN.decode()}' takes 1 to 64 letters, digits, dots, dashes and underscores.", param=RUN.decode()
        )
    return given.decode()


def _once(known: str | None, value: str, name: str) -> str:
    if known is not None and known != value:
        raise InvalidRequest(f"The header '{name}' is given twice.", param=name, code="contradictory_mode")
    return value


def _echoed(headers: tuple[Header, ...]) -> bytes | None:
    """The caller's own request id, where it is one that a header can carry back."""
    given = _first(headers, b"x-request-id")
    return given if given is not None and _ECHOABLE.fullmatch(given) else None


def _first(headers: tuple[Header, ...], wanted: bytes) -> bytes | None:
    return next((value for name, value in headers if name == wanted), None)
