"""The way of one verified answer: draft, pass and release until it ends.

Every token is decided by the verifier alone (`app.verification`); what a pass has decided is final and released at
once. Nothing is held between two errands, so other requests draft and are verified meanwhile, and a caller that leaves
cancels the one errand that is under way.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from app.verification.answer import Token
from app.verification.decoding import Counts, Decoding, Undecided
from app.verification.ending import End
from app.verification.grid import Grid
from app.verification.request import Wanted
from app.verification.rows import Row
from app.verifier.drafts import Drafter
from app.verifier.passes import Verifier
from app.verifier.text import Text

_AHEAD_UNSEEN: Final = 4
"""Windows that are drafted at once, at most, for an answer that nobody reads before its end."""


@dataclass(frozen=True, slots=True)
class Released:
    """What one pass added to the answer, with the rows as they came; ``end`` is set on the last of them."""

    text: str
    tokens: tuple[Token, ...]
    rows: tuple[Row, ...]
    end: End | None


class Reach:
    """How many tokens to draft at once: ``most`` at first, a ``window`` after a rollback.

    From there it doubles whenever as many more draft tokens as it is were accepted, up to ``most`` again. A rollback,
    or the answer's end, wastes what is left over of a window and at most one and a half times the reach
    (`draft_length`), and all of the reach but a window was earned by accepted tokens, or was there at first. So all
    drafts of an answer have at most 2.5 tokens for each that is accepted, 2.5 windows for each rollback and for the
    end, and 1.5 (``most`` - ``window``) for the beginning.
    """

    def __init__(self, window: int, most: int) -> None:
        self._window = window
        self._most = most
        self._ahead = most
        self._rollbacks = 0
        self._accepted = 0

    def ahead(self, counts: Counts) -> int:
        """Tokens to draft now, where so much came of the drafts before."""
        if counts.rollbacks > self._rollbacks:
            self._ahead, self._rollbacks, self._accepted = self._window, counts.rollbacks, counts.accepted
        elif counts.accepted - self._accepted >= self._ahead:
            self._ahead, self._accepted = min(2 * self._ahead, self._most), counts.accepted
        return self._ahead


class Session:
    """One answer in the making, of at most ``most`` tokens: `next` until the end."""

    def __init__(
        self,
        verifier: Verifier,
        drafter: Drafter,
        wanted: Wanted,
        decoding: Decoding,
        grid: Grid,
        prompt: Sequence[int],
        most: int,
    ) -> None:
        self._verifier = verifier
        self._drafter = drafter
        self._decoding = decoding
        self._grid = grid
        self._prompt = prompt
        self._most = most
        self._reach = Reach(grid.window, grid.window * (1 if wanted.stream else _AHEAD_UNSEEN))
        self._text = Text(wanted, prompt)
        self._logprobs = wanted.logprobs
        self._fewest = wanted.min_tokens
        self._told = 0

    async def next(self) -> Released:
        """What the next pass adds. Not after the end. Raises what the verifier's errands raise."""
        await self._draft()
        return await self._release(await self._pass())

    async def _draft(self) -> None:
        """Draft what the pass lacks, and more where the answer goes on; see `draft_length`."""
        missing = self._decoding.draft_wanted()
        if missing:
            known = self._decoding.known()
            count = draft_length(missing, self._most - len(known), self._reach.ahead(self._decoding.counts))
            fewest = self._fewest - len(known)
            self._decoding.drafted(await self._drafter.draft([*self._prompt, *known], count, fewest))

    async def _pass(self) -> tuple[Row, ...]:
        """One pass, asked again for more alternatives while a tie leaves a token undecided."""
        wanted, candidate = self._decoding.wanted(), self._decoding.candidate()
        while True:
            rows = await self._verifier.score(wanted, candidate, self._decoding.logprobs_wanted(), self._grid)
            decided = self._decoding.take(rows)
            if not isinstance(decided, Undecided):
                return rows[:decided]

    async def _release(self, seen: tuple[Row, ...]) -> Released:
        """The text of what was decided and not released yet."""
        decoding, first = self._decoding, self._told
        rows = decoding.rows[first:] if self._logprobs is not None else []
        question = self._text.question(decoding.tokens, decoding.end, [row.ids for row in rows])
        piece = await self._verifier.text(question, self._text.read)
        if piece.stop is not None:
            decoding.cut(piece.stop.index + 1, piece.stop.string)
        self._told = len(decoding.tokens)
        fresh = decoding.tokens[first:]
        tokens = _tokens(fresh, rows[: len(fresh)], piece.decoded)
        return Released(piece.text, tokens, seen[: len(fresh)], decoding.end)


def draft_length(missing: int, room: int, ahead: int) -> int:
    """How many tokens to draft where a pass lacks ``missing`` and the answer has ``room`` for so many.

    Every draft waits for its turn, and on one engine the passes wait until it is over. So ``ahead`` tokens are drafted
    at least, and no rest is left that is less than half of that.
    """
    count = max(missing, ahead)
    return room if room - count < ahead // 2 else count


def _tokens(ids: Sequence[int], rows: Sequence[Row], decoded: Sequence[Sequence[str]]) -> tuple[Token, ...]:
    """The tokens as an answer shows them; without rows nobody asked for their logprobs."""
    if not rows:
        return tuple(Token(token) for token in ids)
    return tuple(_token(token, row, texts) for token, row, texts in zip(ids, rows, decoded, strict=False))


def _token(token: int, row: Row, texts: Sequence[str]) -> Token:
    own = row.ids.index(token)
    entries = list(zip(texts, row.logprobs, strict=True))
    return Token(token, texts[own], row.logprobs[own], (entries.pop(own), *entries))
