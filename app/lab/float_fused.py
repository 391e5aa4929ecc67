"""Fused multiply-add, which rounds once, against multiply then add, which rounds twice."""

import math
from fractions import Fraction
from typing import Final, NamedTuple

import numpy as np

from app.determinism.statistics import rate_text
from app.lab.demonstration import Sheet
from app.lab.float_rounding import Format, format_of
from app.lab.part import Part
from app.lab.precision import Array, rounded

_NAMES: Final = ("float32", "float16")
_UNDONE: Final = "c = -(a * b)"


class Product(NamedTuple):
    """``a * b + c`` rounded once and rounded twice, all in one format."""

    a: float
    b: float
    c: float
    fused: float
    separate: float

    @property
    def differs(self) -> bool:
        """Whether the second rounding changed the result."""
        return self.fused != self.separate


def multiply_add(a: float, b: float, c: float, form: Format) -> Product:
    """The operands are numbers of the format. The exact value is a fraction, so no wider format has to be trusted.

    Source: IEEE 754-2019, 5.4.1, fusedMultiplyAdd: as if with unbounded range and precision, rounded once.
    """
    product = Fraction(a) * Fraction(b)
    once = form.nearest(product)
    # Infinity is no fraction, and adding a finite number to it changes nothing.
    separate = once if math.isinf(once) else form.nearest(Fraction(once) + Fraction(c))
    return Product(a, b, c, form.nearest(product + Fraction(c)), separate)


def fused(trials: int, random: np.random.Generator) -> Part:
    """Normally distributed operands; and ``c = -(a * b)``, where the second way loses all that the first one keeps."""
    draws = random.standard_normal((trials, 3))
    products = {name: _products(draws, name) for name in _NAMES}
    counts = {name: sum(product.differs for product in found) for name, found in products.items()}
    shown = {name: _examples(found, name) for name, found in products.items()}
    rates = "; ".join(f"{name} {rate_text(counts[name], trials)}" for name in _NAMES)
    return Part(
        (_sheet(shown),),
        (
            f"Random a * b + c, where one rounding gives another number than two: {rates}.",
            *(_cancelled(name, product) for name in _NAMES for kind, product in shown[name] if kind == _UNDONE),
        ),
        {
            "fused_multiply_add": {
                name: {
                    "triples": trials,
                    "differ": counts[name],
                    "examples": [{"case": kind, **product._asdict()} for kind, product in shown[name]],
                }
                for name in _NAMES
            }
        },
    )


def _products(draws: Array, name: str) -> list[Product]:
    form = format_of(name)
    triples = rounded(draws, name).astype(np.float64).tolist()
    return [multiply_add(a, b, c, form) for a, b, c in triples]


def _examples(found: list[Product], name: str) -> list[tuple[str, Product]]:
    """The first random triple that differs, and the first product that is not exact, minus itself as rounded."""
    form = format_of(name)
    cancelled = (multiply_add(p.a, p.b, -form.nearest(Fraction(p.a) * Fraction(p.b)), form) for p in found)
    firsts = (("random", next(filter(_is_shown, found), None)), (_UNDONE, next(filter(_is_shown, cancelled), None)))
    return [(kind, product) for kind, product in firsts if product is not None]


def _is_shown(product: Product) -> bool:
    return product.differs


def _sheet(shown: dict[str, list[tuple[str, Product]]]) -> Sheet:
    rows = tuple(
        (name, kind, *(f"{value:.9g}" for value in product))
        for name, examples in shown.items()
        for kind, product in examples
    )
    return Sheet("a * b + c", ("format", "case", "a", "b", "c", "rounded once", "rounded twice"), rows)


def _cancelled(name: str, product: Product) -> str:
    return (
        f"{name}, {_UNDONE}: two roundings leave {product.separate:g}, one leaves {product.fused:.3g}, which is the "
        "rounding error of the product."
    )
