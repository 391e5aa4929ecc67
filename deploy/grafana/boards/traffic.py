"""The dashboard *Traffic*: requests, tokens, errors and latency of clients' requests."""

from typing import Final

from grafana.boards.board import Board
from grafana.boards.panels import Query, density, graph
from grafana.boards.queries import RATE, SERVED, quantile, rate, share

_QUANTILES: Final = (0.5, 0.95, 0.99)
# What the gateway or an engine did wrong; a client that sends nonsense or leaves is no error of ours.
_FAULTS: Final = 'outcome=~"unavailable|upstream_error|incomplete|other"'


def _latency(name: str, scope: str) -> tuple[Query, ...]:
    return tuple(Query(quantile(q, name, scope=scope), f"p{q * 100:g}") for q in _QUANTILES)


def traffic() -> Board:
    """The dashboard. Raises UnknownSeriesError."""
    return Board(
        "traffic",
        "Reprise / Traffic",
        "Clients' requests: how many, how they ended, how long they took. The gateway's own canaries are not in here.",
        (
            (
                "How much",
                (
                    graph(
                        "Requests",
                        "Of clients, per second, by mode. What the gateway sends itself is under Divergence.",
                        Query(rate("reprise_requests_total", by="mode", scope=SERVED), "{{mode}}"),
                        unit="reqps",
                        stacked=True,
                    ),
                    graph(
                        "Output tokens",
                        "Per second, by model; where an answer does not tell its tokens, its pieces are counted.",
                        Query(rate("reprise_output_tokens_total", by="model", scope=SERVED), "{{model}}"),
                        stacked=True,
                    ),
                    graph(
                        "How they ended",
                        "ok; invalid: the client's fault; unavailable: no replica could; upstream_error and "
                        "incomplete: the engine; client_closed: the client left.",
                        Query(rate("reprise_requests_total", by="outcome", scope=SERVED), "{{outcome}}"),
                        unit="reqps",
                        stacked=True,
                    ),
                    graph(
                        "Share of faults",
                        "unavailable, upstream_error, incomplete and other, of all requests. Clients' own faults and "
                        "departures are not counted.",
                        Query(
                            share(
                                rate("reprise_requests_total", by="model", scope=f"{_FAULTS},{SERVED}"),
                                rate("reprise_requests_total", by="model", scope=SERVED),
                            ),
                            "{{model}}",
                        ),
                        unit="percentunit",
                    ),
                    graph(
                        "Prompt tokens of the engines",
                        "Per second, by vLLM's own count, of all its clients.",
                        Query(
                            f'sum by (model_name) (rate(vllm:prompt_tokens_total{{model_name=~"$model"}}[{RATE}]))',
                            "{{model_name}}",
                        ),
                    ),
                    graph(
                        "Success",
                        "Requests that ended ok, of those that clients waited for.",
                        Query(
                            share(
                                rate("reprise_requests_total", by="mode", scope=f'outcome="ok",{SERVED}'),
                                rate("reprise_requests_total", by="mode", scope=f'outcome!="client_closed",{SERVED}'),
                            ),
                            "{{mode}}",
                        ),
                        unit="percentunit",
                        highest=1,
                    ),
                ),
            ),
            (
                "How long",
                (
                    graph(
                        "Time to the first token",
                        "Streams only: from the request's arrival at the gateway to the first piece of the answer, the "
                        "wait for a lease included.",
                        *_latency("reprise_time_to_first_token_seconds", SERVED),
                        unit="s",
                    ),
                    graph(
                        "Between tokens",
                        "Mean time between the pieces of a stream, one observation for each stream.",
                        *_latency("reprise_inter_token_seconds", 'mode=~"$mode"'),
                        unit="s",
                    ),
                    graph(
                        "End to end",
                        "From a request's arrival to the end of its answer.",
                        *_latency("reprise_request_seconds", SERVED),
                        unit="s",
                    ),
                    graph(
                        "End to end by mode, p95",
                        "The same, apart by mode.",
                        Query(quantile(0.95, "reprise_request_seconds", by="mode", scope=SERVED), "{{mode}}"),
                        unit="s",
                    ),
                    density(
                        "Time to the first token, all of it",
                        "The distribution over time; two bands are two kinds of requests.",
                        f"sum by (le) (increase(reprise_time_to_first_token_seconds_bucket{{{SERVED}}}[{RATE}]))",
                        unit="s",
                    ),
                    density(
                        "End to end, all of it",
                        "The distribution over time. A dot is an exemplar with its request's id.",
                        f"sum by (le) (increase(reprise_request_seconds_bucket{{{SERVED}}}[{RATE}]))",
                        unit="s",
                        exemplars=True,
                    ),
                ),
            ),
        ),
    )
