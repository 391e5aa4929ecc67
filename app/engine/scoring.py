"""``POST /reprise/score``: the rows of one verification pass, as arrays.

It is served in place of vLLM's application, inside the guard's gate. `app.engine.passes` runs the pass on the engine's
own client, which removes what an endpoint of vLLM would add: a decoded text for each of thousands of candidates, and
the rows of the whole prompt as JSON. What a pass may read of the prefix cache is `app.engine.chain`'s matter.

    {"ids": [1, 2, 3], "first": 2, "k": 2, "cached": null, "prefix": 0, "block": 16, "salt": null}
    {"ids": [[7, 3], [5, 9]], "logprobs": [[-0.5, -1.25], [-0.125, -3.0]], "sampled": true, "cached": 0,
     "engine_passes": 1, "seconds": 0.25}
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from app.asgi import App, Receive, Scope, Send
from app.engine.asgi import Refusal, send_json
from app.engine.body import attended, read_whole
from app.engine.chain import Chains, ChainWanted
from app.engine.members import Members
from app.engine.model import Limits
from app.engine.passes import Outcome, Passes
from app.engine.self_test import Verdict, self_test
from app.errors import DeterminismUnavailable, InvalidRequest, RepriseError

SCORE_PATH: Final = "/reprise/score"

_LONGEST_SALT: Final = 256
_ENDS: Final = {True: "passed", False: "FAILED", None: "came to no end"}

# Under vLLM's own logger, since its logging configuration has no handler for others.
logger = logging.getLogger("vllm.reprise.scoring")


@dataclass(frozen=True, slots=True)
class ScoreRequest:
    """What a gateway asks. ``first`` is the first position whose row it wants, ``k`` how many tokens of each.

    ``cached`` is None for a pass that computes everything; else so many tokens are read of the chain that ``prefix``,
    ``block`` and ``salt`` name.
    """

    ids: list[int]
    first: int
    k: int
    cached: int | None
    prefix: int
    block: int
    salt: str | None

    @classmethod
    def read(cls, body: bytes, limits: Limits) -> "ScoreRequest":
        """From JSON; raises InvalidRequest naming the member, and DeterminismUnavailable without a prefix cache."""
        members = Members(body)
        ids = members.tokens("ids", limits.vocabulary)
        if not 0 < len(ids) < limits.length:
            raise InvalidRequest(f"'ids' must be from 1 to {limits.length - 1} token ids", param="ids")
        asked = cls(
            ids=ids,
            first=members.whole("first", 1, len(ids)),
            k=members.whole("k", 1, limits.logprobs),
            cached=members.whole_or_null("cached", 0, len(ids) - 1),
            prefix=members.whole("prefix", 0, limits.length),
            block=members.whole("block", 0, limits.length),
            salt=members.text_or_null("salt", _LONGEST_SALT),
        )
        members.end()
        if asked.cached is not None:
            asked.check_chain(asked.cached, limits)
        return asked

    def check_chain(self, cached: int, limits: Limits) -> None:
        """Raise where no chain can give what is asked."""
        if not limits.caches:
            raise DeterminismUnavailable("this engine has no prefix cache (--no-enable-prefix-caching)")
        if self.block != limits.block:
            raise InvalidRequest(f"'block' must be {limits.block}, as the engine's", param="block")
        # What the engine reads at the most; it would read as much on a second try, whatever was asked.
        if cached != (len(self.ids) - 1) // self.block * self.block:
            raise InvalidRequest("'cached' must be all whole blocks before the last token of 'ids'", param="cached")
        if self.prefix % self.block or self.prefix > cached:
            raise InvalidRequest("'prefix' must be whole blocks, and no more than 'cached'", param="prefix")
        if self.first <= cached:
            raise InvalidRequest("'first' must be after the tokens that are read, which have no rows", param="first")
        if self.salt is None:
            raise InvalidRequest("'salt' must name the chain", param="salt")


class Scorer:
    """Serves the path, and remembers of one engine what saves passes: the chains, and whether its rows repeat."""

    def __init__(
        self,
        test: Callable[[Passes, Limits, Callable[[], bool]], Awaitable[Verdict]] = self_test,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.verdict = Verdict()
        self._test = test
        self._clock = clock
        self._testing = asyncio.Lock()
        self._chains = Chains()

    def serving(self, alone: Callable[[], bool]) -> App:
        """The application for one request. ``alone`` says whether nobody else has run beside it so far."""
        return partial(self._serve, alone)

    async def _serve(self, alone: Callable[[], bool], scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI; raises ClientLeftError. A client that leaves while a pass runs aborts it, and nothing is sent."""
        body = await read_whole(receive)
        answer = await attended(receive, self._answer(body, scope["app"].state, alone))
        if isinstance(answer, Refusal):
            await answer.send(send)
        elif answer is not None:
            await send_json(send, 200, answer)

    async def _answer(
        self,
        body: bytes,
        state: Any,  # noqa: ANN401 - vLLM's app.state
        alone: Callable[[], bool],
    ) -> dict[str, Any] | Refusal:
        try:
            limits = Limits.of(state)
            asked = ScoreRequest.read(body, limits)
            await self._prove(state, limits, alone)
            return await self._score(asked, Passes(state.engine_client))
        except RepriseError as error:
            return Refusal.of(error)
        except Exception as exc:
            # Whatever vLLM raises: the gateway must learn that this pass has no answer, and another replica may.
            logger.exception("a verification pass failed")
            return Refusal(500, "internal_error", f"the engine failed in a pass: {type(exc).__name__}")

    async def _prove(self, state: Any, limits: Limits, alone: Callable[[], bool]) -> None:  # noqa: ANN401 - as above
        """Make the engine show that its rows repeat, unless it did; raises DeterminismUnavailable if they do not.

        A test that others may have spoilt is of no account: this request fails, and the next one makes another.
        """
        async with self._testing:
            if self.verdict.held is None:
                began = self._clock()
                self.verdict = await self._test(Passes(state.engine_client), limits, alone)
                held, seconds = _ENDS[self.verdict.held], self._clock() - began
                logger.info("self-test of verification passes %s in %.2f s %s", held, seconds, self.verdict.reason)
            verdict = self.verdict
        if verdict.held is None:
            text = f"the self-test of this engine could not be made beside others: {verdict.reason}"
            raise DeterminismUnavailable(text, retry_after=1)
        if not verdict.held:
            raise DeterminismUnavailable(f"the self-test of this engine failed: {verdict.reason}")

    async def _score(self, asked: ScoreRequest, passes: Passes) -> dict[str, Any]:
        began = self._clock()
        outcome = await self._outcome(asked, passes)
        return {
            "ids": [row.ids for row in outcome.rows],
            "logprobs": [row.logprobs for row in outcome.rows],
            "sampled": True,
            "cached": outcome.cached,
            "engine_passes": passes.count,
            "seconds": self._clock() - began,
        }

    async def _outcome(self, asked: ScoreRequest, passes: Passes) -> Outcome:
        if asked.cached is not None and asked.salt is not None:
            wanted = ChainWanted(
                asked.ids, asked.salt, asked.cached, asked.prefix, asked.block, first=asked.first, k=asked.k
            )
            return await self._chains.score(wanted, passes)
        outcome = await passes.over(asked.ids, salt=asked.salt, reads=False, first=asked.first, k=asked.k)
        if outcome.cached:
            raise DeterminismUnavailable(f"the engine read {outcome.cached} tokens that it should have computed")
        return outcome
