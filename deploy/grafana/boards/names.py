"""Which series exist, with their labels: those of the gateway's own registry, and the ones of vLLM that we rely on.

A query that names another series, or filters by a label that a series does not have, would show an empty panel for
ever and say nothing; so it is an error when the dashboards are written.
"""

import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Final

import yaml
from prometheus_client import CollectorRegistry

from app.determinism.posture import Posture
from app.observation.metrics import Metrics
from app.upstream.replica import GateView

RULES: Final = Path(__file__).resolve().parents[2] / "prometheus" / "rules"

_SCRAPED: Final = frozenset({"instance", "job", "profile"})
"""Labels that Prometheus puts on every series, by deploy/prometheus/prometheus.yml."""

_ENGINE: Final = frozenset({"model_name", "engine"})

VLLM: Final[Mapping[str, frozenset[str]]] = MappingProxyType(
    {
        "vllm:num_requests_running": _ENGINE,
        "vllm:num_requests_waiting": _ENGINE,
        "vllm:kv_cache_usage_perc": _ENGINE,
        "vllm:num_preemptions_total": _ENGINE,
        "vllm:prefix_cache_queries_total": _ENGINE,
        "vllm:prefix_cache_hits_total": _ENGINE,
        "vllm:prompt_tokens_total": _ENGINE,
        "vllm:generation_tokens_total": _ENGINE,
        "vllm:iteration_tokens_total_bucket": _ENGINE | {"le"},
        "vllm:iteration_tokens_total_count": _ENGINE,
        "vllm:iteration_tokens_total_sum": _ENGINE,
        "vllm:request_queue_time_seconds_bucket": _ENGINE | {"le"},
    }
)
"""The series of vLLM 0.32 that panels show, with their labels; tests/engine looks for each on a real engine's page."""

# A name, with its selector if it has one; a word before a bracket is a function or a keyword, and never has our prefix.
_SERIES: Final = re.compile(r"(?<![\w:$\"])((?:[a-z_]+:)?reprise[\w:]*|vllm:\w+|up)\b(?!\s*\()(\{[^}]*\})?")
_MATCHER: Final = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)")


class UnknownSeriesError(ValueError):
    """A query names a series or a label that does not exist; the message says which, and quotes the query."""


@cache
def known() -> Mapping[str, frozenset[str]]:
    """Every series that a query may name, with its labels. Reads the rule files for what they record."""
    series = {name: labels | _SCRAPED for name, labels in (*_ours().items(), *VLLM.items())}
    return MappingProxyType(series | _recorded() | {"up": _SCRAPED})


def used(expression: str) -> list[tuple[str, frozenset[str]]]:
    """The series that an expression names, each with the labels that it filters by there."""
    return [(name, frozenset(_MATCHER.findall(selector))) for name, selector in _SERIES.findall(expression)]


def check(expression: str) -> str:
    """The expression itself. Raises UnknownSeriesError if it names what does not exist, or names nothing."""
    found = used(expression)
    if not found:
        raise UnknownSeriesError(f"names no series: {expression}")
    for name, labels in found:
        if name not in known():
            raise UnknownSeriesError(f"there is no series {name}: {expression}")
        if not labels <= known()[name]:
            raise UnknownSeriesError(f"{name} has no label {', '.join(sorted(labels - known()[name]))}: {expression}")
    return expression


def _ours() -> dict[str, frozenset[str]]:
    registry = CollectorRegistry()
    metrics = Metrics(registry)
    # What exists only once there is a replica.
    metrics.leases("replica")
    metrics.observe_gate("replica", GateView())
    metrics.observe_replica("replica", Posture().to_mapping() | {"posture": "unknown"})
    found: dict[str, frozenset[str]] = {}
    for family in registry.collect():
        for sample in family.samples:
            found[sample.name] = found.get(sample.name, frozenset()) | frozenset(sample.labels)
    return found


def _recorded() -> dict[str, frozenset[str]]:
    """The series that the recording rules make. By their own naming rule the level lists the labels."""
    return {name: frozenset(name.partition(":")[0].split("_")) for name in _records()}


def _records() -> Iterator[str]:
    for path in sorted(RULES.glob("*.yml")):
        for group in yaml.safe_load(path.read_text())["groups"]:
            yield from (rule["record"] for rule in group["rules"] if "record" in rule)
