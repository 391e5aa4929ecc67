"""What a verifier says of one pass, read and checked: nothing that is not exactly what was asked decides a token."""

import math
from dataclasses import dataclass
from typing import Any

from app.errors import UpstreamError
from app.verification.grid import Pass
from app.verification.rows import Row


@dataclass(frozen=True, slots=True)
class Scores:
    """The rows of the positions that a pass decides; ``seconds`` is how long its engine took."""

    rows: tuple[Row, ...]
    seconds: float


def read_scores(said: Any, wanted: Pass, k: int, vocabulary: int) -> Scores:  # noqa: ANN401 - any JSON
    """Read the answer to a pass that was asked for ``k`` alternatives.

    Raises UpstreamError for another number of rows, alternatives or cached tokens, and for what is no token or number.
    """
    try:
        ids, logprobs, cached, seconds = said["ids"], said["logprobs"], said["cached"], said.get("seconds")
        count = len(ids)
        rows = [_row(one, other, k, vocabulary) for one, other in zip(ids, logprobs, strict=True)]
    except (TypeError, ValueError, LookupError, AttributeError) as exc:
        raise UpstreamError(f"The verifier's scores cannot be read: {exc}.") from exc
    if cached != (wanted.cached or 0) or count != wanted.total - wanted.first + 1:
        raise UpstreamError(
            f"The verifier sent {count} rows after {cached} cached tokens, and not "
            f"{wanted.total - wanted.first + 1} after {wanted.cached or 0}."
        )
    return Scores(tuple(rows[: wanted.last - wanted.first + 1]), _duration(seconds))


def _row(ids: Any, logprobs: Any, k: int, vocabulary: int) -> Row:  # noqa: ANN401 - any JSON
    if not len(ids) == len(logprobs) == k:
        raise ValueError(f"a row of {len(ids)} tokens and {len(logprobs)} logprobs, and not of {k}")
    if not all(type(token) is int and 0 <= token < vocabulary for token in ids) or len(set(ids)) < len(ids):
        raise ValueError("a row holds what is no token, or one twice")
    if not all(type(logprob) in {int, float} and math.isfinite(logprob) for logprob in logprobs):
        raise ValueError("a row holds what is no number")
    return Row(tuple(ids), tuple(map(float, logprobs)))


def _duration(seconds: object) -> float:
    """What makes no sense as a duration is none: it counts for nothing but a figure."""
    known = float(seconds) if isinstance(seconds, int | float) and not isinstance(seconds, bool) else 0.0
    return known if math.isfinite(known) and known >= 0 else 0.0
