"""The gateway's modes, measured on this deployment under load: which of them repeat, and what they cost here."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import anyio
import httpx

from app.determinism.mode import Mode
from app.diagnose.discovery import Deployment
from app.diagnose.investigation import Investigation
from app.probe.experiment import Experiment, NotMeasurable
from app.probe.load import Sleep
from app.probe.runner import Probe
from app.probe.server import Clock
from app.probe.tally import Row, Status

MOST_REPEATS: Final = 16
"""Of each prompt; a tighter bound is the probe's to find."""

LOAD: Final = 8
CONCURRENCY: Final = 4

_WEIGHTS: Final = {
    Mode.STANDARD: 1.0,
    Mode.SEEDED: 1.0,
    Mode.INVARIANT: 1.0,
    Mode.VERIFIED: 2.0,
    Mode.ISOLATED: 3.0,
    Mode.HARDENED: 3.0,
}
"""How the time is shared out among the modes, in the order in which they are measured."""


@dataclass(frozen=True, slots=True)
class Cure:
    """A mode and the probe's figures of it. ``cut`` says that its time was over before all repeats were answered."""

    mode: Mode
    row: Row
    cut: bool

    @property
    def measured(self) -> bool:
        """Whether any repeat was compared."""
        return self.row.compared > 0

    @property
    def reached_zero(self) -> bool:
        """Whether every repeat that came back was equal, and the server said that it had been in this mode."""
        return self.measured and not (self.row.diverged or self.row.failed) and self.row.confirmed

    @property
    def tokens_per_second(self) -> float:
        """Of the repeats and of the load beside them."""
        return (self.row.tokens_per_second or 0.0) + (self.row.background_per_second or 0.0)


class Cures:
    """Measures one mode after the other until the clock reads ``until``. `measured` may be read at any moment."""

    def __init__(
        self,
        investigation: Investigation,
        deployment: Deployment,
        tokens: int,
        *,
        until: float,
        transport: httpx.AsyncBaseTransport | None,
        clock: Clock,
        sleep: Sleep,
        watch: Callable[[str], None],
    ) -> None:
        self._investigation = investigation
        self._deployment = deployment
        self._tokens = tokens
        self._until = until
        self._transport = transport
        self._clock = clock
        self._sleep = sleep
        self._watch = watch
        self.measured: tuple[Cure, ...] = ()

    async def measure(self) -> None:
        """Raises nothing but cancellation; a mode that is refused, or fails, says so in its row."""
        modes = [mode for mode in _WEIGHTS if mode is not Mode.SEEDED or self._investigation.temperature > 0]
        while modes:
            mode = modes.pop(0)
            if mode is Mode.HARDENED and self._isolated_repeats():
                # It does what isolated does and more: at best it repeats as well, for as much.
                continue
            left = self._until - self._clock()
            if left <= 0:
                break
            weight = sum(_WEIGHTS[other] for other in (mode, *modes) if other is not Mode.HARDENED or other is mode)
            await self._measure(mode, left * _WEIGHTS[mode] / weight)

    def _isolated_repeats(self) -> bool:
        return any(cure.mode is Mode.ISOLATED and cure.reached_zero for cure in self.measured)

    async def _measure(self, mode: Mode, seconds: float) -> None:
        probe = Probe(
            self._experiment(mode),
            transport=self._transport,
            clock=self._clock,
            sleep=self._sleep,
            watch=lambda _mode, _requests: self._watch(mode.value),
        )
        cut = True
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._end, group.cancel_scope, seconds)
                # The server was there a moment ago; its modes are then what could not be measured.
                with suppress(NotMeasurable):
                    await probe.run()
                cut = False
                group.cancel_scope.cancel()
        finally:
            self.measured += tuple(Cure(row.mode, row, cut) for row in probe.rows)

    async def _end(self, scope: anyio.CancelScope, seconds: float) -> None:
        """Cut what runs in the scope, by the same time that all else here goes by."""
        await self._sleep(seconds)
        scope.cancel()

    def _experiment(self, mode: Mode) -> Experiment:
        investigation = self._investigation
        return Experiment(
            url=investigation.url,
            modes=(mode,),
            prompts=self._deployment.prompts,
            model=self._deployment.model,
            repeats=min(MOST_REPEATS, investigation.repeats or MOST_REPEATS),
            tokens=self._tokens,
            temperature=investigation.temperature,
            seed=investigation.seed,
            concurrency=CONCURRENCY,
            load=LOAD,
            api_key=investigation.api_key,
            timeout=investigation.timeout,
        )


def untried(cure: Cure) -> str | None:
    """Why a mode has no figures; None where it has."""
    if cure.measured:
        return None
    if cure.row.status is Status.UNAVAILABLE:
        return f"not offered here: {cure.row.reason}"
    return cure.row.reason or "it was cut short before any repeat was compared"
