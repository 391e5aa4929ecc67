"""A process that records batches and says so, to be killed: ``python -m tests.support.ledger_writer FILE FIRST``."""

import os
import sys
from itertools import count
from pathlib import Path
from typing import Final

from app.determinism.output import Blocks
from app.observation.sqlite import SqliteStore
from app.observation.store import CohortId, Reference, Sighting, Specimen

BATCH: Final = 20
RUN: Final = "run"
_COHORTS: Final = 500


def batch(number: int) -> list[Sighting]:
    """The sightings of a batch, each of which can be found again by its request."""
    found = []
    for place in range(BATCH):
        cohort = CohortId(f"{(number * BATCH + place) % _COHORTS:064x}", "standard", "p-1")
        reference = Reference("o-1", Blocks("characters", (b"12345678" * 4,)), "r", 1, 0)
        kept = Specimen("o-1", "r", "r", float(number), text="x" * 200)
        sighting = Sighting(cohort, "m", reference, "o-1", None, float(number), kept, RUN, f"{number}:{place}")
        found.append(sighting)
    return found


def main() -> None:
    """Record batch after batch, and acknowledge each by a line with its number once it is recorded."""
    store = SqliteStore(Path(sys.argv[1]))
    for number in count(int(sys.argv[2])):
        store.record(batch(number))
        os.write(1, b"%d\n" % number)


if __name__ == "__main__":
    main()
