"""Sends a request through the gateway itself, as a client would, and throws the answer away: the ledger has seen it."""

import logging
import secrets
from collections.abc import Callable
from dataclasses import replace

from app.asgi import Message
from app.errors import RepriseError
from app.gateway import Call, Gateway
from app.reply import Reply

_log = logging.getLogger(__name__)


class Sender:
    """Sends calls. What becomes of them is counted like any request's end, under their origin.

    When ``retired`` says so, nothing is sent any more: the gateway is going away.
    """

    def __init__(
        self,
        gateway: Gateway,
        *,
        retired: Callable[[], bool] = lambda: False,
        request_id: Callable[[], str] = lambda: secrets.token_hex(16),
    ) -> None:
        self._gateway = gateway
        self._retired = retired
        self._request_id = request_id

    async def send(self, call: Call) -> None:
        """Send one, under a request id of its own, and wait for its end."""
        if self._retired():
            return
        request_id = self._request_id()
        reply = Reply(_nobody)
        try:
            with self._gateway.exchange(request_id, call.origin) as exchange:
                await self._gateway.handle(replace(call, request_id=request_id), reply, exchange)
        except RepriseError as error:
            # Counted by the exchange; somebody who wonders why his canaries fail turns the log up.
            _log.debug("a %s ended with %s: %s", call.origin.value, error.error_code, error.message)
        except Exception:  # noqa: BLE001 - a fault in one must not end the gateway's own tasks; it is logged
            _log.exception("a %s could not be sent", call.origin.value)
        finally:
            reply.close()


async def _nobody(_message: Message) -> None:
    """The client of what nobody reads."""
