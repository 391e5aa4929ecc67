"""What an operator can set of the guard. Environment variables, because vLLM gives a middleware nothing else."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from app.engine.admissions import KEPT
from app.engine.asgi import BUFFER_LIMIT
from app.scheduling.gate import GatePolicy

_POLICY: Final = {
    "exclusive_share": "REPRISE_EXCLUSIVE_SHARE",
    "phase_seconds": "REPRISE_EXCLUSIVE_PHASE_SECONDS",
    "key_seconds": "REPRISE_EXCLUSIVE_KEY_SECONDS",
    "most_shared": "REPRISE_QUEUE_SHARED",
    "most_exclusive": "REPRISE_QUEUE_EXCLUSIVE",
}
"""Field of `GatePolicy` -> variable. The gateway reads the same ones, for replicas without a guard."""


_MOST_ADMISSIONS: Final = 10_000_000
_DIGITS: Final = 12


@dataclass(frozen=True, slots=True)
class GuardOptions:
    """Times in seconds, sizes in bytes.

    ``queue_timeout``: how long a request waits for its turn, where its gateway does not say. ``body_timeout``: how long
    its body may take to arrive, before it gets a place in the queue at all. ``write_timeout``: how long a client may
    take nothing of its answer before its work is aborted. ``drain_deadline``: how long the engine may take to be empty
    for an exclusive request. ``buffer_limit``: the largest body; ``queue_bytes``: the most of all that wait or
    run. ``admissions``: how many the interval log keeps.
    """

    policy: GatePolicy = field(default_factory=GatePolicy)
    queue_timeout: float = 300.0
    body_timeout: float = 60.0
    write_timeout: float = 60.0
    drain_deadline: float = 30.0
    buffer_limit: int = BUFFER_LIMIT
    queue_bytes: int = 1024**3
    admissions: int = KEPT

    @classmethod
    def read(cls, environ: Mapping[str, str]) -> "GuardOptions":
        """From the environment. Raises ValueError naming the variable: a guard that guesses would be none."""
        policy = {
            name: _count(environ, variable) if name.startswith("most_") else _number(environ, variable)
            for name, variable in _POLICY.items()
            if environ.get(variable)
        }
        chosen: dict[str, float | int] = {}
        for name in ("queue_timeout", "body_timeout", "write_timeout"):
            variable = f"REPRISE_{name.upper()}"
            if environ.get(variable):
                chosen[name] = _number(environ, variable)
                if not 0 < chosen[name] < math.inf:
                    raise ValueError(f"{variable} must be a finite number of seconds over 0")
        if environ.get("REPRISE_GUARD_ADMISSIONS"):
            chosen["admissions"] = _count(environ, "REPRISE_GUARD_ADMISSIONS")
            if not 1 <= chosen["admissions"] <= _MOST_ADMISSIONS:
                raise ValueError(f"REPRISE_GUARD_ADMISSIONS must be from 1 to {_MOST_ADMISSIONS}")
        try:
            return cls(GatePolicy(**policy), **chosen)  # type: ignore[arg-type]  # numbers, checked by the classes
        except ValueError as exc:
            names = ", ".join(_POLICY[name] for name in policy)
            raise ValueError(f"{exc} (set by {names})") from exc


def _number(environ: Mapping[str, str], variable: str) -> float:
    text = environ[variable]
    try:
        return float(text)
    except ValueError as exc:
        raise ValueError(f"{variable} must be a number, not {text[:40]!r}") from exc


def _count(environ: Mapping[str, str], variable: str) -> int:
    text = environ[variable]
    if not (text.isascii() and text.isdigit() and len(text) <= _DIGITS):
        raise ValueError(f"{variable} must be a whole number, 0 or more, not {text[:40]!r}")
    return int(text)
