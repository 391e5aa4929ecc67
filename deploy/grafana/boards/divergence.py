"""The dashboard *Divergence*: how often repeats disagree, where, how far, and what is suspected."""

from typing import Final

from app.determinism.mode import DETERMINISTIC_MODES, Mode
from grafana.boards.board import Board
from grafana.boards.panels import PanelBuilder, Query, density, figures, graph, histogram, rows
from grafana.boards.queries import (
    RANGE,
    RATE,
    SCOPE,
    compared,
    diverged,
    increase,
    mean,
    quantile,
    rate,
    share,
    wilson_upper,
)

_OF_A_MODE: Final = 'model=~"$model",origin=~"$origin"'
_ALIKE: Final = 'verdict="match"'
_APART: Final = 'verdict="diverged"'
_ANY: Final = 'verdict=~"match|diverged"'


def _promise(mode: Mode) -> PanelBuilder:
    scope = f'mode="{mode.value}",{_OF_A_MODE}'
    events, trials = diverged(RANGE, scope=scope), compared(RANGE, scope=scope)
    return figures(
        f"{mode.value}: of n, below x %",
        f"Mode {mode.value} promises that repeats agree, so anything above 0 is an alarm. Read the three together: "
        "0 of 64 is compatible with a true rate of up to 4 %, and only more comparisons bring the bound down. The "
        "bound is the upper end of Wilson's score interval, one-sided, 95 %; terminals and receipts print the exact "
        "one.",
        Query(f"round({events})", "diverged", instant=True),
        Query(f"round({trials})", "of", instant=True),
        Query(wilson_upper(events, trials), "below (95 %, Wilson)", instant=True),
        alarm="A",
        bound="C",
    )


def _by_mode() -> PanelBuilder:
    # Nothing is compared of what was refused before its mode was known.
    scope = f'{SCOPE},mode!="unknown"'
    events, trials = (count(RANGE, by="mode, origin", scope=scope) for count in (diverged, compared))
    return rows(
        "Every mode and origin",
        "Divergences of all comparisons in the time range. A mode without comparisons has no rate, and no row in the "
        "two last columns: nothing measured is not 0. Origins: client, canary (the gateway's own prompts, near ties "
        "among them) and shadow (clients' requests asked once more).",
        Query(f"round({events})"),
        Query(f"round({trials})"),
        Query(share(events, trials)),
        Query(wilson_upper(events, trials)),
        columns=(
            ("mode", "Mode"),
            ("origin", "Origin"),
            ("Value #A", "Diverged"),
            ("Value #B", "Of"),
            ("Value #C", "Rate"),
            ("Value #D", "Below (95 %, Wilson)"),
        ),
        units=(("Rate", "percentunit"), ("Below (95 %, Wilson)", "percentunit")),
    )


def _agreement(kind: str) -> str:
    """How much of all compared answers agrees, where a diverged one counts by the mean similarity of those judged.

    Absent where answers diverged and none of them was judged.
    """
    matched, apart, trials = (
        f"sum(increase(reprise_comparisons_total{{{verdict}}}[$window]))" for verdict in (_ALIKE, _APART, _ANY)
    )
    similar = f'sum(increase(reprise_similarity_ratio_sum{{kind="{kind}"}}[$window]))'
    judged = f'sum(increase(reprise_similarity_ratio_count{{kind="{kind}"}}[$window]))'
    return share(f"{matched} + ({apart} * ({share(similar, judged)}) or {apart} == 0)", trials)


# Where nobody asked for semantic similarity no answer is judged by it, and matches alone would look like agreement.
_SEMANTIC: Final = f'{_agreement("semantic")} and on () (sum(reprise_similarity_ratio_count{{kind="semantic"}}) > 0)'

_VERBATIM: Final = share(
    f"sum(increase(reprise_comparisons_total{{{_ALIKE}}}[$window]))",
    f"sum(increase(reprise_comparisons_total{{{_ANY}}}[$window]))",
)
_CROSS: Final = "reprise_cross_comparisons_total"
_MODE: Final = 'mode=~"$mode"'


def divergence() -> Board:
    """The dashboard. Raises UnknownSeriesError."""
    return Board(
        "divergence",
        "Reprise / Divergence",
        "How often repeats of one request disagree, where they fork, and what is suspected.",
        (
            (
                "Promises: modes in which no repeat may diverge",
                tuple(_promise(mode) for mode in Mode if mode in DETERMINISTIC_MODES),
            ),
            (
                "How often",
                (
                    _by_mode(),
                    graph(
                        "Rate of divergence",
                        "Share of the comparisons in the last $window that diverged. standard promises nothing and "
                        "rises with load; the deterministic modes stay at 0.",
                        Query(share(diverged("$window"), compared("$window")), "{{mode}}"),
                        unit="percentunit",
                    ),
                    graph(
                        "At most this (95 %)",
                        "Wilson's upper bound of the same rate. It falls as comparisons come in: a high bound over a "
                        "rate of 0 says that little was compared, not that something is wrong.",
                        Query(wilson_upper(diverged("$window"), compared("$window")), "{{mode}}"),
                        unit="percentunit",
                        highest=1,
                    ),
                    graph(
                        "Comparisons by verdict",
                        "What the rates rest on. Incomparable answers are explained beside this.",
                        Query(rate("reprise_comparisons_total", by="verdict", scope=SCOPE), "{{verdict}}"),
                        unit="cps",
                        stacked=True,
                    ),
                    graph(
                        "Compared to nothing, by reason",
                        "unseeded_sampling is by design: without a seed no repeat is expected. incomplete, "
                        "upstream_error and unparsable say that answers are lost to the measurement. All modes and "
                        "origins.",
                        Query(f"sum by (reason) (rate(reprise_comparisons_skipped_total[{RATE}]))", "{{reason}}"),
                        unit="cps",
                        stacked=True,
                    ),
                ),
            ),
            (
                "Why, and was it a tie",
                (
                    graph(
                        "Divergences by cause",
                        "The first suspect that holds: co_batched (requests shared the engine), cache_state (a prefix "
                        "was cached on one side alone), other_replica, unexplained. A suspect, not a proof.",
                        Query(
                            increase("reprise_divergences_total", by="cause", scope=SCOPE, window=RATE),
                            "{{cause}}",
                            exemplars=True,
                        ),
                        stacked=True,
                        step="1m",
                    ),
                    graph(
                        "Divergences by margin at the fork",
                        "tie: the two likeliest tokens were at most 0.25 nats apart, which rounding flips. near: up to "
                        "1. clear: more, and rounding does not do that; look for a fault. unknown: the answers carried "
                        "no logprobs, or do not take the likeliest token (sampling, penalties, grammars).",
                        Query(
                            increase("reprise_divergence_margins_total", by="margin", scope=SCOPE, window=RATE),
                            "{{margin}}",
                        ),
                        stacked=True,
                        step="1m",
                    ),
                    histogram(
                        "Margin at the fork, in nats",
                        "Distance of the two likeliest tokens where answers part that take the likeliest, over the "
                        "time range. Steps of 0.0625 and 0.125 are bfloat16's. All modes and origins.",
                        f"sum by (le) (increase(reprise_fork_margin_nats_bucket[{RANGE}]))",
                    ),
                    histogram(
                        "Largest difference of logprobs, in nats",
                        "Over the part that two repeats share, matches included. All at 0: equal to the last bit. "
                        "Above 0 without a divergence: the numbers already differ and no tie has flipped yet. All "
                        "modes and origins.",
                        f"sum by (le) (increase(reprise_logprob_delta_nats_bucket[{RANGE}]))",
                    ),
                ),
            ),
            (
                "Where they fork",
                (
                    density(
                        "Fork position over time",
                        "Tokens that a diverged answer shares with its reference, where that is known to the token. "
                        "Early forks give other answers, late ones other endings. A dot is an exemplar with its "
                        "request's id. All models and origins.",
                        f"sum by (le) (increase(reprise_fork_tokens_bucket{{{_MODE}}}[{RATE}]))",
                        exemplars=True,
                    ),
                    histogram(
                        "Fork position",
                        "The same over the time range. All models and origins.",
                        f"sum by (le) (increase(reprise_fork_tokens_bucket{{{_MODE}}}[{RANGE}]))",
                    ),
                ),
            ),
            (
                "How far apart",
                (
                    graph(
                        "Agreement: verbatim, by edits, by meaning",
                        "Of all compared answers. verbatim: equal. edit and semantic: a diverged answer counts by the "
                        "mean similarity of those that were judged, instead of 0; no line where none was (after a "
                        "restart the references' texts are gone). Semantic agreement is there where the operator asked "
                        "for it; it is advice and forgives what it should not (100 dollars, 1000 dollars). All modes "
                        "and origins.",
                        Query(_VERBATIM, "verbatim"),
                        Query(_agreement("edit"), "edit"),
                        Query(_SEMANTIC, "semantic"),
                        unit="percentunit",
                        highest=1,
                    ),
                    graph(
                        "Similarity of diverged answers",
                        "Mean over the diverged answers of the last $window. prefix: share before the fork. edit: edit "
                        "similarity. semantic: cosine of embeddings, advice only. All modes and origins.",
                        Query(
                            mean("reprise_similarity_ratio", by="kind", scope='kind!=""', window="$window"), "{{kind}}"
                        ),
                        unit="percentunit",
                        highest=1,
                    ),
                    graph(
                        "Pairs of repeats that agree",
                        "Any two answers of a cohort, not only those with its reference: independent of which answer "
                        "came first.",
                        Query(
                            share(
                                increase("reprise_pairs_equal_total", by="mode", scope=SCOPE, window="$window"),
                                increase("reprise_pairs_total", by="mode", scope=SCOPE, window="$window"),
                            ),
                            "{{mode}}",
                        ),
                        unit="percentunit",
                        highest=1,
                    ),
                    graph(
                        "Distinct outputs of a cohort",
                        "Mean and 95th percentile of how many different answers one request has got so far, observed "
                        "at each repeat. 1 is agreement. All models and origins.",
                        Query(
                            mean("reprise_distinct_outputs", by="mode", scope=_MODE, window="$window"), "mean, {{mode}}"
                        ),
                        Query(quantile(0.95, "reprise_distinct_outputs", by="mode", scope=_MODE), "p95, {{mode}}"),
                    ),
                ),
            ),
            (
                "Circumstances",
                (
                    graph(
                        "Most requests on the engine beside this one",
                        "Co-resident peak, itself included: 1 is alone. Where this rises and standard diverges with "
                        "it, load is the cause. Clients' requests alone, of all models.",
                        Query(quantile(0.5, "reprise_coresident_peak", by="mode", scope=_MODE), "p50, {{mode}}"),
                        Query(quantile(0.95, "reprise_coresident_peak", by="mode", scope=_MODE), "p95, {{mode}}"),
                    ),
                    graph(
                        "Across modes and postures",
                        "The same request compared across modes, or before and after a posture changed: the share that "
                        "differs. No alarm; this is how an upgrade that changed answers shows. All modes and origins.",
                        Query(
                            share(
                                increase(_CROSS, by="kind", scope='verdict="diverged"', window="$window"),
                                increase(_CROSS, by="kind", scope=_ANY, window="$window"),
                            ),
                            "{{kind}}",
                        ),
                        unit="percentunit",
                        highest=1,
                    ),
                    graph(
                        "What the gateway asks itself",
                        "Canaries and shadows by how they ended, and shadows dropped for want of room.",
                        Query(
                            "sum by (origin, outcome)"
                            f' (rate(reprise_canary_requests_total{{mode=~"$mode",origin=~"$origin"}}[{RATE}])) > 0',
                            "{{origin}}, {{outcome}}",
                        ),
                        Query(f"sum(rate(reprise_shadows_dropped_total[{RATE}]))", "shadow, dropped"),
                        unit="reqps",
                    ),
                    graph(
                        "Ledger",
                        "Observations written and lost per second, and those that wait. Losses make the figures above "
                        "rest on less; they never delay an answer.",
                        Query(f"sum(rate(reprise_ledger_written_total[{RATE}]))", "written/s"),
                        Query(
                            f"sum by (reason) (rate(reprise_ledger_dropped_total[{RATE}])) > 0", "lost/s, {{reason}}"
                        ),
                        Query("sum(reprise_ledger_queue_observations)", "waiting"),
                    ),
                    graph(
                        "Cohorts in the ledger",
                        "Different requests that are remembered, each in its mode and posture, and the answers of "
                        "labelled runs. At its limit the longest unseen go first, and their next repeat is a first "
                        "answer again.",
                        Query("max by (instance) (reprise_ledger_cohorts)", "cohorts, {{instance}}"),
                        Query("max by (instance) (reprise_ledger_run_answers)", "run answers, {{instance}}"),
                    ),
                    graph(
                        "Size of the ledger",
                        "Bytes that it holds, where the store can tell.",
                        Query("max by (instance) (reprise_ledger_bytes)", "{{instance}}"),
                        unit="bytes",
                    ),
                ),
            ),
        ),
    )
