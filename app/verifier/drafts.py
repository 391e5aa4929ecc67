"""Drafts: guesses at the next tokens from any replica of the model, in the shared batch.

A draft never decides anything, so whatever goes wrong with one costs speed alone: it is then a draft of no tokens.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final

from app.determinism.mode import Mode
from app.determinism.output import TEXT_PATH
from app.determinism.plan import Plan
from app.errors import RepriseError
from app.upstream.replica import Replica
from app.verifier.errands import Lost, Sender

_NEUTRAL: Final[Mapping[str, object]] = {
    "temperature": 0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "return_token_ids": True,
    "stream": False,
}
"""What a verified answer is by definition; a model's own defaults would make drafts of other tokens."""

_log = logging.getLogger(__name__)


class Drafter:
    """Drafts for one request. ``members`` are the caller's own that count for a draft too.

    For ``patience`` seconds a draft is waited for, its queue included; then it counts as failed.
    """

    def __init__(self, sender: Sender, model: str | None, members: Mapping[str, object], *, patience: float) -> None:
        self._sender = sender
        self._plan = Plan(Mode.STANDARD, model)
        self._asked = {**_NEUTRAL, **members} | ({} if model is None else {"model": model})
        self._patience = patience
        self._sent = 0
        self._failed: Replica | None = None
        self._warned = False

    async def draft(self, ids: Sequence[int], count: int, fewest: int = 0) -> list[int]:
        """At most ``count`` tokens that may follow ``ids``; none where no replica would say.

        Before ``fewest`` of them the answer cannot end.
        """
        self._sent += 1
        content = {**self._asked, "prompt": list(ids), "max_tokens": count}
        if fewest > 0:
            content["min_tokens"] = min(fewest, count)
        try:
            told = await self._sender.leased(
                self._plan,
                TEXT_PATH,
                f"d{self._sent}",
                content,
                without=self._avoided(),
                patience=self._patience,
            )
        except RepriseError as error:
            self._failed = error.replica if isinstance(error, Lost) else self._failed
            self._warn(error)
            return []
        return _ids(told.said, count)

    def _avoided(self) -> Replica | None:
        """Who failed is not asked again while there is another one: it would cost every window a failure."""
        failed = self._failed
        return failed if failed is not None and self._sender.scheduler.another(self._plan, failed) else None

    def _warn(self, error: RepriseError) -> None:
        """Once for an answer: a drafter that is down fails in each of its windows."""
        if not self._warned:
            _log.warning("request %s has no draft: %s", self._sender.request_id, error.message)
        self._warned = True


def _ids(said: Any, most: int) -> list[int]:  # noqa: ANN401 - any JSON
    try:
        ids = said["choices"][0]["token_ids"]
    except (TypeError, LookupError):
        return []
    return [token for token in ids[:most] if type(token) is int] if isinstance(ids, list) else []
