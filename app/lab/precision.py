"""The number formats of the demonstrations, by the names that NumPy and ml_dtypes give them."""

import argparse
from collections.abc import Callable, Iterable
from typing import Any, Final, TypeAlias

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]
"""NumPy's types know nothing of ml_dtypes, so an array of ours may hold any number format."""

DTYPES: Final[dict[str, np.dtype[Any]]] = {
    "float32": np.dtype(np.float32),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float16": np.dtype(np.float16),
    "float8_e4m3fn": np.dtype(ml_dtypes.float8_e4m3fn),
}

SUMMED: Final = ("float32", "bfloat16", "float16")
"""The formats that servers add in or store between two kernels; the 8 bits are for storage and products only."""


_finfo: Final[Callable[[np.dtype[Any]], Any]] = ml_dtypes.finfo  # it has no types of its own


def limits(name: str) -> Any:  # noqa: ANN401 - what ml_dtypes says of a format has no type there
    """What ml_dtypes says of a format: ``bits``, ``nexp``, ``nmant``, ``max``, ``smallest_normal`` and more."""
    return _finfo(DTYPES[name])


def rounded(values: object, name: str) -> Array:
    """The values in that format, each rounded to the nearest; what is too large becomes what the format has for it."""
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(values).astype(DTYPES[name])


def bits(value: object, name: str) -> str:
    """The bits of one number, as ``sign exponent fraction``."""
    form = limits(name)
    whole = int.from_bytes(rounded(value, name).tobytes(), "little")
    text = f"{whole:0{form.bits}b}"
    return f"{text[0]} {text[1 : 1 + form.nexp]} {text[1 + form.nexp :]}"


def spacing(value: float, name: str) -> float:
    """The distance from the number nearest to ``value`` to the next one away from zero."""
    return float(np.spacing(rounded(value, name)))


def changed(one: Array, other: Array) -> int:
    """How many elements have other bits; the arrays have one shape and one format."""
    return int(np.count_nonzero(raw(one) != raw(other)))


def raw(values: Array) -> Array:
    """The bits of each element as an unsigned integer, in which 0 and -0 differ and NaN equals itself."""
    return np.asarray(values).view(f"u{values.dtype.itemsize}")


def distance(one: Array, other: Array) -> float:
    """The largest absolute difference of two elements, computed in float64."""
    return float(np.max(np.abs(one.astype(np.float64) - other.astype(np.float64)), initial=0.0))


def listed(choices: Iterable[str]) -> Callable[[str], tuple[str, ...]]:
    """The type of an option that names some of ``choices``, with commas between them, each once."""
    known = tuple(choices)

    def read(text: str) -> tuple[str, ...]:
        names = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
        unknown = [name for name in names if name not in known]
        if unknown:
            raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(known)}")
        return names

    return read
