"""What it took to make one verified answer: for its headers, its receipt and the metrics."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Report:
    """Counts of passes and tokens, and times in seconds.

    ``passes`` counts all, ``repeats`` those of them that decided nothing, ``rollbacks`` those that refuted a draft.
    ``drafted`` tokens came from a drafter, ``accepted`` of them were the verifier's choice too, ``decided`` tokens are
    the answer. ``verifier_seconds`` is what the passes took on their engine. ``first_window`` is from the plan to the
    first tokens, None where there were none.
    """

    window: int
    grid: str
    passes: int
    repeats: int
    rollbacks: int
    drafted: int
    accepted: int
    decided: int
    verifier_seconds: float
    first_window: float | None

    def definition(self) -> list[tuple[str, object]]:
        """What the answer is a function of, besides prompt and posture, as (name, value) pairs."""
        return [("window", self.window), ("grid", self.grid)]

    def facts(self) -> list[tuple[str, object]]:
        """What the answer says of it, as (name, value) pairs."""
        return [
            *self.definition(),
            ("passes", self.passes),
            ("rollbacks", self.rollbacks),
            ("drafted", self.drafted),
            ("accepted", self.accepted),
            ("verifier_seconds", f"{self.verifier_seconds:.6f}"),
        ]
