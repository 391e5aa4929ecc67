"""A float of five bits, small enough to write out: 1 sign, 2 exponent and 2 fraction bits, with subnormals."""

from fractions import Fraction
from itertools import pairwise
from typing import Final

import numpy as np

from app.lab.demonstration import Sheet
from app.lab.float_rounding import Format
from app.lab.part import Part

_EXPONENT_BITS: Final = 2
_FRACTION_BITS: Final = 2
_BIAS: Final = 1
_CHARACTERS_PER_UNIT: Final = 8  # the least at which the finest step is two characters

TOY: Final = Format(_FRACTION_BITS + 1, 1 - _BIAS, Fraction(7))
"""No code is spent on infinity or NaN, as in FP8-E4M3 none is on infinity, so the largest number is 7."""


def toy_value(code: int) -> float:
    """The number that the five bits of ``code`` stand for.

    The formula is IEEE 754's: ``(-1)**s * 2**(e - bias) * (1 + f / 4)``, and ``2**(1 - bias) * f / 4`` for ``e = 0``.
    """
    sign = -1.0 if code >> (_EXPONENT_BITS + _FRACTION_BITS) else 1.0
    exponent = code >> _FRACTION_BITS & ((1 << _EXPONENT_BITS) - 1)
    fraction = (code & ((1 << _FRACTION_BITS) - 1)) / (1 << _FRACTION_BITS)
    if exponent == 0:
        return float(sign * 2.0 ** (1 - _BIAS) * fraction)
    return float(sign * 2.0 ** (exponent - _BIAS) * (1.0 + fraction))


def toy_numbers() -> tuple[float, ...]:
    """Every number of the format in ascending order; the two zeros are one number."""
    return tuple(sorted({toy_value(code) for code in range(1 << (1 + _EXPONENT_BITS + _FRACTION_BITS))}))


def triples_that_differ() -> tuple[int, int]:
    """How many triples of the format differ by the order of addition, of how many whose sums stay in its range."""
    numbers = toy_numbers()
    index = {number: place for place, number in enumerate(numbers)}
    beyond = len(numbers)
    table = np.full((beyond + 1, beyond + 1), beyond)
    for a in numbers:
        for b in numbers:
            table[index[a], index[b]] = index.get(TOY.nearest(Fraction(a) + Fraction(b)), beyond)
    i, j, k = np.meshgrid(*[np.arange(beyond)] * 3, indexing="ij")
    left, right = table[table[i, j], k], table[i, table[j, k]]
    within = (left < beyond) & (right < beyond)
    return int(np.count_nonzero(within & (left != right))), int(np.count_nonzero(within))


def toy() -> Part:
    """The number line, and how often its addition is not associative: counted over all triples, not sampled."""
    numbers = toy_numbers()
    positive = tuple(number for number in numbers if number >= 0.0)
    gaps = [after - before for before, after in pairwise(positive)]
    differ, within = triples_that_differ()
    spread = f"{min(gaps):g} apart near 0 and {max(gaps):g} apart at the end"
    return Part(
        (_line(positive), _codes()),
        (
            f"The five-bit float has {len(numbers)} numbers up to {numbers[-1]:g}; neighbours are {spread}.",
            f"Of all its {within} triples whose sums stay in range, {differ} give another result in the other order.",
        ),
        {"toy": {"numbers": list(numbers), "triples_in_range": within, "triples_that_differ": differ}},
    )


def _line(positive: tuple[float, ...]) -> Sheet:
    width = round(positive[-1] * _CHARACTERS_PER_UNIT) + 1
    marks, labels = ["-"] * width, [" "] * width
    for number in positive:
        place = round(number * _CHARACTERS_PER_UNIT)
        marks[place] = "|"
        if number.is_integer():
            labels[place] = f"{number:g}"
    return Sheet("A five-bit float: each mark is a number, none between", ("".join(labels),), (("".join(marks),),))


def _codes() -> Sheet:
    rows = []
    per_row = 1 << _FRACTION_BITS
    for exponent in range(1 << _EXPONENT_BITS):
        values = [toy_value(exponent * per_row + fraction) for fraction in range(per_row)]
        kind = "normal" if exponent else "subnormal"
        rows.append((f"0 {exponent:02b} ..", kind, ", ".join(f"{v:g}" for v in values), f"{values[1] - values[0]:g}"))
    columns = ("sign exponent fraction", "kind", "fraction 00 to 11", "spacing")
    return Sheet("Its codes by exponent; the negative ones mirror them", columns, tuple(rows))
