"""The proof that an engine without the guard is empty: its own count of requests, asked for under a lease.

It is asked over the client that carries the traffic and not over the prober's: a caller may leave at any moment of the
wait, and httpx loses a slot of its pool for good when a request is cancelled in the wrong one.
"""

import asyncio
import math
from collections.abc import Callable
from typing import Final

from prometheus_client.parser import text_string_to_metric_families

from app.errors import UpstreamError, UpstreamUnavailable
from app.upstream.client import UpstreamClient
from app.upstream.replica import Replica
from app.upstream.wire import RawHeader

METRICS_PATH: Final = "/metrics"

_COUNTS: Final = frozenset({"vllm:num_requests_running", "vllm:num_requests_waiting"})
_LARGEST_PAGE: Final = 16 * 1024 * 1024
_OK: Final = 200


def requests_in_flight(page: str) -> float:
    """Requests that an engine counts as running or waiting on its metrics page; infinity when it does not say."""
    try:
        samples = [
            sample.value
            for family in text_string_to_metric_families(page)
            if family.name in _COUNTS
            for sample in family.samples
        ]
    except ValueError:
        return math.inf
    return sum(samples) if samples else math.inf


class DrainProof:
    """Asks engines. ``timeout`` in seconds bounds each single question."""

    def __init__(self, client: UpstreamClient, *, timeout: float, api_key: str | None) -> None:
        self._client = client
        self._timeout = timeout
        self._headers: list[RawHeader] = [(b"authorization", f"Bearer {api_key}".encode())] if api_key else []

    async def drained(
        self, replica: Replica, *, deadline: float, interval: float, lost: Callable[[], bool] = lambda: False
    ) -> bool:
        """Whether the engine ran empty within ``deadline`` s, by its own word; asked every ``interval`` s.

        It gives up early where the replica is ``lost``. Raises UpstreamUnavailable where it cannot be reached.
        """
        try:
            async with asyncio.timeout(deadline):
                # Another process runs empty; there is nothing here to wait on but its word.
                while await self._in_flight(replica) != 0:
                    if lost():
                        return False
                    await asyncio.sleep(interval)
        except TimeoutError:
            return False
        return True

    async def _in_flight(self, replica: Replica) -> float:
        try:
            async with (
                asyncio.timeout(self._timeout),
                self._client.send(replica, METRICS_PATH, self._headers, b"", method=b"GET") as response,
            ):
                page = await response.read(_LARGEST_PAGE)
        except UpstreamUnavailable:
            raise
        except (UpstreamError, TimeoutError):
            return math.inf
        return requests_in_flight(page.decode("utf-8", "replace")) if response.status == _OK else math.inf
