"""The door of the guard: who asks, what for, and whether he may, decided from a request's head alone."""

import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final

from app.asgi import Scope
from app.determinism.mode import Mitigation
from app.engine.asgi import Refusal, header
from app.engine.observer import api_servers, sequences_at_once
from app.scheduling.ticket import Admission

ADMISSION_HEADER: Final = b"x-determinism-admission"
KEY_HEADER: Final = b"x-determinism-guard-key"
PRIORITY_HEADER: Final = b"x-determinism-priority"
CALLER_HEADER: Final = b"x-determinism-caller"
PATIENCE_HEADER: Final = b"x-determinism-queue-timeout"
REQUEST_ID_HEADER: Final = b"x-request-id"

OURS: Final = frozenset({ADMISSION_HEADER, KEY_HEADER, PRIORITY_HEADER, CALLER_HEADER, PATIENCE_HEADER})
"""Headers between gateway and guard; the engine gets none of them."""

NO_ENGINE_KEY: Final = Refusal(401, "invalid_api_key", "the engine's API key is missing or wrong")

_LONGEST_NAME: Final = 64
_MOST_PRIORITY: Final = 2**63


@dataclass(frozen=True, slots=True)
class Asked:
    """What a request asks of the gate.

    ``trusted``: it came with the guard key, so it is told what happened to it. ``alone``: the engine must prove that it
    is empty. ``patience`` is in seconds, None where nobody said.
    """

    admission: Admission
    trusted: bool = False
    alone: bool = False
    key: str = ""
    priority: int = 0
    patience: float | None = None
    request: str | None = None


class Door:
    """Knows the keys. ``environ`` has the guard's own (REPRISE_GUARD_KEY) and perhaps the engine's (VLLM_API_KEY)."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        key = environ.get("REPRISE_GUARD_KEY")
        self._guard_key = sha256(key.encode()).digest() if key else None
        self._engine_key = environ.get("VLLM_API_KEY")

    @property
    def has_key(self) -> bool:
        """Whether a guard key was set."""
        return self._guard_key is not None

    def trusts(self, scope: Scope) -> bool:
        """Whether a request came with the guard key."""
        given = header(scope, KEY_HEADER)
        return given is not None and self._guard_key is not None and _same(given, self._guard_key)

    def opens(self, scope: Scope, state: object) -> bool:
        """Whether a request came with the engine's own API key, if it has one."""
        digests = [sha256(key.encode()).digest() for key in self._engine_keys(state)]
        if not digests:
            return True
        scheme, _, token = (header(scope, b"authorization") or b"").decode("latin-1").partition(" ")
        # Every key is compared, whichever fits, so that the time tells nothing.
        return scheme.lower() == "bearer" and sum(_same(token.encode(), digest) for digest in digests) > 0

    def decide(self, scope: Scope, state: Any) -> Asked | Refusal:  # noqa: ANN401 - vLLM's app.state has no type
        """What a request gets, or why it is refused before it queues."""
        if not self.opens(scope, state):
            return NO_ENGINE_KEY
        wanted = self._wanted(scope, state)
        if isinstance(wanted, Refusal):
            return wanted
        alone = wanted is Admission.EXCLUSIVE
        admission = Admission.EXCLUSIVE if sequences_at_once(state) == 1 else wanted
        if not self.trusts(scope):
            return Asked(admission, alone=alone)
        try:
            priority = int(header(scope, PRIORITY_HEADER) or b"0")
            patience = float(header(scope, PATIENCE_HEADER) or b"inf")
        except ValueError:
            return _malformed("priority and patience must be numbers")
        if not patience >= 0 or abs(priority) > _MOST_PRIORITY:
            return _malformed("priority or patience is out of range")
        # Where nobody checks the key from which a gateway made this name, one caller could invent many.
        caller = header(scope, CALLER_HEADER) if self._engine_keys(state) else None
        return Asked(
            admission,
            trusted=True,
            alone=alone,
            key=(caller or b"")[:_LONGEST_NAME].decode("latin-1"),
            priority=priority,
            patience=patience if header(scope, PATIENCE_HEADER) else None,
            request=(header(scope, REQUEST_ID_HEADER) or b"")[:_LONGEST_NAME].decode("latin-1") or None,
        )

    def _wanted(self, scope: Scope, state: Any) -> Admission | Refusal:  # noqa: ANN401, PLR0911 - as above; a table
        wanted, key = header(scope, ADMISSION_HEADER), header(scope, KEY_HEADER)
        if wanted is None or wanted == b"shared":
            return Admission.SHARED
        if key is None and self._guard_key is not None:
            return Admission.SHARED  # not from a gateway, and nobody else may keep the others out
        if wanted != b"exclusive":
            return _malformed(f"{ADMISSION_HEADER.decode()} must be shared or exclusive")
        if self._guard_key is None and sequences_at_once(state) != 1:
            return unavailable("the guard has no key (REPRISE_GUARD_KEY is not set)")
        if self._guard_key is not None and not self.trusts(scope):
            return Refusal(403, "forbidden", f"exclusive admission needs the right {KEY_HEADER.decode()}")
        servers = api_servers(state)
        if servers != 1 and sequences_at_once(state) != 1:
            return unavailable(f"the engine has {servers or 'unknown'} API servers, each with its own gate")
        return Admission.EXCLUSIVE

    def _engine_keys(self, state: object) -> list[str]:
        keys = getattr(getattr(state, "args", None), "api_key", None) or [self._engine_key]
        return [key for key in keys if key]


def unavailable(reason: str, what: Mitigation = Mitigation.BATCH_ISOLATION) -> Refusal:
    """A mitigation cannot be honoured."""
    return Refusal(503, "determinism_unavailable", f"{what} cannot be honoured: {reason}")


def _malformed(message: str) -> Refusal:
    return Refusal(400, "invalid_request", message)


def _same(given: bytes, digest: bytes) -> bool:
    return hmac.compare_digest(sha256(given).digest(), digest)
