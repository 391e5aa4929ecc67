"""One row of a pass: the most likely tokens at one place, and the one that is canonical.

The canonical token is the one with the highest logprob, the lowest id among equals. An engine shows the best k of a
row and promises no order among equals, so a tie may hide the lowest id. The rule is therefore: as long as the lowest
logprob shown still equals the best, nobody knows yet.
"""

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from app.errors import UnusableRow


@dataclass(frozen=True, slots=True)
class Row:
    """The best tokens of one place: ids with their logprobs (nats). As the engine sent it, in no order to rely on."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]

    def canonical(self, masked: Collection[int] = ()) -> int | None:
        """The canonical token among those that are not masked; None where more of the row must be seen.

        Raises UnusableRow for a row that says nothing: no entries, an id without a logprob, an id twice, a NaN.
        """
        self._check()
        best = min((entry for entry in self._entries() if entry[1] not in masked), default=None)
        return None if best is None or -best[0] == min(self.logprobs) else best[1]

    def trimmed(self, count: int, token: int) -> "Row":
        """The best ``count`` entries, highest first and lower ids first among equals, and ``token`` wherever it is."""
        entries = sorted(self._entries())
        kept = [entry for rank, entry in enumerate(entries) if rank < count or entry[1] == token]
        return Row(tuple(token for _, token in kept), tuple(-cost for cost, _ in kept))

    def _entries(self) -> Iterator[tuple[float, int]]:
        """Entries that sort as the rule does. A negated float is exact, so it can be turned back."""
        return zip((-logprob for logprob in self.logprobs), self.ids, strict=True)

    def _check(self) -> None:
        if not self.ids:
            raise UnusableRow("The verifier scored a token with an empty row.")
        if len(self.ids) != len(self.logprobs):
            raise UnusableRow(f"The verifier scored {len(self.ids)} tokens with {len(self.logprobs)} logprobs.")
        if len(set(self.ids)) < len(self.ids):
            raise UnusableRow("The verifier scored a token twice in one row.")
        if any(map(math.isnan, self.logprobs)):
            raise UnusableRow("The verifier scored a token with a logprob that is not a number.")
