"""Float32, FP16, BF16 and FP8-E4M3 side by side: range, spacing, and what becomes of some values."""

import math
from typing import Final

from app.lab.demonstration import Sheet
from app.lab.part import Part
from app.lab.precision import DTYPES, limits, rounded, spacing

_NAMES: Final = tuple(DTYPES)
_VALUES: Final = (0.1, 1.0 / 3.0, 1.001, 20.3, 300.0, 449.0, 70_000.0, 1e-5)


def formats() -> Part:
    """Two tables with a column per format; the figures are those of ml_dtypes and of real casts."""
    facts = {name: _facts(name) for name in _NAMES}
    casts = {name: [_cast(value, name) for value in _VALUES] for name in _NAMES}
    return Part(
        (_ranges(facts), _becomes(casts)),
        (_reach(facts), _near_20(facts)),
        {
            "formats": facts,
            "casts": {
                "values": list(_VALUES),
                **{name: [cast if math.isfinite(cast) else None for cast in row] for name, row in casts.items()},
            },
        },
    )


def _cast(value: float, name: str) -> float:
    return float(rounded(value, name))


def _facts(name: str) -> dict[str, float]:
    form = limits(name)
    return {
        "bits": int(form.bits),
        "exponent_bits": int(form.nexp),
        "fraction_bits": int(form.nmant),
        "largest": float(form.max),
        "smallest_normal": float(form.smallest_normal),
        "smallest_subnormal": float(form.smallest_subnormal),
        "spacing_at_1": spacing(1.0, name),
        "spacing_at_20": spacing(20.0, name),
    }


def _ranges(facts: dict[str, dict[str, float]]) -> Sheet:
    rows = tuple(
        (label.replace("_", " "), *(f"{facts[name][label]:.6g}" for name in _NAMES)) for label in facts[_NAMES[0]]
    )
    return Sheet("Four formats", ("", *_NAMES), rows)


def _becomes(casts: dict[str, list[float]]) -> Sheet:
    rows = tuple(
        (f"{value:.6g}", *(f"{cast:.9g}" for cast in row))
        for value, *row in zip(_VALUES, *(casts[name] for name in _NAMES), strict=True)
    )
    return Sheet("What a value becomes in a bare cast (engines clip it to the range first)", ("", *_NAMES), rows)


def _reach(facts: dict[str, dict[str, float]]) -> str:
    half, brain, eight = (facts[name] for name in ("float16", "bfloat16", "float8_e4m3fn"))
    return (
        f"FP16 is {brain['spacing_at_1'] / half['spacing_at_1']:g} times finer than BF16, but ends at "
        f"{half['largest']:g}, where BF16 reaches {brain['largest']:.3g}; FP8-E4M3 ends at {eight['largest']:g}."
    )


def _near_20(facts: dict[str, dict[str, float]]) -> str:
    half, brain, eight = (facts[name]["spacing_at_20"] for name in ("float16", "bfloat16", "float8_e4m3fn"))
    return (
        f"At 20, a usual size of a logit, neighbours are {half:g} (FP16), {brain:g} (BF16) and {eight:g} (FP8-E4M3) "
        "apart: two logits stored there are equal, or at least so far apart."
    )
