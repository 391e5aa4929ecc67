"""From what the caller said to one resolved decision: the plan.

A mode can be named in three places: the header ``x-determinism-mode``, the body member ``determinism``, and a suffix
of the model (``smollm2@isolated``). Places that disagree are an error, never a precedence. Where none is named, the
default rules. Single mitigations add to the mode; named alone they make the mode ``custom``.
"""

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Any, Final

from app.determinism.mode import (
    MODE_MITIGATIONS,
    REQUESTABLE_MODES,
    Mitigation,
    Mode,
    did_you_mean,
)
from app.determinism.request import InferenceRequest
from app.errors import InvalidRequest

MODE_HEADER: Final = "x-determinism-mode"
MITIGATIONS_HEADER: Final = "x-determinism-mitigations"
ON_UNAVAILABLE_HEADER: Final = "x-determinism-on-unavailable"
WINDOW_HEADER: Final = "x-determinism-window"

_WINDOW_MEMBER: Final = "determinism.window"
_MOST_DIGITS: Final = 10

DEFAULT_WINDOW: Final = 128
MOST_WINDOW: Final = 4096
"""Tokens; what an operator may allow at most."""


class OnUnavailable(StrEnum):
    """What happens when a mitigation cannot be honoured."""

    REJECT = "reject"
    REPORT = "report"


@dataclass(frozen=True, slots=True)
class Wish:
    """What one place (header or body) says; None and empty where it says nothing."""

    mode: Mode | None = None
    mitigations: frozenset[Mitigation] = frozenset()
    on_unavailable: OnUnavailable | None = None
    window: int | None = None


NO_WISH: Final = Wish()


@dataclass(frozen=True, slots=True)
class Plan:
    """The resolved decision for one request. ``window`` is in tokens, None for an answer that is not verified."""

    mode: Mode
    model: str | None
    mitigations: frozenset[Mitigation] = frozenset()
    on_unavailable: OnUnavailable = OnUnavailable.REJECT
    window: int | None = None

    @property
    def exclusive(self) -> bool:
        """Whether the request must be alone on its engine."""
        return Mitigation.BATCH_ISOLATION in self.mitigations

    @property
    def welcome(self) -> frozenset[Mitigation]:
        """Mitigations that count as applied where the posture has them, and are not missed where it does not."""
        if self.mode is Mode.HARDENED:
            return frozenset({Mitigation.BATCH_INVARIANCE}) - self.mitigations
        return frozenset()


def resolve(
    request: InferenceRequest,
    header: Wish,
    default: Mode,
    served: Collection[str],
    window: int = DEFAULT_WINDOW,
    max_window: int = MOST_WINDOW,
) -> Plan:
    """The plan for a request.

    ``served`` holds the model names that replicas answer to; a name among them is never read as having a suffix.
    ``window`` is that of verified answers, in tokens, where the caller names none, and he may name ``max_window`` at
    most. Raises InvalidRequest naming the place that is wrong or disagrees.
    """
    if "determinism" not in request.members and header is NO_WISH and "@" not in (request.model or ""):
        if default is not Mode.STANDARD:
            return _plan(default, request.model, NO_WISH, NO_WISH, window)
        # Kept only for names that exist: a caller must not fill the memory with names of his own.
        return _standard(request.model) if request.model in served else Plan(Mode.STANDARD, request.model)
    body = _read_body(request.members.get("determinism"), max_window)
    _window(header.window, max_window, WINDOW_HEADER)
    model, suffix = _split_suffix(request.model, served)
    named = {
        f"the header '{MODE_HEADER}'": header.mode,
        "the member 'determinism'": body.mode,
        "the suffix of 'model'": suffix,
    }
    mode = _agreed(named)
    if mode is None:
        mode = Mode.CUSTOM if header.mitigations | body.mitigations else default
    return _plan(mode, model, header, body, window)


def read_headers(
    mode: str | None, mitigations: str | None, on_unavailable: str | None, window: str | None = None
) -> Wish:
    """The wish of the request headers. Raises InvalidRequest naming the header."""
    if mode is None and mitigations is None and on_unavailable is None and window is None:
        return NO_WISH
    names = [name.strip() for name in (mitigations or "").split(",")]
    return Wish(
        None if mode is None else _mode(mode.strip(), MODE_HEADER),
        frozenset(_mitigation(name, MITIGATIONS_HEADER) for name in names if name),
        None if on_unavailable is None else _on_unavailable(on_unavailable.strip(), ON_UNAVAILABLE_HEADER),
        None if window is None else _whole(window.strip()),
    )


def _whole(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < _MOST_DIGITS):
        raise InvalidRequest(f"'{WINDOW_HEADER}' must be an integer, not {_shown(text)}.", param=WINDOW_HEADER)
    return int(text)


def _read_body(value: object, max_window: int) -> Wish:
    match value:
        case None:
            return NO_WISH
        case str():
            return Wish(_mode(value, "determinism"))
        case dict():
            return _read_object(value, max_window)
        case _:
            raise InvalidRequest("'determinism' must be a mode's name or an object.", param="determinism")


def _read_object(value: dict[str, Any], max_window: int) -> Wish:
    for name in value:
        if name not in {"mode", "mitigations", "on_unavailable", "window"}:
            raise InvalidRequest(
                f"'determinism.{name[:40]}' is unknown; known are mode, mitigations, on_unavailable and window.",
                param=f"determinism.{name}",
            )
    names = value.get("mitigations")
    if names is not None and not isinstance(names, list):
        raise InvalidRequest("'determinism.mitigations' must be an array of names.", param="determinism.mitigations")
    mode, on_unavailable = value.get("mode"), value.get("on_unavailable")
    return Wish(
        None if mode is None else _mode(mode, "determinism.mode"),
        frozenset(_mitigation(name, "determinism.mitigations") for name in names or ()),
        None if on_unavailable is None else _on_unavailable(on_unavailable, "determinism.on_unavailable"),
        _window(value.get("window"), max_window, _WINDOW_MEMBER),
    )


def _window(value: object, most: int, place: str) -> int | None:
    if value is None:
        return None
    if type(value) is not int or not 1 <= value <= most:
        raise InvalidRequest(f"'{place}' must be an integer from 1 to {most}, not {_shown(value)}.", param=place)
    return value


def _agreed_window(header: int | None, body: int | None, mode: Mode, *, verified: bool) -> int | None:
    """The window that was named, if one was."""
    place = WINDOW_HEADER if body is None else _WINDOW_MEMBER
    named = header if body is None else body
    if named is not None and not verified:
        raise InvalidRequest(f"'{place}' belongs to the mode '{Mode.VERIFIED}', not to '{mode}'.", param=place)
    if header is not None and header != named:
        raise InvalidRequest(
            f"The header '{WINDOW_HEADER}' and '{_WINDOW_MEMBER}' disagree.", param=place, code="contradictory_mode"
        )
    return named


def _split_suffix(model: str | None, served: Collection[str]) -> tuple[str | None, Mode | None]:
    if model is None or "@" not in model or model in served:
        return model, None
    name, _, suffix = model.rpartition("@")
    if name in served or suffix in REQUESTABLE_MODES:
        return name, _mode(suffix, "model")
    return model, None


def _agreed(named: dict[str, Mode | None]) -> Mode | None:
    said = {place: mode for place, mode in named.items() if mode is not None}
    if len(set(said.values())) > 1:
        clash = " but ".join(f"{place} says '{mode}'" for place, mode in said.items())
        raise InvalidRequest(f"The mode is contradictory: {clash}.", param="determinism", code="contradictory_mode")
    return next(iter(said.values()), None)


def _plan(mode: Mode, model: str | None, header: Wish, body: Wish, window: int) -> Plan:
    mitigations = MODE_MITIGATIONS.get(mode, frozenset()) | header.mitigations | body.mitigations
    verified = Mitigation.VERIFICATION in mitigations
    named = _agreed_window(header.window, body.window, mode, verified=verified)
    choices = {wish.on_unavailable for wish in (header, body)} - {None}
    if len(choices) > 1:
        raise InvalidRequest(
            f"The header '{ON_UNAVAILABLE_HEADER}' and 'determinism.on_unavailable' disagree.",
            param="determinism.on_unavailable",
            code="contradictory_mode",
        )
    return Plan(
        mode,
        model,
        mitigations,
        next(iter(choices), None) or OnUnavailable.REJECT,
        (named or window) if verified else None,
    )


@lru_cache(maxsize=64)
def _standard(model: str | None) -> Plan:
    """The plan of most requests; a value, so one serves all."""
    return Plan(Mode.STANDARD, model)


def _mode(value: object, place: str) -> Mode:
    if isinstance(value, str) and value in REQUESTABLE_MODES:
        return Mode(value)
    meant = did_you_mean(value) if isinstance(value, str) else ""
    raise InvalidRequest(
        f"'{place}' names no known mode ({_shown(value)}); modes are {', '.join(REQUESTABLE_MODES)}{meant or '.'}",
        param=place,
        code="unknown_mode",
    )


def _mitigation(value: object, place: str) -> Mitigation:
    if isinstance(value, str) and value in set(Mitigation):
        return Mitigation(value)
    raise InvalidRequest(
        f"'{place}' names no known mitigation ({_shown(value)}); mitigations are {', '.join(Mitigation)}.",
        param=place,
        code="unknown_mitigation",
    )


def _on_unavailable(value: object, place: str) -> OnUnavailable:
    if isinstance(value, str) and value in set(OnUnavailable):
        return OnUnavailable(value)
    raise InvalidRequest(f"'{place}' must be 'reject' or 'report', not {_shown(value)}.", param=place)


def _shown(value: object) -> str:
    """What the caller sent, so that an error never grows with it: short texts and numbers, else the kind of value."""
    if isinstance(value, str):
        return repr(value[:40])
    if isinstance(value, bool):
        return str(value).lower()
    return (
        str(value)[:40] if isinstance(value, int | float) else f"an {'array' if isinstance(value, list) else 'object'}"
    )
