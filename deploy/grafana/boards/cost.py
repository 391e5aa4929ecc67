"""The dashboard *Cost of determinism*: what waiting, running alone and refusing cost everybody."""

from typing import Final

from grafana.boards.board import Board
from grafana.boards.panels import Query, density, graph
from grafana.boards.queries import RATE, SERVED, mean, quantile, rate, share

_WAIT: Final = "reprise_admission_wait_seconds"


def _wait(admission: str) -> tuple[Query, ...]:
    scope = f'admission="{admission}"'
    return tuple(Query(quantile(q, _WAIT, scope=scope), f"p{q * 100:g}") for q in (0.5, 0.95, 0.99))


def _gate(phase: str) -> str:
    # Every gateway repeats what the replica says of its own gate, so they are not summed; and each has its own names
    # for replicas, so they are not mixed either.
    return f'max by (instance, replica) (rate(reprise_gate_seconds_total{{phase="{phase}"}}[{RATE}]))'


def _per_admission(phase: str) -> str:
    return share(_gate(phase), f"max by (instance, replica) (rate(reprise_gate_exclusive_admissions_total[{RATE}]))")


def _verified(name: str, scope: str = "") -> str:
    selector = f"{{{scope}}}" if scope else ""
    return f"sum (rate(reprise_verification_{name}_total{selector}[{RATE}]))"


def cost() -> Board:
    """The dashboard. Raises UnknownSeriesError."""
    return Board(
        "cost",
        "Reprise / Cost of determinism",
        "What determinism costs: waits, time alone on a replica, tokens per second beside it, and what was refused.",
        (
            (
                "Waiting",
                (
                    graph(
                        "Wait for a shared lease",
                        "From asking to getting one. What isolated requests cost everybody else shows here: a shared "
                        "request waits at most for the drain and the exclusive phase before it.",
                        *_wait("shared"),
                        unit="s",
                    ),
                    graph(
                        "Wait for an exclusive lease",
                        "What the callers of isolated, hardened and verified wait until the replica is theirs.",
                        *_wait("exclusive"),
                        unit="s",
                    ),
                    graph(
                        "Waiting now",
                        "Requests that waited at a replica's gate at its last probe, of all its clients.",
                        Query(
                            "max by (instance, replica, admission) (reprise_gate_waiting)",
                            "{{replica}} of {{instance}}, {{admission}}",
                        ),
                    ),
                    density(
                        "Waits of every kind",
                        "The whole distribution, both admissions.",
                        f"sum by (le) (increase({_WAIT}_bucket[{RATE}]))",
                        unit="s",
                    ),
                ),
            ),
            (
                "Alone on the engine",
                (
                    graph(
                        "Exclusive share",
                        "Share of time in which a replica served one exclusive request and nobody else. Above one half "
                        "another replica pays.",
                        Query(_gate("exclusive"), "{{replica}} of {{instance}}"),
                        unit="percentunit",
                        highest=1,
                    ),
                    graph(
                        "Drain share",
                        "Share of time in which a replica ran empty before an exclusive request: nothing new starts, "
                        "what runs finishes. Long answers make long drains.",
                        Query(_gate("drain"), "{{replica}} of {{instance}}"),
                        unit="percentunit",
                        highest=1,
                    ),
                    graph(
                        "Exclusive admissions",
                        "Exclusive requests that a replica's gate let in.",
                        Query(
                            f"max by (instance, replica) (rate(reprise_gate_exclusive_admissions_total[{RATE}]))",
                            "{{replica}} of {{instance}}",
                        ),
                        unit="reqps",
                    ),
                    graph(
                        "One exclusive request takes",
                        "Mean time alone, and mean drain before it.",
                        Query(_per_admission("exclusive"), "alone, {{replica}} of {{instance}}"),
                        Query(_per_admission("drain"), "drain, {{replica}} of {{instance}}"),
                        unit="s",
                    ),
                ),
            ),
            (
                "Beside it",
                (
                    graph(
                        "Tokens per second by mode",
                        "Generated tokens, by the gateway's count. Watch it beside the exclusive share.",
                        Query(rate("reprise_output_tokens_total", by="mode", scope=SERVED), "{{mode}}"),
                        unit="short",
                        stacked=True,
                    ),
                    graph(
                        "Tokens per second of the engines",
                        "vLLM's own count, of all clients, those that bypass the gateway included.",
                        Query(
                            f'sum by (instance) (rate(vllm:generation_tokens_total{{model_name=~"$model"}}[{RATE}]))',
                            "{{instance}}",
                        ),
                    ),
                    graph(
                        "Requests by mode",
                        "How many ask for which mode.",
                        Query(rate("reprise_requests_total", by="mode", scope=SERVED), "{{mode}}"),
                        unit="reqps",
                        stacked=True,
                    ),
                    graph(
                        "Time of a request by mode, p50",
                        "Half of the requests took no longer: the price of a mode for its own caller.",
                        Query(quantile(0.5, "reprise_request_seconds", by="mode", scope=SERVED), "{{mode}}"),
                        unit="s",
                    ),
                ),
            ),
            (
                "Verified decoding",
                (
                    graph(
                        "Passes",
                        "Passes of verifiers, and those that refuted a draft, so that the rest of it was thrown "
                        "away. A pass is an exclusive request, unless the verifier's kernels are batch-invariant.",
                        Query(_verified("passes"), "passes"),
                        Query(_verified("rollbacks"), "rollbacks"),
                        unit="ops",
                    ),
                    graph(
                        "Drafted tokens that were accepted",
                        "What the verifier chose too. A drafter that guesses badly costs passes, and never another "
                        "answer.",
                        Query(
                            share(_verified("tokens", 'kind="accepted"'), _verified("tokens", 'kind="drafted"')),
                            "accepted",
                        ),
                        unit="percentunit",
                        highest=1,
                    ),
                    graph(
                        "Verifier's time for a token",
                        "What passes took on their engines, waits not included, by the tokens that they decided.",
                        Query(share(_verified("seconds"), _verified("tokens", 'kind="decided"')), "a decided token"),
                        unit="s",
                    ),
                    graph(
                        "Time to the first window",
                        "From the plan of a verified request to its first decided tokens: draft, wait and pass.",
                        *(
                            Query(quantile(q, "reprise_verification_first_window_seconds"), f"p{q * 100:g}")
                            for q in (0.5, 0.95)
                        ),
                        unit="s",
                    ),
                ),
            ),
            (
                "Refused",
                (
                    graph(
                        "Mitigations refused",
                        "Requests that ended with 503, as no replica could honour their mode in time: determinism "
                        "fails closed. The answer names the mitigation; /readyz says which replica has "
                        "it.",
                        Query(
                            rate("reprise_requests_total", by="mode", scope=f'outcome="unavailable",{SERVED}'),
                            "{{mode}}",
                        ),
                        unit="reqps",
                    ),
                    graph(
                        "Share of requests refused",
                        "The same, of all requests of the mode.",
                        Query(
                            share(
                                rate("reprise_requests_total", by="mode", scope=f'outcome="unavailable",{SERVED}'),
                                rate("reprise_requests_total", by="mode", scope=SERVED),
                            ),
                            "{{mode}}",
                        ),
                        unit="percentunit",
                        highest=1,
                    ),
                    graph(
                        "Batch on the engine",
                        "Mean tokens per engine step, by vLLM: what batching still gives.",
                        Query(
                            share(
                                "sum by (instance)"
                                f' (rate(vllm:iteration_tokens_total_sum{{model_name=~"$model"}}[{RATE}]))',
                                "sum by (instance)"
                                f' (rate(vllm:iteration_tokens_total_count{{model_name=~"$model"}}[{RATE}]))',
                            ),
                            "{{instance}}",
                        ),
                    ),
                    graph(
                        "Company of a request",
                        "Mean co-resident peak by mode: 1 for what ran alone. Clients' requests alone, of all models.",
                        Query(
                            mean("reprise_coresident_peak", by="mode", scope='mode=~"$mode"', window="$window"),
                            "{{mode}}",
                        ),
                    ),
                ),
            ),
        ),
    )
