"""One verified request from its plan to its last byte.

It is the counterpart of `app.gateway`'s straight line for answers that are made here and not relayed. The answer's
headers go out with the first tokens that are decided, since only then the verifier's word is known.
"""

from collections.abc import Callable
from typing import Final

import anyio.to_thread
import orjson

from app.errors import NotReady, QueueFull, UpstreamError
from app.headers import COMMENT_PREFIX, of_fact
from app.observation.exchange import Exchange
from app.reply import Header, Reply
from app.scheduling.lease import Lease
from app.verification.answer import Chunks, whole
from app.verifier.making import Making, Offer, evidence_of
from app.verifier.passes import choose

LARGE: Final = 256 * 1024
"""Bytes of an answer whose reading and rewriting would hold the event loop for milliseconds; for less, a thread costs
more than it saves."""

_DONE: Final = b"data: [DONE]\n\n"
_EVENTS: Final[Header] = (b"content-type", b"text/event-stream; charset=utf-8")
_JSON: Final[Header] = (b"content-type", b"application/json")

HeadersOf = Callable[[Lease], list[Header]]


class Verification:
    """Answers verified requests. ``key`` keys the salts of the verifiers' caches; ``wall`` is seconds since 1970.

    With ``comment`` a stream says at its end, in a comment, what was done for it.
    """

    def __init__(self, key: bytes, *, comment: bool, clock: Callable[[], float], wall: Callable[[], float]) -> None:
        self._key = key
        self._comment = comment
        self._clock = clock
        self._wall = wall

    async def answer(self, offer: Offer, headers: HeadersOf, reply: Reply, exchange: Exchange) -> None:
        """Answer one request; ``headers`` makes ours from a lease of the verifier's. Raises RepriseError to be told."""
        chosen = choose(offer.sender.scheduler, offer.plan)
        making = await Making.begin(offer, chosen, self._key, clock=self._clock, created=int(self._wall()))
        try:
            await (self._stream if making.wanted.stream else self._unary)(making, headers, reply, exchange)
        except (NotReady, QueueFull) as error:
            if not reply.started:
                raise
            # An answer that had begun is broken off, whatever it lacked.
            raise UpstreamError(error.message, code=error.error_code) from error
        finally:
            making.account(exchange)

    async def _stream(self, making: Making, headers: HeadersOf, reply: Reply, exchange: Exchange) -> None:
        seen, shown = Chunks(making.evidence), Chunks(making.form)
        end = None
        while end is None:
            released = await making.next()
            end = released.end
            opening = b"" if reply.started else shown.first()
            piece = opening + shown.piece(released.text, released.tokens, end)
            if not reply.started:
                making.tell(exchange, stream=True)
                ours = map(of_fact, making.report().definition())
                await reply.start(200, [_EVENTS, *headers(making.lease), *ours])
            if piece:
                await reply.write(piece)
            exchange.feed(seen.piece(released.text, evidence_of(released), end))
        exchange.feed(seen.last() + _DONE)
        making.served(exchange)
        facts = [*exchange.conclude(making.verifier.peak), *making.report().facts()]
        making.account(exchange)
        exchange.keep_receipt()  # before the client has the end of its answer, and may ask for it
        comment = COMMENT_PREFIX + orjson.dumps(dict(facts)) + b"\n\n" if self._comment else b""
        await reply.finish(shown.last() + comment + _DONE)

    async def _unary(self, making: Making, headers: HeadersOf, reply: Reply, exchange: Exchange) -> None:
        every = [await making.next()]
        while (end := every[-1].end) is None:
            every.append(await making.next())
        text = "".join(released.text for released in every)
        making.tell(exchange, stream=False)
        evidence = whole(making.evidence, text, [token for each in every for token in evidence_of(each)], end)
        exchange.feed(evidence)
        if len(evidence) > LARGE:
            await anyio.to_thread.run_sync(exchange.read)
        body = whole(making.form, text, [token for released in every for token in released.tokens], end)
        facts = [*exchange.conclude(making.verifier.peak), *making.report().facts()]
        length = (b"content-length", b"%d" % len(body))
        await reply.start(200, [_JSON, length, *headers(making.lease), *map(of_fact, facts)])
        await reply.finish(body)
