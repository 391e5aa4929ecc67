"""One run from the first look at the server to the verdict: discover, plan, climb, judge, look for a cure."""

import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Final

import anyio
import httpx

from app.diagnose.cure import Cure, Cures
from app.diagnose.discovery import Deployment, Found, connect, discover
from app.diagnose.findings import Suspect
from app.diagnose.investigation import Investigation
from app.diagnose.ladder import Climb, Ladder
from app.diagnose.planning import CURE_SHARE, Course, plan
from app.diagnose.rungs import MOST_ROUNDS, Rung
from app.diagnose.verdict import Evidence, Verdict, judge
from app.diagnose.wire import Wire
from app.probe.load import Sleep
from app.probe.server import Clock

_RUNGS: Final = {
    Suspect.NEIGHBOUR_CONTENT: {Rung.BATCH},
    Suspect.BATCH_SHAPE: {Rung.BATCH},
    Suspect.PREFIX_CACHE: {Rung.CACHE},
    Suspect.KV_LENGTH: {Rung.KV},
    Suspect.REPLICA: {Rung.ALONE, Rung.REPLICA},
    Suspect.CONFIGURATION: {Rung.ALONE, Rung.REPLICA},
}
"""Where more repeats tell more of a suspect: what is compared."""

Watch = Callable[[str, float], None]
"""Is told what is being done and which part of the budget is spent, 0 to 1."""


class Diagnosis:
    """One run. What it has found may be read at any moment, also after a run that was cancelled.

    ``transport`` replaces the network, ``clock`` (monotonic seconds) and ``sleep`` time.
    """

    def __init__(
        self,
        investigation: Investigation,
        *,
        transport: httpx.AsyncBaseTransport | None = None,
        clock: Clock = time.monotonic,
        sleep: Sleep = anyio.sleep,
        watch: Watch = lambda _what, _part: None,
    ) -> None:
        self._investigation = investigation
        self._transport = transport
        self._clock = clock
        self._sleep = sleep
        self._watch = watch
        self._started = clock()
        self._ladder: Ladder | None = None
        self.deployment: Deployment | None = None
        self.course: Course | None = None
        self.cures: tuple[Cure, ...] = ()
        self.seconds = 0.0

    async def run(self) -> None:
        """Raises NotMeasurable when nothing can be asked of the server."""
        self._started = self._clock()
        investigation = self._investigation
        try:
            async with AsyncExitStack() as stack:
                client = await stack.enter_async_context(connect(investigation, investigation.url, self._transport))
                self._tell("looking at the server")
                found = await discover(client, investigation, self._clock)
                self.deployment = found.deployment
                replicas = [
                    Wire(
                        await stack.enter_async_context(connect(investigation, url, self._transport)),
                        found.wire.asking,
                        investigation.timeout,
                        self._clock,
                    )
                    for url in investigation.replicas
                ]
                await self._climb(found, tuple(replicas))
            if found.deployment.gateway and investigation.cures:
                await self._cure()
        finally:
            self.seconds = self._clock() - self._started

    @property
    def verdict(self) -> Verdict | None:
        """What is known so far; None before the ladder began."""
        if self.deployment is None or self.course is None or self._ladder is None:
            return None
        return judge(self.evidence)

    @property
    def evidence(self) -> Evidence:
        """What the ladder has brought so far. Raises ValueError before it began."""
        if self.deployment is None or self.course is None or self._ladder is None:
            raise ValueError("the ladder has not begun")
        investigation = self._investigation
        return Evidence(
            records=self._ladder.records,
            postures={replica: frozenset(digests) for replica, digests in self._ladder.postures.items()},
            exact=self.deployment.exact,
            logprobs=self.deployment.logprobs,
            sampled=investigation.temperature > 0,
            replicas=len(investigation.replicas),
            missing=self.course.missing,
        )

    @property
    def left_out(self) -> dict[str, int]:
        """Answers that another replica than the first gave, by its name; they are in no finding."""
        return {} if self._ladder is None else dict(self._ladder.left_out)

    @property
    def crowded(self) -> int:
        """Answers that other requests shared the engine with than their rung asks for; they are in no finding."""
        return 0 if self._ladder is None else self._ladder.crowded

    async def _climb(self, found: Found, replicas: tuple[Wire, ...]) -> None:
        investigation, deployment = self._investigation, found.deployment
        share = 1 - CURE_SHARE if deployment.gateway and investigation.cures else 1.0
        until = self._started + investigation.budget * share
        self.course = plan(investigation, deployment, found.material, until - self._clock())
        climb = Climb(self.course.extent, self.course.tokens, until)
        self._ladder = Ladder(found, replicas, climb, clock=self._clock, watch=self._tell)
        await self._ladder.climb()
        findings = judge(self.evidence).findings
        unclear = {rung for finding in findings if finding.open for rung in _RUNGS[finding.suspect]}
        asked = investigation.repeats or MOST_ROUNDS
        if unclear:
            await self._ladder.look_closer(unclear, max(asked, MOST_ROUNDS))
        else:
            await self._ladder.look_closer(self.course.extent.rungs, asked)

    async def _cure(self) -> None:
        deployment, course = self.deployment, self.course
        if deployment is None or course is None:
            return
        cures = Cures(
            self._investigation,
            deployment,
            course.tokens,
            until=self._started + self._investigation.budget,
            transport=self._transport,
            clock=self._clock,
            sleep=self._sleep,
            watch=self._tell,
        )
        try:
            await cures.measure()
        finally:
            self.cures = cures.measured

    def _tell(self, what: str) -> None:
        self._watch(what, min(1.0, (self._clock() - self._started) / self._investigation.budget))
