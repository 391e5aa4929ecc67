"""One verified answer in the making: its parts, put together before the first draft, and what is told of it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from app.determinism.mode import MODE_MITIGATIONS, Mitigation
from app.determinism.plan import Plan
from app.determinism.request import InferenceRequest
from app.observation.exchange import Done, Exchange
from app.scheduling.lease import Lease
from app.upstream.word import GuardsWord
from app.verification.answer import Form, Token
from app.verification.decoding import Decoding
from app.verification.grid import Grid
from app.verification.report import Report
from app.verification.request import Wanted, read_wanted
from app.verification.rows import Row
from app.verifier.drafts import Drafter
from app.verifier.errands import Sender
from app.verifier.passes import Chosen, Verifier, chain_key
from app.verifier.session import Released, Session

_MARGIN: Final = 2
"""Alternatives of a token between which the margin lies."""

_PREFIX: Final = "token_id:"
"""How vLLM, and whoever reads its answers, writes a token by its id."""


@dataclass(frozen=True, slots=True)
class Offer:
    """A request that is to be answered verified, and what sends its errands.

    ``draft_timeout`` is how long one of its drafts may take, in seconds.
    """

    request: InferenceRequest
    plan: Plan
    sender: Sender
    draft_timeout: float


class Making:
    """One answer in the making. ``clock`` gives seconds; ``began`` is when its plan was made, by it."""

    def __init__(
        self,
        offer: Offer,
        wanted: Wanted,
        verifier: Verifier,
        prompt: Sequence[int],
        chosen: Chosen,
        *,
        clock: Callable[[], float],
        began: float,
        created: int,
    ) -> None:
        """Raises InvalidRequest where the prompt leaves no room."""
        model = chosen.model
        self.wanted = wanted
        self.verifier = verifier
        self._plan = offer.plan
        self._clock = clock
        self._began = began
        self._first: float | None = None
        self._accounted = False
        ending = wanted.ending(len(prompt), model)
        self._grid = Grid.of(
            wanted.window, len(prompt), model.length, model.block_size, prefix_caching=model.prefix_caching
        )
        self._decoding = Decoding(
            prompt, self._grid, ending, model.vocabulary, most_logprobs=chosen.most_logprobs, top=wanted.logprobs
        )
        drafter = Drafter(
            offer.sender, offer.plan.model, _of_drafts(offer.request, wanted), patience=offer.draft_timeout
        )
        self._session = Session(verifier, drafter, wanted, self._decoding, self._grid, prompt, ending.most)
        self.form = _form(offer, wanted, chosen, prompt, created)
        # What the ledger compares needs ids, and the margins of a fork; the caller gets what he asked for.
        self.evidence = replace(self.form, token_ids=True, logprobs=_MARGIN, usage=True, continuous_usage=False)

    @classmethod
    async def begin(
        cls, offer: Offer, chosen: Chosen, key: bytes, *, clock: Callable[[], float], created: int
    ) -> "Making":
        """Read the request and render its prompt. Raises InvalidRequest for what cannot be verified."""
        began = clock()
        wanted = read_wanted(
            offer.request,
            chosen.model,
            window=offer.plan.window or 1,
            most_logprobs=chosen.most_logprobs,
            pinned=Mitigation.TINY_TEMPERATURE in offer.plan.mitigations,
        )
        verifier = Verifier(offer.sender, chosen, chain_key(key, offer.request.members.get("cache_salt")))
        prompt = await verifier.render(offer.request)
        return cls(offer, wanted, verifier, prompt, chosen, clock=clock, began=began, created=created)

    async def next(self) -> Released:
        """What the next pass adds to the answer."""
        released = await self._session.next()
        if self._first is None:
            self._first = self._clock() - self._began
        return released

    @property
    def lease(self) -> Lease:
        """That of the pass which was answered last, with what the caller asked for as applied.

        That its passes were alone is how that is done.
        """
        assert self.verifier.lease is not None  # noqa: S101 - asked for after a release, which takes a pass
        return replace(self.verifier.lease, applied=self.applied)

    def tell(self, exchange: Exchange, *, stream: bool) -> None:
        """Tell the exchange who answers, as for an answer whose headers came."""
        lease, plan, applied = self.lease, self._plan, self.applied
        extra = "" if frozenset(applied) == MODE_MITIGATIONS.get(plan.mode) else ",".join(applied)
        self.served(exchange)
        word = GuardsWord(self.verifier.peak, 0.0, lease.posture)
        exchange.answered(200, word, Done(lease.posture, plan.mode, extra, applied, {}))
        exchange.watch(stream=stream)

    def served(self, exchange: Exchange) -> None:
        """Tell the exchange where its passes ran, and how long they have waited so far."""
        exchange.served(self.lease.replica.name, self.lease.admission, self.verifier.waited)

    def account(self, exchange: Exchange) -> None:
        """Tell the exchange what it took; once, when no more follows."""
        if not self._accounted:
            exchange.verified(self.report())
        self._accounted = True

    @property
    def applied(self) -> tuple[Mitigation, ...]:
        """What of the plan was done: all of it, or there is no answer."""
        return tuple(mitigation for mitigation in Mitigation if mitigation in self._plan.mitigations)

    def report(self) -> Report:
        """What it took so far."""
        counts = self._decoding.counts
        return Report(
            window=self._grid.window,
            grid=self._grid.kind,
            passes=counts.passes,
            repeats=counts.repeats,
            rollbacks=counts.rollbacks,
            drafted=counts.drafted,
            accepted=counts.accepted,
            decided=len(self._decoding.tokens),
            verifier_seconds=self.verifier.seconds,
            first_window=self._first,
        )


def evidence_of(released: Released) -> tuple[Token, ...]:
    """The tokens by their ids, with the two likeliest of each row."""
    return tuple(_seen(token.id, row) for token, row in zip(released.tokens, released.rows, strict=True))


def _seen(token: int, row: Row) -> Token:
    two = row.trimmed(_MARGIN, token)
    names = [f"{_PREFIX}{each}" for each in two.ids]
    own = two.ids.index(token)
    return Token(token, names[own], two.logprobs[own], tuple(zip(names, two.logprobs, strict=True)))


def _of_drafts(request: InferenceRequest, wanted: Wanted) -> dict[str, object]:
    """What the caller said that counts for drafts too: what ends them, and whose cache they may share."""
    said = {"ignore_eos": wanted.ignore_eos, "stop_token_ids": list(wanted.stop_token_ids), "stop": list(wanted.stop)}
    salt = request.members.get("cache_salt")
    return said if salt is None else said | {"cache_salt": salt}


def _form(offer: Offer, wanted: Wanted, chosen: Chosen, prompt: Sequence[int], created: int) -> Form:
    members = offer.request.members
    role = "assistant"
    if wanted.chat and members.get("add_generation_prompt") is False and members["messages"]:
        last = members["messages"][-1]
        role = str(last.get("role", role)) if isinstance(last, dict) else role
    kind = "chatcmpl" if wanted.chat else "cmpl"
    return Form(
        path=wanted.path,
        answer_id=f"{kind}-{offer.sender.request_id}",
        created=created,
        model=chosen.name,
        role=role,
        fingerprint=chosen.posture,
        prompt=tuple(prompt),
        logprobs=wanted.logprobs,
        token_ids=wanted.return_token_ids,
        usage=wanted.include_usage,
        continuous_usage=wanted.continuous_usage_stats,
    )
