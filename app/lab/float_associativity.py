"""(a + b) + c against a + (b + c): one case with its bits, and how often a random triple differs."""

import math
from typing import Any, Final, NamedTuple

import numpy as np

from app.determinism.statistics import rate_text
from app.lab.demonstration import Sheet
from app.lab.part import Part
from app.lab.precision import Array, bits, raw, rounded

_COLUMNS: Final = ("format", "what", "value", "sign exponent fraction")


class Case(NamedTuple):
    """One triple in one format, and the two sums of it; ``tries`` is its place among random ones, 0 if it was given."""

    name: str
    operands: Array
    left: Array
    right: Array
    tries: int

    @property
    def representable(self) -> bool:
        """Whether the format holds the operands at all."""
        return bool(np.isfinite(self.operands.astype(np.float64)).all())

    @property
    def differs(self) -> bool:
        """Whether the two sums of operands that the format holds are different numbers."""
        return self.representable and bool(raw(self.left) != raw(self.right))


def both_ways(triples: Array) -> tuple[Array, Array]:
    """(a + b) + c and a + (b + c) of triples of shape ``(..., 3)``; each addition rounds to the array's format."""
    a, b, c = triples[..., 0], triples[..., 1], triples[..., 2]
    with np.errstate(over="ignore", invalid="ignore"):
        return (a + b) + c, a + (b + c)


def associativity(
    names: tuple[str, ...], operands: tuple[float, float, float] | None, trials: int, random: np.random.Generator
) -> Part:
    """Without operands, the case shown is the first of the random triples that differs, where one does.

    The triples are drawn from the standard normal distribution and rounded to each format.
    """
    draws = random.standard_normal((trials, 3))
    cases: list[Case] = []
    counts: dict[str, dict[str, int]] = {}
    for name in names:
        triples = rounded(draws, name)
        left, right = both_ways(triples)
        where = np.flatnonzero(raw(left) != raw(right))
        counts[name] = {"triples": trials, "differ": len(where)}
        if operands is not None:
            given = rounded([operands], name)
            one, other = both_ways(given)
            cases.append(Case(name, given[0], one[0], other[0], 0))
        elif len(where):
            first = int(where[0])
            cases.append(Case(name, triples[first], left[first], right[first], first + 1))
    return Part(
        (_cases(cases), _frequencies(counts)),
        (*(_sentence(case) for case in cases), _often(counts, trials)),
        {"cases": {case.name: _plain(case) for case in cases}, "random_triples": counts},
    )


def _cases(cases: list[Case]) -> Sheet:
    rows = []
    for case in cases:
        labels = ("a", "b", "c", "(a + b) + c", "a + (b + c)")
        for label, value in zip(labels, (*case.operands, case.left, case.right), strict=True):
            rows.append((case.name, label, f"{float(value):.9g}", bits(value, case.name)))
    return Sheet("The same three numbers, added in two orders", _COLUMNS, tuple(rows))


def _frequencies(counts: dict[str, dict[str, int]]) -> Sheet:
    rows = tuple((name, rate_text(count["differ"], count["triples"])) for name, count in counts.items())
    return Sheet("Random triples, normally distributed", ("format", "the two orders differ in"), rows)


def _sentence(case: Case) -> str:
    where = f"random triple {case.tries}, the first that differs" if case.tries else "the operands given"
    subject = f"{case.name} ({where})"
    if not case.representable:
        return f"{subject}: an operand is beyond the range of the format, so nothing can be said of the order."
    left, right = float(case.left), float(case.right)
    if not case.differs:
        return f"{subject}: both orders give {left:.9g}; no difference was seen."
    gap = abs(left - right)
    end = f"they differ by {gap:.3g}" if math.isfinite(gap) else "one order left the range of the format"
    return f"{subject}: (a + b) + c = {left:.9g}, but a + (b + c) = {right:.9g}; {end}."


def _often(counts: dict[str, dict[str, int]], trials: int) -> str:
    found = ", ".join(f"{count['differ']} in {name}" for name, count in counts.items())
    return f"Of {trials} random triples, the two orders give different numbers for {found}."


def _plain(case: Case) -> dict[str, Any]:
    a, b, c = case.operands
    values = {"a": a, "b": b, "c": c, "left_first": case.left, "right_first": case.right}
    return {
        "differs": case.differs,
        **{key: float(value) if np.isfinite(float(value)) else None for key, value in values.items()},
        **{f"{key}_bits": bits(value, case.name) for key, value in values.items()},
    }
