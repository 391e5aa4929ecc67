"""The instruments: names, label sets at 0, bounded labels, and the page."""

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as plain

from app.determinism.divergence import Closeness, Verdict
from app.determinism.mode import Mode
from app.observation.labels import Cause, Cross, Drop, Outcome
from app.observation.metrics import UNKNOWN, Metrics
from app.observation.store import Origin, Skip
from app.upstream.replica import GateView

NAMES = {
    "reprise_requests_total",
    "reprise_comparisons_total",
    "reprise_divergences_total",
    "reprise_comparisons_skipped_total",
    "reprise_pairs_total",
    "reprise_pairs_equal_total",
    "reprise_fork_tokens",
    "reprise_fork_margin_nats",
    "reprise_similarity_ratio",
    "reprise_distinct_outputs",
    "reprise_admission_wait_seconds",
    "reprise_coresident_peak",
    "reprise_leases",
    "reprise_time_to_first_token_seconds",
    "reprise_request_seconds",
    "reprise_ledger_dropped_total",
    "reprise_replica_info",
    "reprise_cross_comparisons_total",
    "reprise_divergence_margins_total",
    "reprise_logprob_delta_nats",
    "reprise_inter_token_seconds",
    "reprise_output_tokens_total",
    "reprise_canary_requests_total",
    "reprise_shadows_dropped_total",
    "reprise_ledger_written_total",
    "reprise_ledger_up",
    "reprise_replica_healthy",
    "reprise_ledger_cohorts",
    "reprise_ledger_bytes",
    "reprise_ledger_run_answers",
    "reprise_ledger_queue_observations",
    "reprise_verification_passes_total",
    "reprise_verification_rollbacks_total",
    "reprise_verification_tokens_total",
    "reprise_verification_seconds_total",
    "reprise_verification_first_window_seconds",
}


@pytest.fixture
def registry() -> CollectorRegistry:
    """A registry of its own."""
    return CollectorRegistry()


@pytest.fixture
def metrics(registry: CollectorRegistry) -> Metrics:
    """The instruments, with one model declared."""
    metrics = Metrics(registry)
    metrics.declare("smollm2")
    return metrics


def page(metrics: Metrics) -> dict[str, list[tuple[dict[str, str], float]]]:
    """The samples of the page by name."""
    samples: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in plain(metrics.render("")[0].decode()):
        for sample in family.samples:
            samples.setdefault(sample.name, []).append((sample.labels, sample.value))
    return samples


def test_every_instrument_of_the_interface_is_on_the_page(metrics: Metrics) -> None:
    """All names are there, each as what it is, with a help text, and no other of ours."""
    metrics.leases("r")
    metrics.observe_replica("r", {"dtype": "float32"})
    metrics.observe_health("r", healthy=True)
    found = set()
    for family in plain(metrics.render("")[0].decode()):
        assert family.documentation
        found |= {sample.name for sample in family.samples if not sample.name.endswith(("_bucket", "_sum"))}
    assert {name.removesuffix("_count") for name in found} == NAMES


@pytest.mark.usefixtures("metrics")
def test_counters_begin_at_zero_in_every_mode(registry: CollectorRegistry) -> None:
    """So that increase() sees the first divergence: each mode, verdict, cause, outcome and reason is there at 0."""
    for mode in Mode:
        labels = {"model": "smollm2", "mode": mode.value}
        for origin in Origin:
            compared = {**labels, "origin": origin.value}
            for verdict in Verdict:
                assert registry.get_sample_value("reprise_comparisons_total", {**compared, "verdict": verdict}) == 0
            for cause in Cause:
                assert registry.get_sample_value("reprise_divergences_total", {**compared, "cause": cause}) == 0
            for margin in Closeness:
                assert (
                    registry.get_sample_value("reprise_divergence_margins_total", {**compared, "margin": margin}) == 0
                )
            assert registry.get_sample_value("reprise_pairs_total", compared) == 0
        for outcome in Outcome:
            assert registry.get_sample_value("reprise_requests_total", {**labels, "outcome": outcome}) == 0
            own = {"mode": mode.value, "origin": "canary", "outcome": outcome}
            assert registry.get_sample_value("reprise_canary_requests_total", own) == 0
        assert registry.get_sample_value("reprise_fork_tokens_count", {"mode": mode.value}) == 0
    for skip in Skip:
        assert registry.get_sample_value("reprise_comparisons_skipped_total", {"reason": skip}) == 0
    refused = {"mode": UNKNOWN, "origin": "canary", "outcome": Outcome.INVALID}
    assert registry.get_sample_value("reprise_canary_requests_total", refused) == 0
    for drop in Drop:
        assert registry.get_sample_value("reprise_ledger_dropped_total", {"reason": drop}) == 0
    for kind in Cross:
        labels = {"kind": kind, "verdict": "diverged"}
        assert registry.get_sample_value("reprise_cross_comparisons_total", labels) == 0


def test_a_model_that_was_not_declared_is_other(metrics: Metrics, registry: CollectorRegistry) -> None:
    """Callers cannot make label values: any number of model names is one."""
    size = len(metrics.render("")[0])
    for number in range(100):
        assert metrics.of(f"made-up-{number}", "standard") is metrics.of("other", "standard")
    metrics.of("made-up", Mode.ISOLATED).requests[Outcome.OK].inc()
    labels = {"model": "other", "mode": "isolated", "outcome": "ok"}
    assert registry.get_sample_value("reprise_requests_total", labels) == 1
    assert len(metrics.render("")[0]) == size


def test_declaring_again_keeps_what_was_counted(metrics: Metrics) -> None:
    """A model that a second replica serves too keeps its children and its counts."""
    bound = metrics.of("smollm2", "standard")
    bound.output_tokens.inc(3)
    metrics.declare("smollm2")
    assert metrics.of("smollm2", "standard") is bound


def test_a_mode_that_does_not_exist_is_an_error(metrics: Metrics) -> None:
    """Modes are ours, so a wrong one is a fault and no label."""
    with pytest.raises(KeyError):
        metrics.of("smollm2", "strict")


def test_unknown_reasons_are_other(metrics: Metrics, registry: CollectorRegistry) -> None:
    """A skip reason that is not listed becomes no label of its own."""
    metrics.skipped("because")
    metrics.skipped("too_large")
    assert registry.get_sample_value("reprise_comparisons_skipped_total", {"reason": "other"}) == 1
    assert registry.get_sample_value("reprise_comparisons_skipped_total", {"reason": "too_large"}) == 1


def test_posture_is_shown_as_labels_and_replaced(metrics: Metrics) -> None:
    """Unknown stays unknown, truth values read true and false, long values are cut, a change replaces the old set."""
    metrics.observe_replica("r", {"dtype": None, "eager": True, "model": "x" * 200, "replica": "ignored"})
    metrics.observe_replica("r", {"dtype": "float32", "eager": False, "threads": 2})
    assert page(metrics)["reprise_replica_info"] == [
        ({"replica": "r", "dtype": "float32", "eager": "false", "threads": "2"}, 1.0)
    ]
    metrics.observe_replica("r", {"dtype": None, "eager": True, "model": "x" * 200})
    ((labels, _),) = page(metrics)["reprise_replica_info"]
    assert (labels["dtype"], labels["eager"], len(labels["model"])) == ("unknown", "true", 128)


def test_leases_count_up_and_down(metrics: Metrics, registry: CollectorRegistry) -> None:
    """The gauges of a replica exist at 0 and follow its leases."""
    leases = metrics.leases("r")
    assert registry.get_sample_value("reprise_leases", {"replica": "r", "admission": "exclusive"}) == 0
    leases.shared.inc()
    assert registry.get_sample_value("reprise_leases", {"replica": "r", "admission": "shared"}) == 1


def test_a_gates_history_before_the_first_probe_is_not_counted(metrics: Metrics, registry: CollectorRegistry) -> None:
    """What a guard had counted when the gateway started went on elsewhere; what one counts that began anew is new."""

    def shown() -> list[float | None]:
        names = [("reprise_gate_seconds_total", {"phase": phase}) for phase in ("exclusive", "drain")]
        names.append(("reprise_gate_exclusive_admissions_total", {}))
        return [registry.get_sample_value(name, {"replica": "r", **labels}) for name, labels in names]

    for exclusive, drain, admissions, expected in (
        (8000.0, 90.0, 40, [0, 0, 0]),
        (8010.0, 91.0, 43, [10, 1, 3]),
        (5.0, 0.5, 2, [15, 1.5, 5]),
        (6.0, 0.5, 2, [16, 1.5, 5]),
    ):
        view = GateView(exclusive_seconds=exclusive, drain_seconds=drain, exclusive_admissions=admissions)
        metrics.observe_gate("r", view)
        assert shown() == expected


def test_the_page_speaks_openmetrics_when_asked(metrics: Metrics) -> None:
    """Accept decides; both forms parse, and both are complete."""
    body, content_type = metrics.render("application/openmetrics-text;version=1.0.0,text/plain;q=0.5")
    assert content_type.startswith("application/openmetrics-text; version=1.0.0")
    assert body.endswith(b"# EOF\n")
    families = openmetrics(body.decode())  # type: ignore[no-untyped-call]  # prometheus_client leaves it so
    assert {family.name for family in families} >= {"reprise_requests", "reprise_fork_tokens"}
    body, content_type = metrics.render("*/*")
    assert content_type.startswith("text/plain")
    assert b"_created" not in body


@pytest.mark.parametrize(
    "accept",
    [
        "application/openmetrics-text; version=foo",
        "application/openmetrics-text; version=1..0",
        "application/openmetrics-text; version=1.0.0; escaping=none, text/plain; version=foo",
        "text/plain; version=foo",
        "text/plain; version=\xe9=;q",
        ",;,=",
    ],
)
def test_any_accept_header_gives_a_page(metrics: Metrics, accept: str) -> None:
    """Nothing that a client sends can make the page fail; a version that is none gets the text format."""
    body, content_type = metrics.render(accept)
    assert b"reprise_requests_total{" in body
    assert content_type.startswith(("text/plain; version=0.0.4", "application/openmetrics-text; version=1.0.0"))


def test_two_sets_of_instruments_do_not_meet() -> None:
    """Each registry has its own instruments: nothing is global but the library's switch for creation times."""
    first, second = Metrics(CollectorRegistry()), Metrics(CollectorRegistry())
    first.dropped(Drop.QUEUE_FULL, 2)
    assert "reprise_ledger_dropped_total" in page(second)
    assert all(value == 0 for _, value in page(second)["reprise_ledger_dropped_total"])
