"""One pass of the engine over given token ids, and what its rows say of the tokens that follow them.

A pass is a request of the engine's own client that generates a single token: the rows of its prompt tell the
distribution of every position inside, and the sampled row that of the position after the last. Nothing is decoded, and
nothing leaves the process but the rows that are wanted.

vLLM is imported inside functions: it exists in the engine's environment only.
"""

import math
import secrets
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final, Protocol

from app.errors import DeterminismUnavailable
from app.verification.rows import Row

_NO_PROBABILITY: Final = -9999.0
"""What vLLM's own endpoints write for minus infinity, which JSON does not have."""


class Generating(Protocol):
    """What a pass needs of vLLM's engine client."""

    def generate(self, prompt: Any, sampling_params: Any, request_id: str) -> AsyncGenerator[Any, None]:  # noqa: ANN401 - vLLM's types
        """Run a request; closed or cancelled, it aborts it."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """``cached`` tokens were read instead of computed; ``rows`` are those that were wanted, in order of position."""

    cached: int
    rows: tuple[Row, ...] = ()


class Passes:
    """Runs passes one after the other; ``count`` is how many began."""

    def __init__(self, client: Generating) -> None:
        self._client = client
        self.count = 0

    async def over(
        self, ids: Sequence[int], *, salt: str | None, reads: bool, first: int | None = None, k: int = 0
    ) -> Outcome:
        """Compute ``ids``; with ``reads`` what the prefix cache holds of them under ``salt`` is read instead.

        The rows of the positions ``first`` to ``len(ids)`` are returned with ``k`` tokens each; None asks for none.
        What was read from the cache has no rows: where that reaches ``first``, none are returned. Raises
        DeterminismUnavailable where the engine's answer cannot be read. Cancelled, it aborts the pass.
        """
        from vllm import SamplingParams  # noqa: PLC0415 - present in the engine's environment only
        from vllm.inputs import tokens_input  # noqa: PLC0415 - as above
        from vllm.sampling_params import RequestOutputKind  # noqa: PLC0415 - as above

        params = SamplingParams(
            temperature=0,
            max_tokens=1,
            prompt_logprobs=None if first is None else k,
            logprobs=None if first is None else k,
            detokenize=False,
            flat_logprobs=True,
            # Explicit: left out, it follows from prompt_logprobs.
            skip_reading_prefix_cache=not reads,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        self.count += 1
        prompt, last = tokens_input(list(ids), cache_salt=salt), None
        async with aclosing(self._client.generate(prompt, params, f"reprise-{secrets.token_hex(8)}")) as outputs:
            async for output in outputs:
                last = output
        if last is None or not isinstance(last.num_cached_tokens, int):
            raise DeterminismUnavailable("the engine does not tell how many tokens it read from its prefix cache")
        cached = max(last.num_cached_tokens, 0)
        if first is None or cached >= first:
            return Outcome(cached)
        return Outcome(cached, tuple(_rows(last, len(ids), first, cached)))


def _rows(output: Any, total: int, first: int, cached: int) -> list[Row]:  # noqa: ANN401 - vLLM's RequestOutput
    """The rows of the positions ``first`` to ``total``, the last of which is the sampled one.

    Where tokens were read from the cache, vLLM's second model runner leaves their rows out. Its first one keeps their
    places and never writes them: they hold what was in memory, so nothing before ``first`` is looked at.
    """
    prompt, sampled = output.prompt_logprobs, output.outputs[0].logprobs
    missing = total - len(prompt)
    if missing not in {0, cached} or len(sampled) != 1:
        raise DeterminismUnavailable(f"the engine gave {len(prompt)} rows for {total} tokens")
    rows = [_row(prompt, position - missing, position) for position in range(first, total)]
    return [*rows, _row(sampled, 0, total)]


def _row(flat: Any, index: int, position: int) -> Row:  # noqa: ANN401 - vLLM's FlatLogprobs
    # The first entry is the prompt's own token, or the sampled one, whatever its rank.
    begin, end = flat.start_indices[index] + 1, flat.end_indices[index]
    values = [_NO_PROBABILITY if value == -math.inf else float(value) for value in flat.logprobs[begin:end]]
    if not values or not all(map(math.isfinite, values)):
        raise DeterminismUnavailable(f"the engine gave no numbers for position {position}")
    return Row(tuple(flat.token_ids[begin:end]), tuple(values))
