"""Keeps the latest status of every replica: who is in, who is out, and when to look again.

1. ``failures`` consecutive failed probes take a replica out, ``successes`` consecutive good ones bring it back. The
   first good probe of all brings it in at once: nothing speaks against it yet.
2. Each replica is looked at on its own, so that a slow one delays no other, and the time between two looks varies by a
   fifth, so that many gateways do not look at once.
3. Traffic is no judge. A connection that was refused makes the watchdog look at once, and the probe decides; what a
   client did wrong (any 4xx) says nothing about a replica.
4. Who is out keeps what was known of it, since the scheduler may have nobody else.
"""

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Final

import anyio

from app.upstream.prober import Prober
from app.upstream.replica import Replica, ReplicaStatus

_UNSETTLED_SECONDS: Final = 0.5
"""Between two looks at a replica that is not (yet) what it could be."""

_JITTER: Final = 0.2

_log = logging.getLogger(__name__)


class _Watched:
    """One replica: what is thought of it, and how long its probes have been saying something else."""

    def __init__(self) -> None:
        self.status: ReplicaStatus | None = None
        self.failed = 0
        self.succeeded = 0
        self.suspected = anyio.Event()


class Watchdog:
    """Probes replicas. Seconds: ``interval`` between two looks at one that is well.

    ``seen`` is called after every probe with the status that holds, ``changed`` too where it differs from the last.
    ``chance`` gives numbers from 0 up to 1.
    """

    def __init__(
        self,
        replicas: tuple[Replica, ...],
        prober: Prober,
        *,
        interval: float,
        failures: int,
        successes: int,
        seen: Callable[[Replica, ReplicaStatus], None],
        changed: Callable[[Replica, ReplicaStatus], None],
        chance: Callable[[], float],
    ) -> None:
        self._prober = prober
        self._interval = interval
        self._failures = failures
        self._successes = successes
        self._seen = seen
        self._changed = changed
        self._chance = chance
        self._watched = {replica: _Watched() for replica in replicas}

    async def run(self) -> None:
        """Probe for ever."""
        async with anyio.create_task_group() as group:
            for replica in self._watched:
                group.start_soon(self._watch, replica)

    def suspect(self, replica: Replica) -> None:
        """Traffic could not reach a replica: look at it now."""
        self._watched[replica].suspected.set()

    async def look_at(self, replica: Replica) -> None:
        """Probe one replica once, and tell what that makes of it."""
        watched = self._watched[replica]
        status = self._judged(watched, await self._observe(replica))
        before, watched.status = watched.status, status
        self._seen(replica, status)
        if status.differs(before):
            self._changed(replica, status)

    async def _watch(self, replica: Replica) -> None:
        watched = self._watched[replica]
        while True:
            await self.look_at(replica)
            settled = watched.status is not None and watched.status.healthy and watched.status.guard_problem is None
            steady = settled and not watched.failed
            pause = self._interval if steady else min(self._interval, _UNSETTLED_SECONDS)
            # After a look that traffic asked for there is a short rest too: a dead replica must not be hammered.
            rest = min(pause, _UNSETTLED_SECONDS)
            await anyio.sleep(rest)
            with anyio.move_on_after(pause * (1 + _JITTER * (2 * self._chance() - 1)) - rest):
                await watched.suspected.wait()
            watched.suspected = anyio.Event()

    def _judged(self, watched: _Watched, probe: ReplicaStatus) -> ReplicaStatus:
        """Rule 1 and 4: what holds of a replica after a probe."""
        watched.failed = 0 if probe.healthy else watched.failed + 1
        watched.succeeded = watched.succeeded + 1 if probe.healthy else 0
        known = watched.status
        if known is None:
            return probe
        if probe.healthy:
            was_in = known.healthy or not known.models
            return probe if was_in or watched.succeeded >= self._successes else replace(known, problem=_COMING_BACK)
        if known.healthy and watched.failed < self._failures:
            return known
        return replace(known, healthy=False, problem=probe.problem)

    async def _observe(self, replica: Replica) -> ReplicaStatus:
        try:
            return await self._prober.observe(replica)
        except Exception as exc:  # noqa: BLE001 - see below; it is logged
            # The watch must outlive whatever an upstream answers: without it no replica would ever be taken out again.
            _log.exception("the probe of replica %s failed", replica.name)
            return ReplicaStatus(problem=f"its probe failed ({type(exc).__name__})")


_COMING_BACK: Final = "it answers again, and has to do so once more"
