"""The dashboard *Replicas*: what each replica runs, its leases and queue, and what its engine says of itself."""

from typing import Final

from grafana.boards.board import Board
from grafana.boards.panels import Query, graph, rows
from grafana.boards.queries import RATE, share

_POSTURE: Final = (
    ("replica", "Replica"),
    ("posture", "Posture"),
    ("model", "Model"),
    ("engine_version", "vLLM"),
    ("hardware", "Hardware"),
    ("dtype", "dtype"),
    ("quantization", "Quantization"),
    ("attention_backend", "Attention"),
    ("kv_split", "KV split"),
    ("eager", "Eager"),
    ("batch_invariance", "Batch-invariant"),
    ("torch_determinism", "torch"),
    ("prefix_caching", "Prefix cache"),
    ("tensor_parallel", "TP"),
    ("epoch", "Epoch"),
)
_ENGINE: Final = 'model_name=~"$model"'


def _engine(name: str) -> str:
    return f"sum by (instance) ({name}{{{_ENGINE}}})"


def replicas() -> Board:
    """The dashboard. Raises UnknownSeriesError."""
    return Board(
        "replicas",
        "Reprise / Replicas",
        "What each replica really runs, what it is busy with, and what its engine says of itself.",
        (
            (
                "Posture",
                (
                    rows(
                        "What each replica runs",
                        "Observed, never assumed; what could not be observed is unknown. Replicas whose postures "
                        "differ are never one deterministic pool. A digest that ends in @name is a stock engine's, of "
                        "which too little is known to trust another with it.",
                        Query(f"group by ({', '.join(label for label, _ in _POSTURE)}) (reprise_replica_info)"),
                        columns=_POSTURE,
                    ),
                    graph(
                        "Postures of a replica in the last 30 minutes",
                        "1 is rest. 2: the engine was replaced, upgraded or configured anew, and its cohorts "
                        "begin again.",
                        Query(
                            "count by (instance, replica) (count by (instance, replica, posture)"
                            ' (present_over_time(reprise_replica_info{posture!="unknown"}[30m])))',
                            "{{replica}} of {{instance}}",
                        ),
                    ),
                    graph(
                        "Scraped",
                        "Whether Prometheus reaches the gateways and engines. Health as the gateway judges it is in "
                        "/readyz.",
                        Query("up", "{{job}} {{instance}}"),
                        highest=1,
                    ),
                ),
            ),
            (
                "Gate",
                (
                    graph(
                        "Leases",
                        "Requests that run now, by admission. An exclusive lease stands alone.",
                        Query("sum by (replica, admission) (reprise_leases)", "{{replica}}, {{admission}}"),
                    ),
                    graph(
                        "Waiting",
                        "Requests at the gate at the last probe, of all the replica's clients.",
                        Query(
                            "max by (instance, replica, admission) (reprise_gate_waiting)",
                            "{{replica}} of {{instance}}, {{admission}}",
                        ),
                    ),
                ),
            ),
            (
                "The engine's own word",
                (
                    graph(
                        "Running",
                        "Requests in the engine's batch. More than the gateway's leases: somebody bypasses it.",
                        Query(_engine("vllm:num_requests_running"), "{{instance}}"),
                    ),
                    graph(
                        "Waiting in the engine",
                        "Requests that the engine took and does not run yet.",
                        Query(_engine("vllm:num_requests_waiting"), "{{instance}}"),
                    ),
                    graph(
                        "KV cache in use",
                        "Near 100 % the engine preempts, and a preempted request is computed again.",
                        Query(f"max by (instance) (vllm:kv_cache_usage_perc{{{_ENGINE}}})", "{{instance}}"),
                        unit="percentunit",
                        highest=1,
                    ),
                    graph(
                        "Prefix cache hits",
                        "Share of prompt tokens found in the cache. A hit can change an answer: isolated bypasses it.",
                        Query(
                            share(
                                f"sum by (instance) (rate(vllm:prefix_cache_hits_total{{{_ENGINE}}}[{RATE}]))",
                                f"sum by (instance) (rate(vllm:prefix_cache_queries_total{{{_ENGINE}}}[{RATE}]))",
                            ),
                            "{{instance}}",
                        ),
                        unit="percentunit",
                        highest=1,
                    ),
                    graph(
                        "Preemptions",
                        "Per second. Above 0 the cache is too small for the batch.",
                        Query(
                            f"sum by (instance) (rate(vllm:num_preemptions_total{{{_ENGINE}}}[{RATE}]))", "{{instance}}"
                        ),
                    ),
                    graph(
                        "Wait in the engine's queue, p95",
                        "By vLLM's own clock; the wait at the gate is not in here.",
                        Query(
                            "histogram_quantile(0.95, sum by (le, instance)"
                            f" (rate(vllm:request_queue_time_seconds_bucket{{{_ENGINE}}}[{RATE}])))",
                            "{{instance}}",
                        ),
                        unit="s",
                    ),
                ),
            ),
        ),
    )
