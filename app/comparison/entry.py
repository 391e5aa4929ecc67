"""What is compared, wherever it came from: a line of a file, or an answer that the ledger keeps of a run."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from app.determinism.output import Output


class NotComparable(Exception):
    """The command cannot run; the message is one line for the terminal, with file and line where there is one."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One request with its answer.

    ``key`` is equal for repeats of one request. ``place`` says where it is ("line 3"), ``title`` what was asked, for a
    reader. ``digest`` is that of the answer, None where there is none to compare, and ``problem`` then says why.
    ``output`` is the answer itself, or what is known of its texts; None where only the digest is kept. ``mode`` and
    ``posture`` are the server's word, None where it said nothing.
    """

    key: str
    place: str
    title: str
    digest: str | None
    output: Output | None
    problem: str | None = None
    mode: str | None = None
    posture: str | None = None


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two runs. ``only_texts`` says that its outputs are the kept texts, perhaps cut and redacted."""

    name: str
    entries: tuple[Entry, ...]
    only_texts: bool = False

    @property
    def modes(self) -> Mapping[str, int]:
        """How many answers came in which mode, "unknown" among them."""
        return Counter(entry.mode or "unknown" for entry in self.entries)

    @property
    def postures(self) -> Mapping[str, int]:
        """How many answers came from which posture, "unknown" among them."""
        return Counter(entry.posture or "unknown" for entry in self.entries)
