"""A guard whose gate can be switched between ours and a plain FIFO writer lock, for a comparison in one run.

vLLM loads it in place of the product's: ``--middleware tests.benchmarks.fifo_guard.SwitchingGuard``. While nothing
runs or waits, ``POST /benchmark/gate/fifo`` and ``POST /benchmark/gate/fair``, with the guard key, change the gate.
`tests/benchmarks/fairness.py` drives it.
"""

from app.asgi import Receive, Scope, Send
from app.engine.asgi import Refusal, send_json
from app.engine.guard import Guard
from app.scheduling.gate import Gate

_SWITCH = "/benchmark/gate/"


class FifoGate(Gate):
    """What one would write first: a reader/writer lock that admits strictly in the order of coming.

    Shared tickets run together until an exclusive one is next; that waits for them, runs alone, and the next in line
    follows. Nobody starves and nobody is overtaken, so every exclusive ticket pays for a drain of its own.
    """

    def _admit(self, now: float) -> None:
        if self._phase_began is not None and self._exclusive is None:
            self._end_phase(now)
        while self._exclusive is None:
            if self._line.turn is None:
                self._line.new_round()
            shared, turn = next(iter(self._waiting_shared), None), self._line.turn
            if turn is not None and (shared is None or turn < shared.number):
                if self._running == 0:
                    self._admit_exclusive(now)
                return
            if shared is None:
                return
            del self._waiting_shared[shared]
            self._grant(shared, now)


class SwitchingGuard(Guard):
    """The guard, with a switch."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        path = str(scope.get("path", ""))
        if scope["type"] == "http" and scope["method"] == "POST" and path.startswith(_SWITCH):
            await self._switch(path.removeprefix(_SWITCH), scope, send)
        else:
            await super().__call__(scope, receive, send)

    async def _switch(self, name: str, scope: Scope, send: Send) -> None:
        kinds = {"fifo": FifoGate, "fair": Gate}
        said = self._gate.statistics()
        if not self._door.trusts(scope) or name not in kinds:
            await Refusal(403, "forbidden", "the guard key and fifo or fair are needed").send(send)
        elif said.shared or said.exclusive or said.waiting_shared or said.waiting_exclusive:
            await Refusal(409, "busy", "requests run or wait").send(send)
        else:
            self._gate = kinds[name](self._options.policy)
            await send_json(send, 200, {"gate": name})
