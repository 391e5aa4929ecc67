"""Clients that ask and often leave, through gateways and past them, at any moment, by choices that a seed draws."""

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from tests.support.running import CHAT, Answer, read_answer, request_bytes

PATIENCE = 60.0
"""Seconds after which a client that got nothing gives up, which no storm may make one do."""

_FLOOD_PIECES = 64
_FLOOD_PAD = 2**18

_BREATH = 0.02
"""Seconds before a client that was turned away comes again, with something new."""


@dataclass(frozen=True, slots=True)
class Ask:
    """One request before it is sent.

    ``leaves_after``: seconds after which its client leaves, None for one that stays. ``half``: it leaves before it has
    sent its whole body. ``flood``: its answer is larger than what sockets hold, so that a frozen gateway stalls it.
    """

    id: str
    exclusive: bool
    stream: bool
    leaves_after: float | None = None
    half: bool = False
    ms: float = 0.0
    flood: bool = False


Render: TypeAlias = Callable[[Ask], dict[str, Any]]
"""Takes an ask to the members of its body."""


@dataclass
class Book:
    """What all visitors saw; times are nanoseconds of CLOCK_MONOTONIC.

    ``outcomes``: by way and what came. ``sent``: when what went through gateways and was answered had been sent, by the
    request id that its gateway gave it. ``gone``: when clients left, as `intervals.begun_for_nobody` takes it.
    ``answered``: the requests that got a whole answer. ``wrong``: what contradicts a promise, in words.
    """

    outcomes: Counter[str] = field(default_factory=Counter)
    sent: dict[str, int] = field(default_factory=dict)
    gone: dict[str, int] = field(default_factory=dict)
    answered: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


@dataclass
class Habits:
    """How visitors of one kind behave; chances between 0 and 1, times in seconds and milliseconds as named."""

    exclusive: float = 0.6
    stream: float = 0.4
    leave: float = 0.12
    leave_within: float = 0.03
    half: float = 0.02
    flood: float = 0.0
    longest_ms: float = 3.0
    left_ms: float = 20.0
    """The most work that is asked for by who leaves: enough that many leave in the middle of it."""


class Visitor:
    """One client: asks, reads or leaves, and asks again, over a connection that it keeps while it can."""

    def __init__(
        self, name: str, port: int, habits: Habits, book: Book, render: Render, *, seed: int, gateway: bool
    ) -> None:
        self._name = name
        self._port = port
        self._habits = habits
        self._book = book
        self._render = render
        self._gateway = gateway
        self._random = random.Random(f"{seed}/{name}")  # noqa: S311 - a storm must repeat, not be secret
        self._asked = 0
        self._connection: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def visit(self, over: asyncio.Event) -> None:
        """Ask until it is over."""
        try:
            while not over.is_set():
                outcome = await self._ask(self._draw())
                self._book.outcomes[f"{'gateway' if self._gateway else 'direct'}: {outcome}"] += 1
                if outcome.startswith(("refused", "cut", "4", "5")):
                    await asyncio.sleep(_BREATH)
        finally:
            self._drop()

    def _draw(self) -> Ask:
        self._asked += 1
        draw, habits = self._random, self._habits
        chance = draw.random()
        half = chance < habits.half
        leaves = half or chance < habits.half + habits.leave
        return Ask(
            id=f"{self._name}-{self._asked}",
            exclusive=self._gateway and draw.random() < habits.exclusive,
            stream=draw.random() < habits.stream,
            leaves_after=draw.uniform(0, habits.leave_within) if leaves else None,
            half=half,
            flood=draw.random() < habits.flood,
            ms=draw.choice((0.0, draw.uniform(0, habits.left_ms if leaves else habits.longest_ms))),
        )

    async def _ask(self, ask: Ask) -> str:
        """Send one request once; what became of it."""
        body = json.dumps(self._render(ask)).encode()
        request = request_bytes("POST", CHAT, body, {"content-type": "application/json"})
        if ask.half:
            self._book.gone[ask.id] = 0
            request = request[: -max(1, len(body) // 2)]
        try:
            reader, writer = await self._connected()
            sent = time.monotonic_ns()
            writer.write(request)
            async with asyncio.timeout(PATIENCE if ask.leaves_after is None else ask.leaves_after):
                answer = await read_answer(reader)
        except TimeoutError:
            self._leave(ask)
            return "gave up" if ask.leaves_after is None else "left"
        except ConnectionRefusedError:
            return "refused"
        except (OSError, EOFError):
            self._drop()
            return "cut"
        if self._gateway and "x-request-id" in answer.headers:
            self._book.sent[answer.headers["x-request-id"]] = sent
        return self._judge(ask, answer)

    def _judge(self, ask: Ask, answer: Answer) -> str:
        if not answer.complete:
            self._drop()
            return "cut in the middle"
        if answer.headers.get("connection") == "close":
            self._drop()
        if answer.status != 200:
            return f"{answer.status} {self._code(ask, answer)}"
        self._book.answered.append(ask.id)
        if ask.exclusive:
            self._check_word(ask, answer)
        return "200"

    def _check_word(self, ask: Ask, answer: Answer) -> None:
        """An answer that was promised to be alone says so in its header, or at its stream's end."""
        said = answer.headers.get("x-determinism-coresident-peak")
        if ask.stream or ask.flood:
            comment = answer.body.rpartition(b"\n: determinism ")[2].partition(b"\n")[0]
            said = str(json.loads(comment).get("coresident_peak")) if comment.startswith(b"{") else None
        if said != "1":
            self._book.wrong.append(f"{ask.id}: the co-resident peak of an isolated answer is {said}")

    def _code(self, ask: Ask, answer: Answer) -> str:
        try:
            return str(answer.error["code"])
        except (AssertionError, KeyError, TypeError, ValueError):
            self._book.wrong.append(f"{ask.id}: an error that is not OpenAI-shaped: {answer.body[:200]!r}")
            return "misshapen"

    async def _connected(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._connection is None:
            self._connection = await asyncio.open_connection("127.0.0.1", self._port)
        return self._connection

    def _leave(self, ask: Ask) -> None:
        if self._connection is not None:
            self._connection[1].transport.abort()
        self._connection = None
        self._book.gone.setdefault(ask.id, time.monotonic_ns())

    def _drop(self) -> None:
        if self._connection is not None:
            with suppress(OSError):
                self._connection[1].close()
        self._connection = None


def scripted(ask: Ask) -> dict[str, Any]:
    """The body of an ask for the scripted upstream."""
    script: dict[str, Any] = {"id": ask.id, "exclusive": ask.exclusive, "ms": round(ask.ms, 3), "pieces": 3}
    if ask.flood:
        script |= {"pieces": _FLOOD_PIECES, "pad": _FLOOD_PAD}
    body = {"model": "m", "stream": ask.stream or ask.flood, "x_script": script}
    return {**body, "determinism": "isolated"} if ask.exclusive else body
