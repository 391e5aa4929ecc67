"""One answer in the making: what to draft, what to ask of the verifier, and which tokens its rows decide.

The caller of this module moves the tokens; nothing here waits. The rules:

1. A pass is asked over the tokens decided so far, the draft after them, and any id where the draft is short.
2. Its rows decide from the first undecided position on. The canonical token of a row is final at once, since all
   before it was decided: the drafter has no say in it.
3. Where the pass held another token than the canonical one, later rows saw a wrong token and decide nothing. The rest
   of the draft is thrown away.
4. A row that does not tell the canonical token changes nothing: the same pass is asked again for more logprobs.

So each pass decides one token at least, whatever the draft, and which rows decide is a function of the position alone.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from app.errors import UnusableRow
from app.verification.ending import End, Ending
from app.verification.grid import Grid, Pass
from app.verification.rows import Row

FEWEST_LOGPROBS: Final = 2
"""With fewer than two entries a row cannot show that its best is the only one."""

_FIRST_LOGPROBS: Final = 8
"""How many are asked for first: they cost nothing beside the pass, and in bfloat16 every hundredth row or so ties."""

_MORE: Final = 4
"""How many times as many logprobs are asked for after a row that decided nothing; each time costs a pass."""


@dataclass(slots=True)
class Counts:
    """What it took. ``passes`` counts all of the verifier, ``repeats`` those of them that decided nothing.

    ``drafted`` counts the draft tokens that were of use or could have been, ``accepted`` those that the verifier chose
    too, ``rollbacks`` the passes that refuted a draft.
    """

    passes: int = 0
    repeats: int = 0
    rollbacks: int = 0
    drafted: int = 0
    accepted: int = 0


@dataclass(frozen=True, slots=True)
class Undecided:
    """The row of this position did not tell its canonical token with so many logprobs."""

    position: int
    logprobs: int


class Decoding:
    """Decides one answer. For one task; nothing in it may be changed from outside.

    ``vocabulary`` bounds the ids that a drafter may name. ``most_logprobs`` is what the verifier shows of a row at
    most, ``first_logprobs`` what is asked for while nothing ties. ``top`` says how many logprobs of each token the
    caller wants; None: none. ``tokens`` are final; ``rows`` has for each of them its ``top`` best entries and its own.
    ``end`` is None until the answer is complete.
    """

    __slots__ = (
        "_asked_again",
        "_draft",
        "_ending",
        "_filler",
        "_first_logprobs",
        "_grid",
        "_most_logprobs",
        "_prompt",
        "_top",
        "_vocabulary",
        "counts",
        "end",
        "rows",
        "tokens",
    )

    def __init__(
        self,
        prompt: Sequence[int],
        grid: Grid,
        ending: Ending,
        vocabulary: int,
        *,
        most_logprobs: int,
        top: int | None = None,
        filler: int = 0,
        first_logprobs: int = _FIRST_LOGPROBS,
    ) -> None:
        if not len(prompt) == grid.prompt == ending.prompt or grid.length != ending.length:
            raise ValueError("the grid and the end rules are those of another prompt or model")
        if not max(FEWEST_LOGPROBS, top or 0) <= most_logprobs or not 0 <= filler < vocabulary:
            raise ValueError("the verifier shows too little of a row, or the filler is no token")
        self.tokens: list[int] = []
        self.rows: list[Row] = []
        self.end: End | None = None
        self.counts = Counts()
        self._prompt = list(prompt)
        self._grid = grid
        self._ending = ending
        self._vocabulary = vocabulary
        self._most_logprobs = most_logprobs
        self._top = top
        self._filler = filler
        self._first_logprobs = max(first_logprobs, FEWEST_LOGPROBS)
        self._draft: list[int] = []
        self._asked_again = 0

    def wanted(self) -> Pass:
        """The pass that decides the next token; its ``first`` is that token's position. ValueError after the end."""
        if self.end is not None:
            raise ValueError("the answer is complete")
        position = len(self._prompt) + len(self.tokens)
        return replace(self._grid.deciding(position), first=position)

    def logprobs_wanted(self) -> int:
        """How many logprobs that pass must show of each row.

        All that can be had where the caller wants some: which of several equals are shown at a row's end depends on how
        many are asked for, and must not depend on how often.
        """
        if self._top:
            return self._most_logprobs
        fewest = self._first_logprobs + len(self._ending.masked(len(self.tokens)))
        return int(min(self._most_logprobs, fewest * _MORE**self._asked_again))

    def draft_wanted(self) -> int:
        """How many more draft tokens that pass can use; 0 also where the draft has come to the answer's end.

        The last token that a pass decides need not be drafted: no row that counts comes after it.
        """
        wanted = self.wanted()
        drafted = len(self.tokens) + len(self._draft)
        if self._draft and self._ending.after(self._draft[-1], drafted) is not None:
            return 0
        last = min(wanted.last, len(self._prompt) + self._ending.most - 1)
        return max(last - len(self._prompt) - drafted, 0)

    def known(self) -> list[int]:
        """The answer's tokens so far, decided or only drafted: what a drafter goes on from, after the prompt."""
        return [*self.tokens, *self._draft]

    def drafted(self, ids: Iterable[int]) -> None:
        """Take more of the draft, which may reach over windows.

        It ends before the first id that is no token, and with the first that would end the answer.
        """
        count = len(self.tokens) + len(self._draft)
        if self.end is not None or (self._draft and self._ending.after(self._draft[-1], count) is not None):
            return
        for token in ids:
            if not 0 <= token < self._vocabulary:
                return
            count += 1
            self._draft.append(token)
            self.counts.drafted += 1
            if self._ending.after(token, count) is not None:
                return

    def candidate(self) -> list[int]:
        """The ids over which the pass is asked: what is decided, the draft, and filler up to the pass's total."""
        total = self.wanted().total
        ids = [*self._prompt, *self.known()][:total]
        return ids + [self._filler] * (total - len(ids))

    def take(self, rows: Sequence[Row]) -> int | Undecided:
        """How many tokens the rows of that pass decided, or that it must be asked again, with nothing changed.

        The first row is of the pass's ``first`` position; rows after those that it decides do no harm. Raises
        UnusableRow where rows are missing or unusable, or the verifier can show no more and it is not enough.
        """
        wanted = self.wanted()
        self.counts.passes += 1
        if len(rows) < wanted.last - wanted.first + 1:
            raise UnusableRow(f"The verifier sent {len(rows)} rows for {wanted.last - wanted.first + 1} tokens.")
        decided: list[int] = []
        end: End | None = None
        for position in range(wanted.first, wanted.last + 1):
            before = len(self.tokens) + len(decided)
            token = rows[len(decided)].canonical(self._ending.masked(before))
            if token is None:
                return self._undecided(position)
            decided.append(token)
            end = self._ending.after(token, before + 1)
            if end is not None or not self._held(len(decided) - 1, token):
                break
        self._asked_again = 0
        self.rows += [row.trimmed(self._top or 0, token) for row, token in zip(rows, decided, strict=False)]
        self.tokens += decided
        self.end = end
        self._settle(decided)
        return len(decided)

    def cut(self, count: int, stop: str) -> None:
        """End the answer with its first ``count`` tokens, the last of which completed a stop string in the text."""
        if not 1 <= count <= len(self.tokens):
            raise ValueError(f"a stop string ends with one of the {len(self.tokens)} tokens, not with the {count}th")
        del self.tokens[count:], self.rows[count:], self._draft[:]
        self.end = End("stop", stop)

    def _held(self, index: int, token: int) -> bool:
        """Whether the pass held this token at the index'th undecided position, so that the next row saw it."""
        return token == (self._draft[index] if index < len(self._draft) else self._filler)

    def _undecided(self, position: int) -> Undecided:
        logprobs = self.logprobs_wanted()
        self.counts.repeats += 1
        if logprobs >= self._most_logprobs:
            raise UnusableRow(f"The verifier shows {logprobs} logprobs, which leave open what token {position} is.")
        self._asked_again += 1
        return Undecided(position, logprobs)

    def _settle(self, decided: Sequence[int]) -> None:
        """Count what became of the draft, and keep what the decided tokens leave of it."""
        held = self._draft[: len(decided)]
        agreed = next((n for n, (one, other) in enumerate(zip(held, decided, strict=False)) if one != other), len(held))
        self.counts.accepted += agreed
        if agreed < len(held):
            self.counts.rollbacks += 1
        self._draft = [] if agreed < len(held) or self.end is not None else self._draft[len(held) :]
