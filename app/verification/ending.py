"""When an answer ends, and why: vLLM's rules in vLLM's order (0.32, ``check_stop`` in v1/core/sched/utils.py).

After each token: (1) it is the model's end token, unless ``ignore_eos``; (2) it is a stop id of the caller, or one of
the model's further end tokens, unless ``ignore_eos``; (3) the answer is as long as it may be. Stop strings come after
these, since they need the text. While fewer than ``min_tokens`` are there, none of those ids can be chosen at all,
``ignore_eos`` or not (``MinTokensLogitsProcessor``).
"""

from dataclasses import dataclass
from typing import Final, Literal

_NONE: Final[frozenset[int]] = frozenset()


@dataclass(frozen=True, slots=True)
class End:
    """Why an answer ended. ``stop_reason`` is the stop id or stop string of the caller or the model, or None."""

    finish_reason: Literal["stop", "length"]
    stop_reason: int | str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """The end rules of one answer. Lengths are tokens; ``stops`` are the caller's ids.

    ``eos`` is the tokenizer's end token; ``model_stops`` are the other end tokens of the generation config.
    Raises ValueError where no token would fit.
    """

    prompt: int
    length: int
    max_tokens: int
    min_tokens: int = 0
    eos: int | None = None
    model_stops: frozenset[int] = _NONE
    stops: frozenset[int] = _NONE
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        if self.most < 1:
            raise ValueError("an answer has one token at least")

    @property
    def most(self) -> int:
        """The most tokens that the answer can have."""
        return min(self.max_tokens, self.length - self.prompt)

    def masked(self, before: int) -> frozenset[int]:
        """The ids that cannot be chosen when the answer has so many tokens."""
        if before >= self.min_tokens:
            return _NONE
        return self.stops | self.model_stops | (_NONE if self.eos is None else {self.eos})

    def after(self, token: int, count: int) -> End | None:
        """The end of the answer, if this token is it; ``count`` includes the token."""
        if token == self.eos and not self.ignore_eos:
            return End("stop")
        if token in self.stops or (token in self.model_stops and not self.ignore_eos):
            return End("stop", token)
        return End("length") if count >= self.most else None
