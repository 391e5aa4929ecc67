"""What fakes of a store have in common: nothing to read."""

from app.observation.store import CohortId, CohortSummary, RunEntry, Specimen, StoreSize


class NothingToRead:
    """The reading side of a store that holds nothing."""

    def cohorts(
        self, *, limit: int, before: float | None = None, mode: str | None = None, diverged: bool = False
    ) -> list[CohortSummary]:
        """None."""
        del limit, before, mode, diverged
        return []

    def specimens(self, cohort: CohortId) -> list[tuple[Specimen, int]]:
        """None."""
        del cohort
        return []

    def runs(self, *, limit: int) -> list[tuple[str, int]]:
        """None."""
        del limit
        return []

    def run(self, label: str, *, after: int, limit: int) -> list[RunEntry]:
        """None."""
        del label, after, limit
        return []

    def size(self) -> StoreSize:
        """Empty."""
        return StoreSize(0, 0, 0)
