"""Sends a request through the gateway itself, as a client would, and throws the answer away: the ledger has seen it."""

import secrets
from collections.abc import Callable
from dataclasses import replace

from app.asgi import Message
from app.errors import RepriseError
from app.gateway import Call, Gateway
from app.reply import Reply


class Sender:
    """Sends calls. What becomes of them is counted like any request's end, under their origin."""

    def __init__(self, gateway: Gateway, *, request_id: Callable[[], str] = lambda: secrets.token_hex(16)) -> None:
        self._gateway = gateway
        self._request_id = request_id

    async def send(self, call: Call) -> None:
        """Send one, under a request id of its own, and wait for its end."""
        request_id = self._request_id()
        try:
            with self._gateway.exchange(request_id, call.origin) as exchange:
                await self._gateway.handle(replace(call, request_id=request_id), Reply(_nobody), exchange)
        except RepriseError:
            pass  # counted by the exchange, and there is nobody to tell


async def _nobody(_message: Message) -> None:
    """The client of what nobody reads."""
