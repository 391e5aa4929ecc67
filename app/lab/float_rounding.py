"""Rounding an exact number once, to a binary format of any size: what the hardware's single operations promise."""

import math
from dataclasses import dataclass
from fractions import Fraction

from app.lab.precision import limits


@dataclass(frozen=True, slots=True)
class Format:
    """A binary floating-point format with subnormals.

    ``precision`` counts the significant bits, the leading one included; ``lowest`` is the exponent of the smallest
    normal number, ``2 ** lowest``; ``largest`` is the largest finite number.
    """

    precision: int
    lowest: int
    largest: Fraction

    def nearest(self, exact: Fraction) -> float:
        """The number of this format next to ``exact``, of two equally near ones the even; infinite beyond the largest.

        Source: IEEE 754-2019, 4.3.1, roundTiesToEven.
        """
        if exact == 0:
            return 0.0
        step = Fraction(2) ** (max(_exponent(abs(exact)), self.lowest) - self.precision + 1)
        # Python rounds a Fraction to the nearest integer, halves to the even one.
        value = round(exact / step) * step
        return float(value) if abs(value) <= self.largest else math.copysign(math.inf, exact)


def format_of(name: str) -> Format:
    """The format of that name in ``precision.DTYPES``."""
    form = limits(name)
    _, exponent = math.frexp(float(form.smallest_normal))
    return Format(form.nmant + 1, exponent - 1, Fraction(float(form.max)))


def _exponent(value: Fraction) -> int:
    """The largest ``e`` with ``2 ** e <= value``."""
    exponent = value.numerator.bit_length() - value.denominator.bit_length()
    return exponent if Fraction(2) ** exponent <= value else exponent - 1
