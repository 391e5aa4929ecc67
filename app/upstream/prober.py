"""Observes replicas: health, models, posture. Truth comes from the replica, never from configuration.

httpx serves here, on the control plane: one client for a handful of small requests, never for traffic.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, Self

import httpx

from app.determinism.mode import Mitigation
from app.determinism.posture import Posture, Provision
from app.upstream.drain import METRICS_PATH, requests_in_flight
from app.upstream.replica import UNKNOWN_POSTURE, GateView, Replica, ReplicaStatus
from app.verification.facts import ModelFacts

GUARD_KEY_HEADER: Final = "x-determinism-guard-key"
POSTURE_PATH: Final = "/reprise/posture"
ADMISSIONS_PATH: Final = "/reprise/admissions"
_RECEIPTS_AT_ONCE: Final = 8


class Prober:
    """Asks one replica at a time. An async context manager that owns its HTTP client.

    ``timeout`` in seconds bounds each single request.
    """

    def __init__(
        self,
        *,
        timeout: float,
        guard_key: str | None,
        api_key: str | None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._guard_key = guard_key
        self._client = httpx.AsyncClient(
            timeout=timeout,
            trust_env=False,
            transport=transport,
            headers={"authorization": f"Bearer {api_key}"} if api_key else {},
        )
        # Whoever asks for receipts must not use up what the probes go by.
        self._aside = httpx.AsyncClient(
            timeout=timeout,
            trust_env=False,
            transport=transport,
            limits=httpx.Limits(max_connections=_RECEIPTS_AT_ONCE),
        )

    async def __aenter__(self) -> Self:
        await self._client.__aenter__()
        await self._aside.__aenter__()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._aside.aclose()
        await self._client.aclose()

    async def observe(self, replica: Replica) -> ReplicaStatus:
        """What the replica says of itself now; a replica that does not answer is unhealthy, with the reason."""
        try:
            health = await self._client.get(f"{replica.url}/health")
            if health.status_code != httpx.codes.OK:
                return ReplicaStatus(problem=f"/health answered {health.status_code}")
            models = await self._client.get(f"{replica.url}/v1/models")
            if models.status_code != httpx.codes.OK:
                return ReplicaStatus(problem=f"/v1/models answered {models.status_code}")
            entries = _entries(models.json())
            version = await self._version(replica)
            guard = await self._client.get(f"{replica.url}{POSTURE_PATH}", headers=self._guard_headers())
            if guard.status_code == httpx.codes.NOT_FOUND:
                return await self._unguarded(replica, version, entries)
            return self._guarded(replica, guard, version, entries)
        except httpx.HTTPError as exc:
            return ReplicaStatus(problem=f"{type(exc).__name__}: {exc}".rstrip(": "))
        except (ValueError, KeyError, TypeError, AttributeError) as exc:
            return ReplicaStatus(problem=f"its answers are not vLLM's ({type(exc).__name__}: {exc})")

    async def admissions(self, replica: Replica, **query: str | int) -> Mapping[str, Any] | None:
        """What the guard's interval log says, see `app.engine.admissions`; None where it cannot be asked."""
        try:
            response = await self._aside.get(
                f"{replica.url}{ADMISSIONS_PATH}", params=query, headers=self._guard_headers()
            )
            said = response.json() if response.status_code == httpx.codes.OK else None
        except (httpx.HTTPError, ValueError):
            return None
        return said if isinstance(said, dict) else None

    def _guard_headers(self) -> dict[str, str]:
        return {GUARD_KEY_HEADER: self._guard_key} if self._guard_key else {}

    async def _version(self, replica: Replica) -> str:
        response = await self._client.get(f"{replica.url}/version")
        return str(response.json()["version"]) if response.status_code == httpx.codes.OK else UNKNOWN_POSTURE

    async def _unguarded(self, replica: Replica, version: str, models: tuple[Mapping[str, Any], ...]) -> ReplicaStatus:
        """A stock vLLM: what its public endpoints tell; the rest of its posture stays unknown.

        What is not known of two replicas may differ, so the digest names the replica too: no other one is in its pool.
        """
        posture = Posture.from_mapping(
            {
                "engine_version": None if version == UNKNOWN_POSTURE else version,
                "model": models[0].get("root") if models else None,
            }
        )
        page = await self._client.get(f"{replica.url}{METRICS_PATH}")
        in_flight = requests_in_flight(page.text) if page.status_code == httpx.codes.OK else math.inf
        isolation = Provision(
            held=math.isfinite(in_flight),
            reason="the gateway's own gate, with drain proof from /metrics"
            if math.isfinite(in_flight)
            else "no guard, and /metrics does not show vllm:num_requests_running",
        )
        return ReplicaStatus(
            healthy=True,
            problem="",
            version=version,
            models=models,
            posture=posture,
            digest=f"{posture.digest}@{replica.name}",
            provisions={Mitigation.BATCH_ISOLATION: isolation},
        )

    @staticmethod
    def _guarded(
        replica: Replica, answer: httpx.Response, version: str, models: tuple[Mapping[str, Any], ...]
    ) -> ReplicaStatus:
        seen = ReplicaStatus(healthy=True, problem="", version=version, models=models, guarded=True)
        if answer.status_code != httpx.codes.OK:
            reason = {
                403: "the guard refused the gateway's guard key (REPRISE_GUARD_KEY)",
                503: "the guard has not observed its engine yet",
            }.get(answer.status_code, f"the guard answered {answer.status_code}")
            unknown = {mitigation: Provision(held=None, reason=reason) for mitigation in _OBSERVED}
            return replace(seen, guard_problem=reason, provisions=unknown, digest=f"{UNKNOWN_POSTURE}@{replica.name}")
        said = answer.json()
        provisions = {
            Mitigation(name): Provision(held=provision["held"], reason=provision["reason"])
            for name, provision in said["provides"].items()
            if name in set(Mitigation)
        }
        posture = Posture.from_mapping(said["posture"])
        gate = GateView.of(said.get("gate"))
        limit, model = said.get("max_logprobs"), said.get("model")
        return replace(
            seen,
            posture=posture,
            digest=str(said["digest"]),
            provisions=provisions,
            gate=gate,
            max_logprobs=limit if isinstance(limit, int) else 0,
            model=_facts(model),
        )


def _facts(model: object) -> ModelFacts:
    """What is told of the model; unknown where it makes no sense, which is no reason to take the replica out."""
    try:
        return ModelFacts.from_mapping(model) if isinstance(model, dict) else ModelFacts()
    except ValueError:
        return ModelFacts()


def _entries(page: Any) -> tuple[Mapping[str, Any], ...]:  # noqa: ANN401 - any JSON
    """The models of a ``/v1/models`` page. Raises ValueError, KeyError or TypeError for what is none."""
    entries = tuple(page["data"])
    if not all(isinstance(entry, dict) and isinstance(entry.get("id"), str) for entry in entries):
        raise ValueError("an entry of /v1/models has no id")
    return entries


_OBSERVED: Final = (
    Mitigation.BATCH_ISOLATION,
    Mitigation.EAGER,
    Mitigation.FIXED_KV_SPLIT,
    Mitigation.BATCH_INVARIANCE,
    Mitigation.FRAMEWORK_DETERMINISM,
    Mitigation.VERIFICATION,
)
