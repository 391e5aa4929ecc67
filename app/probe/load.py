"""The background load: other people's requests, so that the batch around a probed request keeps changing."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import count
from typing import Any, Final

import anyio

from app.determinism.mode import Mode
from app.determinism.output import CHAT_PATH
from app.probe.answer import Answer, Outcome
from app.probe.experiment import Question
from app.probe.prompts import load_prompt, load_tokens

Ask = Callable[[Mode, Question], Awaitable[Outcome]]
Sleep = Callable[[float], Awaitable[None]]

_PAUSE_AFTER_FAILURE: Final = 0.5
"""Seconds that a worker rests after a failed request, so that a dead server is not hammered."""


class Load:
    """At most ``size`` requests to ``path`` in flight, one per worker, until `run` is cancelled.

    It begins held: nothing is sent before the first `quiet` block has been left. ``requests`` counts those that came
    back, ``tokens`` what they were answered, ``failures`` those without an answer; ``last_failure`` says why.
    """

    def __init__(self, ask: Ask, path: str, size: int, sleep: Sleep = anyio.sleep) -> None:
        self._ask = ask
        self._path = path
        self._size = size
        self._sleep = sleep
        self._open = anyio.Event()
        self._drained = anyio.Event()
        self._in_flight = 0
        self.requests = 0
        self.tokens = 0
        self.failures = 0
        self.last_failure: str | None = None

    async def run(self) -> None:
        """Keep the server busy; ends by cancellation alone."""
        async with anyio.create_task_group() as group:
            for worker in range(self._size):
                group.start_soon(self._work, worker)

    @asynccontextmanager
    async def quiet(self) -> AsyncIterator[None]:
        """Hold the load for the length of the block, which begins when its last request has been answered."""
        if self._open.is_set():
            self._open = anyio.Event()
        self._drained = anyio.Event()
        if self._in_flight:
            await self._drained.wait()
        yield
        self._open.set()

    async def _work(self, worker: int) -> None:
        for step in count():
            # The load may have been held again before this worker's turn.
            while not self._open.is_set():
                await self._open.wait()
            self._in_flight += 1
            try:
                outcome = await self._ask(Mode.STANDARD, self._question(worker, step))
            finally:
                self._in_flight -= 1
                if not self._in_flight:
                    self._drained.set()
            self.requests += 1
            if isinstance(outcome, Answer):
                self.tokens += outcome.completion_tokens
            else:
                self.failures += 1
                self.last_failure = outcome.reason
                await self._sleep(_PAUSE_AFTER_FAILURE)

    def _question(self, worker: int, step: int) -> Question:
        text = load_prompt(worker, step)
        body: dict[str, Any] = {
            "max_tokens": load_tokens(worker, step),
            "temperature": 0.0,
            "ignore_eos": True,
        }
        if self._path == CHAT_PATH:
            return Question(CHAT_PATH, {"messages": [{"role": "user", "content": text}], **body}, 1)
        return Question(self._path, {"prompt": text, **body}, 1)
