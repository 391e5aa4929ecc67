"""Replicas as values: what they are, and what was last observed of them."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final
from urllib.parse import urlsplit

from app.determinism.mode import Mitigation
from app.determinism.posture import Posture, Provision
from app.verification.facts import ModelFacts

UNKNOWN_POSTURE: Final = "unknown"


@dataclass(frozen=True, slots=True)
class Replica:
    """One vLLM server that the operator named. ``name`` (host:port) is what headers and metrics show."""

    name: str
    url: str

    @classmethod
    def at(cls, url: str) -> "Replica":
        """The replica at a base URL. Raises ValueError saying what is wrong with it."""
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ValueError(f"an upstream must be http://host[:port] or https://host[:port], not {url!r}")
        if parts.query or parts.fragment or parts.username or parts.password:
            raise ValueError(f"an upstream must have no query, fragment or credentials: {parts.hostname}")
        path = parts.path.rstrip("/").removesuffix("/v1")
        port = parts.port or (443 if parts.scheme == "https" else 80)
        return cls(f"{parts.hostname}:{port}", f"{parts.scheme}://{parts.netloc}{path}")


@dataclass(frozen=True, slots=True)
class GateView:
    """The gate of a guarded replica when it was last probed: tickets, totals, and expected waits in seconds."""

    shared: int = 0
    exclusive: int = 0
    waiting_shared: int = 0
    waiting_exclusive: int = 0
    exclusive_admissions: int = 0
    exclusive_seconds: float = 0.0
    drain_seconds: float = 0.0
    exclusive_run_seconds: float = 0.0
    expected_wait_shared: float = 0.0
    expected_wait_exclusive: float = 0.0

    @classmethod
    def of(cls, said: object) -> "GateView":
        """From the guard's page; what an older or newer guard does not tell is 0. Raises ValueError for no numbers."""
        known = said if isinstance(said, Mapping) else {}
        told = {name: known[name] for name in cls.__slots__ if name in known}
        if any(isinstance(value, bool) or not isinstance(value, int | float) for value in told.values()):
            raise ValueError("the gate's statistics are no numbers")
        return cls(**told)

    @property
    def exclusive_backlog(self) -> int:
        """Exclusive tickets that run or wait."""
        return self.exclusive + self.waiting_exclusive


@dataclass(frozen=True, slots=True)
class ReplicaStatus:
    """What the last probe saw. ``models`` holds the entries of ``/v1/models`` with every field they came with.

    A replica that fails its probes is not healthy, and the rest is what was known of it before. ``gate`` changes all
    the time and is no part of the comparison of two. ``max_logprobs`` is how many a request may ask for at each token,
    ``model`` what the guard tells of the model that it verifies with.
    """

    healthy: bool = False
    problem: str = "not probed yet"
    version: str = UNKNOWN_POSTURE
    models: tuple[Mapping[str, Any], ...] = ()
    guarded: bool = False
    guard_problem: str | None = None
    posture: Posture = field(default_factory=Posture)
    digest: str = UNKNOWN_POSTURE
    provisions: Mapping[Mitigation, Provision] = field(default_factory=dict)
    gate: GateView = field(default_factory=GateView, compare=False)
    max_logprobs: int = 0
    model: ModelFacts = field(default_factory=ModelFacts)

    @property
    def served(self) -> frozenset[str]:
        """The names of the models."""
        return frozenset(str(model["id"]) for model in self.models if "id" in model)

    def differs(self, other: "ReplicaStatus | None") -> bool:
        """Whether it is worth telling. vLLM stamps its models with the time of each question, which is not."""
        if other is None or self.served != other.served:
            return True
        return replace(self, models=()) != replace(other, models=())

    @property
    def serial(self) -> bool:
        """Whether the engine runs one sequence at a time, so that nothing shares a batch whoever else is there."""
        return self.posture.max_sequences == 1

    def provides(self, mitigation: Mitigation) -> Provision:
        """Whether this replica honours a mitigation, with the reason."""
        return self.provisions.get(mitigation) or self.posture.provides(mitigation)
