"""Replicas as values: what they are, and what was last observed of them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

from app.determinism.mode import Mitigation
from app.determinism.posture import Posture, Provision

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
class ReplicaStatus:
    """What the last probe saw. ``models`` holds the entries of ``/v1/models`` with every field they came with."""

    healthy: bool = False
    problem: str = "not probed yet"
    version: str = UNKNOWN_POSTURE
    models: tuple[Mapping[str, Any], ...] = ()
    guarded: bool = False
    guard_problem: str | None = None
    posture: Posture = field(default_factory=Posture)
    digest: str = UNKNOWN_POSTURE
    provisions: Mapping[Mitigation, Provision] = field(default_factory=dict)

    @property
    def served(self) -> frozenset[str]:
        """The names of the models."""
        return frozenset(str(model["id"]) for model in self.models if "id" in model)

    def provides(self, mitigation: Mitigation) -> Provision:
        """Whether this replica honours a mitigation, with the reason."""
        return self.provisions.get(mitigation) or self.posture.provides(mitigation)
