"""The last finished requests, as the gateway keeps them until somebody asks for a receipt.

Every request passes here at its end, so what is kept is one tuple of values that exist anyway; the document and its
signature are made when they are asked for. Nothing of it is on disk: a gateway that restarts has no receipts.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final, NamedTuple

from app.determinism.mode import Mitigation
from app.determinism.plan import Plan
from app.determinism.sampling import Sampling
from app.verification.report import Report

_MODEL_CHARACTERS: Final = 256


class GateTimes(NamedTuple):
    """A lease by the gateway's own gate, in microseconds of the gateway's monotonic clock."""

    asked: int
    granted: int
    ended: int


class Finished(NamedTuple):
    """One request at its end. A named tuple: a frozen dataclass of this size takes more than twice as long to make.

    ``status`` is the HTTP status that the caller saw, 0 where none was sent. ``applied`` and ``missing`` are the
    lease's once the engine answered, both empty before; ``admission``, ``replica`` and ``posture`` are empty where no
    replica was leased. ``waited`` is in seconds. ``output`` is the digest of the output and ``cohort_key`` the
    request's, None where they were not made. ``gate`` is None where the replica's guard holds the gate, and
    ``verification`` where the answer was not verified.
    """

    request_id: str
    path: str
    plan: Plan
    sampling: Sampling
    outcome: str
    status: int
    applied: tuple[Mitigation, ...]
    missing: Mapping[Mitigation, str]
    admission: str
    replica: str
    posture: str
    peak: int | None
    waited: float
    output: str | None
    cohort_key: str | None
    gate: GateTimes | None
    verification: Report | None = None


class Kept(NamedTuple):
    """A finished request and when it finished, in seconds since 1970."""

    at: float
    finished: Finished


class Receipts:
    """The last ``limit`` finished requests by their id; 0 keeps none. ``wall`` gives seconds since 1970.

    Owned by the event loop. `put` and `get` take constant time.
    """

    def __init__(self, limit: int, *, wall: Callable[[], float]) -> None:
        self.limit = limit
        self._wall = wall
        # A plain dict finds its oldest entry by walking over the places of those that were deleted before it.
        self._kept: OrderedDict[str, tuple[float, Finished]] = OrderedDict()

    def put(self, finished: Finished) -> None:
        """Keep a request that ends now; the oldest goes where there are too many."""
        if not self.limit:
            return
        model = finished.plan.model
        if model is not None and len(model) > _MODEL_CHARACTERS:
            finished = _with_short_model(finished, model)
        self._kept[finished.request_id] = (self._wall(), finished)
        if len(self._kept) > self.limit:
            self._kept.popitem(last=False)

    def get(self, request_id: str) -> Kept | None:
        """The finished request of this id, None where it is not (or no longer) kept."""
        kept = self._kept.get(request_id)
        return Kept(*kept) if kept is not None else None

    def __len__(self) -> int:
        return len(self._kept)


def _with_short_model(finished: Finished, model: str) -> Finished:
    """A caller may name a model of many megabytes; its request was refused, and the name must not stay in memory."""
    return finished._replace(plan=replace(finished.plan, model=f"{model[:_MODEL_CHARACTERS]}..."))
