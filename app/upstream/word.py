"""What the guard says of one answer, in its headers. Only a gateway with the right guard key gets them."""

from collections.abc import Iterable
from dataclasses import dataclass

from app.upstream.wire import RawHeader

_PEAK = b"x-determinism-coresident-peak"
_WAITED = b"x-determinism-admission-wait"
_POSTURE = b"x-determinism-posture"


@dataclass(frozen=True, slots=True)
class GuardsWord:
    """The co-resident peak (final on a unary answer), seconds in the guard's queue, and the posture that answered."""

    peak: int | None = None
    waited: float = 0.0
    posture: str | None = None

    @classmethod
    def of(cls, headers: Iterable[RawHeader]) -> "GuardsWord":
        """Read it from the headers of an answer; what is not there or makes no sense was not said."""
        said = {name: value for name, value in headers if name.startswith(b"x-determinism-")}
        if not said:
            return _NOTHING
        peak, waited, posture = said.get(_PEAK, b""), said.get(_WAITED, b""), said.get(_POSTURE)
        return cls(
            int(peak) if peak.isdigit() else None,
            float(waited) if waited.replace(b".", b"", 1).isdigit() else 0.0,
            posture.decode("latin-1") if posture is not None else None,
        )


_NOTHING = GuardsWord()
