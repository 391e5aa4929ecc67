"""Modes and mitigations: the product's vocabulary as data.

A mitigation is one countermeasure. A mode is a named set of them, named by mechanism and never by promise.
Who honours a mitigation decides what can go wrong with it:

* admission mitigations (``batch_isolation``) are honoured by the gate of the replica;
* request mitigations (``cache_bypass``, ``pinned_seed``, ``tiny_temperature``) are edits of the body;
* posture mitigations (``eager``, ``fixed_kv_split``, ``batch_invariance``, ``framework_determinism``) are set when the
  engine is launched; a request can only be routed to a replica whose observed posture has them.
"""

import difflib
from enum import StrEnum
from typing import Final


class Mitigation(StrEnum):
    """One countermeasure, by the name that callers, headers and metrics use."""

    BATCH_ISOLATION = "batch_isolation"
    CACHE_BYPASS = "cache_bypass"
    EAGER = "eager"
    FIXED_KV_SPLIT = "fixed_kv_split"
    BATCH_INVARIANCE = "batch_invariance"
    FRAMEWORK_DETERMINISM = "framework_determinism"
    TINY_TEMPERATURE = "tiny_temperature"
    PINNED_SEED = "pinned_seed"
    VERIFICATION = "verification"


class Mode(StrEnum):
    """What a caller asks for; ``CUSTOM`` is reported when mitigations were named without a mode."""

    STANDARD = "standard"
    SEEDED = "seeded"
    ISOLATED = "isolated"
    INVARIANT = "invariant"
    HARDENED = "hardened"
    VERIFIED = "verified"
    CUSTOM = "custom"


POSTURE_MITIGATIONS: Final = frozenset(
    {
        Mitigation.EAGER,
        Mitigation.FIXED_KV_SPLIT,
        Mitigation.BATCH_INVARIANCE,
        Mitigation.FRAMEWORK_DETERMINISM,
    }
)

MODE_MITIGATIONS: Final[dict[Mode, frozenset[Mitigation]]] = {
    Mode.STANDARD: frozenset(),
    Mode.SEEDED: frozenset({Mitigation.PINNED_SEED, Mitigation.TINY_TEMPERATURE}),
    Mode.ISOLATED: frozenset({Mitigation.BATCH_ISOLATION, Mitigation.CACHE_BYPASS, Mitigation.PINNED_SEED}),
    Mode.INVARIANT: frozenset({Mitigation.BATCH_INVARIANCE, Mitigation.PINNED_SEED}),
    Mode.HARDENED: frozenset(
        {
            Mitigation.BATCH_ISOLATION,
            Mitigation.CACHE_BYPASS,
            Mitigation.EAGER,
            Mitigation.FIXED_KV_SPLIT,
            Mitigation.FRAMEWORK_DETERMINISM,
            Mitigation.TINY_TEMPERATURE,
            Mitigation.PINNED_SEED,
        }
    ),
    Mode.VERIFIED: frozenset({Mitigation.VERIFICATION, Mitigation.CACHE_BYPASS}),
}
"""The mitigations of each mode that a caller can name."""

REQUESTABLE_MODES: Final = tuple(MODE_MITIGATIONS)
"""The modes that a caller may ask for, in the order of the README's table."""

DETERMINISTIC_MODES: Final = frozenset({Mode.ISOLATED, Mode.INVARIANT, Mode.HARDENED, Mode.VERIFIED})
"""Modes whose divergence is an alarm."""

_LONGEST: Final = 40


def did_you_mean(name: str) -> str:
    """The end of an error about a name that is no mode: the mode that is near it, in whatever case; else nothing."""
    near = difflib.get_close_matches(name.strip().lower()[:_LONGEST], REQUESTABLE_MODES, 1)
    return f"; did you mean '{near[0]}'?" if near else ""
