"""What the ladder sends: prompts of known length, and neighbours of the same length with other content. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

from app.diagnose.wire import Prompt

LONG_PROMPTS: Final = (129, 257, 641, 1025)
"""Tokens of the prompts that meet the prefix cache: one more than a multiple of the block sizes in use (16 to 128), so
that a hit leaves one token, which is then computed in the shape of a decode step, where a miss computes all of them in
the shape of a prefill. Measured on vLLM 0.32's CPU build: the answers to such prompts change with the cache, those to
prompts two tokens longer do not."""

SHORT_NEIGHBOUR: Final = 16
LONG_NEIGHBOUR: Final = 640
"""Tokens of neighbours whose KV is short, and long: within one block, and across many."""

NEIGHBOUR_LENGTH: Final = 20
"""Tokens of a neighbour in a batch; about those of a probed prompt."""

PARAGRAPH: Final = (
    "A clerk counts the boats that come in before the storm. Some carry salt, others wool, copper, lamp oil or letters "
    "for the mill behind the chapel. Nobody hurries. Each name goes into the book twice, once for the harbour and once "
    "for the owner, because ink fades and people forget. At noon a bell rings, the gate closes, and whoever waits "
    "outside may tell stories about winters, wolves, bridges, gardens, clocks and glass until it opens again."
)
"""Plain words of which neighbours and long prompts are made."""


@dataclass(frozen=True, slots=True)
class Material:
    """The prompts that are asked (`probes`, then `longs`, which are positions of prompts too) and what neighbours hold.

    ``vocabulary`` holds token ids of plain text, or words where ids are not known; then lengths are in words, and
    nothing is known of shapes.
    """

    probes: tuple[Prompt, ...]
    longs: tuple[Prompt, ...]
    vocabulary: tuple[int, ...] | tuple[str, ...]

    @classmethod
    def of(
        cls, probes: Sequence[Prompt], vocabulary: Sequence[int] | Sequence[str], lengths: Sequence[int]
    ) -> "Material":
        """With long prompts of these lengths, each of other content, that end in a probed prompt."""
        bare = cls(tuple(probes), (), tuple(vocabulary))  # type: ignore[arg-type] # all ids, or all words
        longs = [
            _joined(bare.filler(length - _length(probe), f"long {length}"), probe)
            for length, probe in zip(lengths, [*probes] * len(lengths), strict=False)
            if length > _length(probe)
        ]
        return cls(bare.probes, tuple(longs), bare.vocabulary)

    @property
    def exact(self) -> bool:
        """Whether prompts are token ids, and so of known length."""
        return not isinstance(self.probes[0], str)

    def prompt(self, position: int) -> Prompt:
        """The prompt at a position: the probes first, then the long ones."""
        return (*self.probes, *self.longs)[position]

    def filler(self, length: int, label: str) -> Prompt:
        """So many tokens of plain words in an order that belongs to the label. Equal labels, equal order."""
        drawn = Random(label).choices(self.vocabulary, k=length)  # noqa: S311 - shuffles words; nothing secret
        words = [word for word in drawn if isinstance(word, str)]
        return " ".join(words) if words else tuple(token for token in drawn if isinstance(token, int))


def _joined(front: Prompt, back: Prompt) -> Prompt:
    if isinstance(front, str) or isinstance(back, str):
        return f"{front} {back}"
    return front + back


def _length(prompt: Prompt) -> int:
    return len(prompt.split()) if isinstance(prompt, str) else len(prompt)
