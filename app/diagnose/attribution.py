"""Whether answers differ more between conditions than within one: a stratified permutation test. Pure.

A server that does not repeat itself at all differs in every comparison, so a difference alone blames nobody. Each rung
therefore asks every prompt several times under each of its conditions. If the condition does nothing, the labels of
the answers could as well be exchanged; the share of relabellings that part the answers at least as well as the true
labels do is the p-value. It holds for any kind of noise within a condition, arrival jitter included, as long as that
does not go with the condition.

Source: the statistic is an energy distance, mean distance between conditions minus mean distance within (G. J. Szekely
and M. L. Rizzo, 2013); the sequential stop is that of J. Besag and P. Clifford, "Sequential Monte Carlo p-values",
Biometrika 78 (1991) 301-304.
"""

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

from app.diagnose.sample import Sample, distance

Apart = Callable[[Sample, Sample], float]

SIGNIFICANCE: Final = 0.005
"""A condition is blamed at a p-value of at most this. Some five conditions are tested, each of them at most twice (what
is unclear gets more repeats), so a server on which none acts is falsely blamed in at most 5 of 100 runs."""

DOUBT: Final = 0.2
"""A p-value from `SIGNIFICANCE` up to this leaves a condition undecided."""

_PERMUTATIONS: Final = 999
_ENOUGH: Final = 20
"""So many relabellings at least as good settle that there is nothing to see."""


@dataclass(frozen=True, slots=True)
class Stratum:
    """The answers to one prompt, in units that may be exchanged: a unit is one or more answers of one condition.

    ``labels`` holds the condition of each unit.
    """

    units: tuple[tuple[Sample, ...], ...]
    labels: tuple[Hashable, ...]

    @classmethod
    def of(cls, units: Mapping[Hashable, Iterable[Sequence[Sample]]]) -> "Stratum":
        """From the units of each condition."""
        pairs = [(label, tuple(unit)) for label, several in units.items() for unit in several]
        return cls(tuple(unit for _, unit in pairs), tuple(label for label, _ in pairs))


@dataclass(frozen=True, slots=True)
class Attribution:
    """The p-value of a condition, and ``attainable``, the least that these answers could have given."""

    p: float
    attainable: float

    @property
    def blamed(self) -> bool:
        """Whether the condition changes answers."""
        return self.p <= SIGNIFICANCE

    @property
    def decided(self) -> bool:
        """Whether it is blamed, or chance alone would often do as much and answers enough were there to blame it."""
        return self.blamed or (self.p > DOUBT and self.attainable <= SIGNIFICANCE)


def attribute(strata: Iterable[Stratum], *, apart: Apart = distance, seed: int = 0) -> Attribution:
    """How likely the differences between conditions are if the condition does nothing. Equal input, equal result.

    ``apart`` says how far two answers to one prompt are apart.
    """
    tables = [table for stratum in strata if (table := _Table.of(stratum, apart)) is not None]
    if not tables:
        return Attribution(p=1.0, attainable=1.0)
    attainable = max(math.prod(table.attainable for table in tables), 1.0 / (_PERMUTATIONS + 1))
    observed = sum(table.within(range(len(table.starts))) for table in tables)
    random = Random(seed)  # noqa: S311 - relabels answers; nothing secret
    as_good = done = 0
    while done < _PERMUTATIONS and as_good < _ENOUGH:
        done += 1
        if sum(table.within(table.shuffled(random)) for table in tables) <= observed + _ROUNDING:
            as_good += 1
    if as_good == _ENOUGH:
        return Attribution(p=_ENOUGH / done, attainable=attainable)
    return Attribution(p=(as_good + 1) / (done + 1), attainable=attainable)


_ROUNDING: Final = 1e-9


@dataclass(frozen=True, slots=True)
class _Table:
    """Distances between the units of one stratum, scaled to a mean of 1, so that no prompt outweighs another.

    Units of one condition lie together; ``starts`` holds, for each place, where its condition begins. The sum of all
    distances stays when units change places, so the statistic is a falling function of those within conditions alone,
    and ``weight`` is its slope: one over the pairs within, and one over those between.
    """

    starts: tuple[int, ...]
    rows: tuple[tuple[float, ...], ...]
    weight: float
    attainable: float

    @classmethod
    def of(cls, stratum: Stratum, apart: Apart) -> "_Table | None":
        """None where nothing differs, or where no condition has two units, or none but one: such say nothing."""
        order = sorted(range(len(stratum.units)), key=lambda place: stratum.labels.index(stratum.labels[place]))
        units = [stratum.units[place] for place in order]
        labels = [stratum.labels[place] for place in order]
        raw = [[_between(unit, other, apart) for other in units[:place]] for place, unit in enumerate(units)]
        total = sum(map(sum, raw))
        pairs = len(units) * (len(units) - 1) // 2
        within = sum(place - labels.index(label) for place, label in enumerate(labels))
        if not total or not within or within == pairs:
            return None
        rows = [[0.0] * len(units) for _ in units]
        for i, row in enumerate(raw):
            for j, far in enumerate(row):
                rows[i][j] = rows[j][i] = far * pairs / total
        starts = tuple(labels.index(label) for label in labels)
        weight = 1 / within + 1 / (pairs - within)
        return cls(starts, tuple(map(tuple, rows)), weight, 1.0 / _partitions(labels))

    def within(self, places: Sequence[int]) -> float:
        """The weighted sum of the distances within conditions, with the units at these places."""
        total = 0.0
        for place, start in enumerate(self.starts):
            row = self.rows[places[place]]
            for other in places[start:place]:
                total += row[other]
        return total * self.weight

    def shuffled(self, random: Random) -> list[int]:
        """The units in another order."""
        places = list(range(len(self.starts)))
        random.shuffle(places)
        return places


def _between(one: Sequence[Sample], other: Sequence[Sample], apart: Apart) -> float:
    return sum(apart(left, right) for left in one for right in other) / (len(one) * len(other))


def _partitions(labels: Sequence[Hashable]) -> int:
    """In how many ways units can be dealt into unnamed groups of these sizes."""
    sizes = list(Counter(labels).values())
    named = math.factorial(len(labels)) // math.prod(math.factorial(size) for size in sizes)
    return named // math.prod(math.factorial(count) for count in Counter(sizes).values())
