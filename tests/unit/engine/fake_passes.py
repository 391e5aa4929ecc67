"""A stand-in for vLLM's engine client that computes passes: rows follow from tokens and from how they were computed.

Its prefix cache is vLLM's in what matters: blocks are found by their tokens and salt alone, whatever pass wrote them,
the one that was written first wins, and a pass reads all whole blocks before its last token.
"""

import asyncio
import hashlib
import sys
from collections.abc import AsyncGenerator, Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.engine.fakes import FakeEngine

BLOCK = 4
LENGTH = 64
VOCABULARY = 1000


class Flat:
    """VLLM's FlatLogprobs."""

    def __init__(self) -> None:
        self.start_indices: list[int] = []
        self.end_indices: list[int] = []
        self.token_ids: list[int] = []
        self.logprobs: list[float] = []

    def add(self, ids: Sequence[int], logprobs: Sequence[float]) -> None:
        """One more position."""
        self.start_indices.append(len(self.token_ids))
        self.token_ids += ids
        self.logprobs += logprobs
        self.end_indices.append(len(self.token_ids))

    def __len__(self) -> int:
        return len(self.start_indices)


def digest(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()


class FakeCache(FakeEngine):
    """An engine whose every number depends on the shape of the pass that computed it.

    ``short``: rows of what was read are left out, as vLLM's second model runner does; else their places hold rubbish.
    ``hold`` keeps each pass in the engine until it is set. ``during`` is called with the ids of each pass that starts.
    """

    def __init__(self, *, short: bool = False) -> None:
        super().__init__([{}])
        self.short = short
        self.hold = asyncio.Event()
        self.hold.set()
        self.during: Callable[[list[int]], object] = lambda _: None
        self.seen: list[tuple[int, bool, int]] = []
        self.salts: list[str | None] = []
        self.aborted = 0
        self.looks_ahead = False
        self.repeats = True
        self.forgets_to_count = False
        self.value: Callable[[float], float] = lambda value: value
        self._blocks: dict[tuple[str | None, tuple[int, ...]], str] = {}

    def forget(self, count: int | None = None, keep: int = 0) -> None:
        """Evict the blocks that were written last, or all, but the first ``keep``."""
        names = list(self._blocks)[keep:]
        for name in names if count is None else names[-count:]:
            del self._blocks[name]

    async def generate(self, prompt: Any, sampling_params: Any, request_id: str) -> AsyncGenerator[Any, None]:
        """As vLLM's."""
        assert request_id.startswith("reprise-")
        ids, salt, params = prompt["prompt_token_ids"], prompt["cache_salt"], sampling_params
        reads = not params.skip_reading_prefix_cache
        self.during(ids)
        self.unfinished += 1
        try:
            cached = self._read(ids, salt) if reads else 0
            states = self._compute(ids, salt, cached)
            await asyncio.sleep(0)  # an engine takes its time, and others run meanwhile
            await self.hold.wait()
        except (asyncio.CancelledError, GeneratorExit):
            self.aborted += 1
            raise
        finally:
            self.unfinished -= 1
        self.seen.append((len(ids), reads, cached))
        self.salts.append(salt)
        yield SimpleNamespace(
            num_cached_tokens=None if self.forgets_to_count else cached,
            prompt_logprobs=self._prompt_rows(ids, states, cached, params.prompt_logprobs),
            outputs=[SimpleNamespace(logprobs=self._sampled(states[-1], params.logprobs))],
        )

    def _read(self, ids: list[int], salt: str | None) -> int:
        cached = 0
        while cached + BLOCK < len(ids) and (salt, tuple(ids[: cached + BLOCK])) in self._blocks:
            cached += BLOCK
        return cached

    def _compute(self, ids: list[int], salt: str | None, cached: int) -> list[str]:
        """The state after each token that is computed, and blocks written where they are whole."""
        state = self._blocks[salt, tuple(ids[:cached])] if cached else ""
        shape = (cached, len(ids), ids[-1] if self.looks_ahead else 0, 0 if self.repeats else len(self.seen))
        states = []
        for end in range(cached + 1, len(ids) + 1):
            state = digest(state, ids[end - 1], shape)
            states.append(state)
            if end % BLOCK == 0:
                self._blocks.setdefault((salt, tuple(ids[:end])), state)
        return states

    def _prompt_rows(self, ids: list[int], states: list[str], cached: int, k: int | None) -> Flat | None:
        if k is None:
            return None
        flat = Flat()
        flat.add([], [])
        if not self.short:
            for _ in range(cached):
                flat.add([-7] * (k + 1), [float("nan")] * (k + 1))
        for token, state in zip(ids[cached + 1 :], states, strict=False):
            tokens, logprobs = self._row(state, k)
            flat.add([token, *tokens], [-0.25, *logprobs])
        return flat

    def _sampled(self, state: str, k: int | None) -> Flat | None:
        if k is None:
            return None
        flat = Flat()
        tokens, logprobs = self._row(state, k)
        flat.add([tokens[0], *tokens], [logprobs[0], *logprobs])
        return flat

    def _row(self, state: str, k: int) -> tuple[list[int], list[float]]:
        tokens = [int(digest(state, rank)[:6], 16) % VOCABULARY for rank in range(k)]
        return tokens, [self.value(-rank - int(state[:4], 16) / 65536) for rank in range(k)]


class Params(SimpleNamespace):
    """VLLM's SamplingParams, as far as it is asked."""


@pytest.fixture
def fake_vllm(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The modules of vLLM that passes and texts import."""
    vllm = SimpleNamespace(SamplingParams=Params)
    inputs = SimpleNamespace(
        tokens_input=lambda ids, *, cache_salt=None: {"prompt_token_ids": ids, "cache_salt": cache_salt}
    )
    kinds = SimpleNamespace(RequestOutputKind=SimpleNamespace(FINAL_ONLY="final"))
    monkeypatch.setitem(sys.modules, "vllm", vllm)
    monkeypatch.setitem(sys.modules, "vllm.inputs", inputs)
    monkeypatch.setitem(sys.modules, "vllm.sampling_params", kinds)
    return vllm


def model_state(engine: FakeEngine, *, caches: bool = True) -> SimpleNamespace:
    """VLLM's app.state with all that verification asks of it."""
    model = SimpleNamespace(
        max_model_len=LENGTH,
        get_vocab_size=lambda: VOCABULARY,
        max_logprobs=20,
        logprobs_mode="raw_logprobs",
        enforce_eager=True,
    )
    return SimpleNamespace(
        args=SimpleNamespace(api_key=None),
        engine_client=engine,
        vllm_config=SimpleNamespace(
            model_config=model,
            cache_config=SimpleNamespace(block_size=BLOCK, enable_prefix_caching=caches),
            parallel_config=SimpleNamespace(_api_process_count=1, worker_extension_cls="", data_parallel_size=1),
            speculative_config=None,
        ),
    )
