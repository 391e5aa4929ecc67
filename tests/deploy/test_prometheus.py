"""The rules of Prometheus: sound, about series that exist, each with its cases, each alert with its page."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry

from app.determinism.mode import DETERMINISTIC_MODES
from app.determinism.posture import Posture
from app.determinism.statistics import wilson_upper
from app.observation.metrics import Metrics
from app.upstream.replica import GateView
from grafana.boards import names
from tests.support import dashboards
from tests.support.dashboards import PROMETHEUS, ROOT, RULES
from tests.support.tools import tool

CASES = sorted((PROMETHEUS / "tests").glob("*.yml"))
ALERTS = [rule for rule in dashboards.rules() if "alert" in rule]
RECORDS = [rule["record"] for rule in dashboards.rules() if "record" in rule]


def promtool(*arguments: str | Path, **options: Any) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [tool("promtool"), *arguments], capture_output=True, text=True, check=False, timeout=300, **options
    )


def cases(kind: str) -> Iterator[dict[str, Any]]:
    """Every case of a kind in the files of cases."""
    for path in CASES:
        for test in yaml.safe_load(path.read_text())["tests"]:
            yield from test.get(kind, ())


def test_the_configuration_is_sound() -> None:
    """Prometheus accepts its configuration and finds every file of rules through it."""
    done = promtool("check", "config", "prometheus.yml", cwd=PROMETHEUS)
    assert done.returncode == 0, done.stderr
    assert f"{len(RULES)} rule files found" in done.stdout
    mounts = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]["prometheus"]["volumes"]
    assert "./deploy/prometheus/rules:/etc/prometheus/rules:ro" in mounts


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.name)
def test_the_rules_do_what_their_cases_say(path: Path) -> None:
    """Recorded values, and alerts that fire and that do not."""
    done = promtool("test", "rules", path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_has_a_case_that_fires_and_one_that_does_not() -> None:
    """No alert is only hoped to work."""
    fired = {case["alertname"] for case in cases("alert_rule_test") if case["exp_alerts"]}
    silent = {case["alertname"] for case in cases("alert_rule_test") if not case["exp_alerts"]}
    assert {rule["alert"] for rule in ALERTS} == fired == silent


@pytest.mark.parametrize("record", RECORDS)
def test_every_recorded_series_has_a_case(record: str) -> None:
    """No recording rule is only hoped to work."""
    asked = [case["expr"] for case in cases("promql_expr_test")]
    assert any(record in {name for name, _ in names.used(expression)} for expression in asked)


@pytest.mark.parametrize("record", RECORDS)
def test_a_recorded_series_is_named_by_level_metric_and_operations(record: str) -> None:
    """The level lists the labels that are left, so that a reader of a panel knows what was summed."""
    level, metric, operations = record.split(":")
    assert set(level.split("_")) <= {"model", "mode", "origin", "instance", "replica", "reprise"}
    assert metric
    assert operations


def test_every_rule_names_what_exists() -> None:
    """Each expression is about series of the gateway or recorded ones, filtered by labels that they have."""
    constants = {"reprise:divergence_budget:ratio", "reprise:divergence_budget:least_comparisons"}
    checked = [one for one in dashboards.rule_expressions() if one.place not in constants]
    assert len(checked) == len(ALERTS) + len(RECORDS) - len(constants)
    for one in checked:
        assert names.check(one.expression) == one.expression


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: f"{rule['alert']} {rule['labels'].get('window', '')}".strip())
def test_an_alert_leads_to_its_page(rule: dict[str, Any]) -> None:
    """Each alert says what happened and points to a section of the runbook that exists, which says what to do."""
    page = (ROOT / "docs" / "runbook.md").read_text()
    assert rule["labels"]["severity"] in {"page", "ticket"}
    assert {"summary", "description", "runbook"} == rule["annotations"].keys()
    assert rule["annotations"]["runbook"] == f"docs/runbook.md#{rule['alert'].lower()}"
    section = re.search(rf"^## {rule['alert']}\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)
    assert section is not None
    for part in ("**Means.**", "**Look at.**", "**Do.**"):
        assert part in section[1]


def test_the_runbook_has_no_page_of_an_alert_that_is_gone() -> None:
    """A section belongs to an alert."""
    sections = re.findall(r"^## (.+)$", (ROOT / "docs" / "runbook.md").read_text(), re.MULTILINE)
    assert set(sections) == {rule["alert"] for rule in ALERTS}


def test_the_runbook_knows_what_alarms_at_midnight() -> None:
    """A template that writes the date looks like a fault of the engine: both pages that would be opened name it."""
    page = (ROOT / "docs" / "runbook.md").read_text()
    alarm, clear = (page.partition(f"## {name}\n")[2].partition("\n## ")[0] for name in
                    ("RepriseDivergenceInDeterministicMode", "RepriseClearMargin"))  # fmt: skip
    assert "strftime_now" in alarm
    assert "--default-chat-template-kwargs" in alarm
    assert "write the date" in clear


def test_the_alarm_knows_every_deterministic_mode() -> None:
    """A mode that promises repeats is in the alert on its divergences, and no other mode is."""
    alert = next(rule for rule in ALERTS if rule["alert"] == "RepriseDivergenceInDeterministicMode")
    found = re.search(r'mode=~"([^"]+)"', alert["expr"])
    assert found is not None
    assert set(found[1].split("|")) == {mode.value for mode in DETERMINISTIC_MODES}


def test_counts_are_never_compared_with_one() -> None:
    """``increase()`` gives no whole numbers, so that "any" is above 0."""
    assert not [rule["alert"] for rule in ALERTS if "increase(" in rule["expr"] and re.search(r">= *1\b", rule["expr"])]


@pytest.mark.parametrize(("k", "n"), [(0, 1), (0, 64), (1, 1), (3, 64), (64, 64), (5, 10_000), (9_999, 10_000)])
def test_the_bound_is_that_of_the_statistics(k: int, n: int, tmp_path: Path) -> None:
    """PromQL computes Wilson's upper bound as the product does: the recorded one, and the one in the panels."""
    series = 'reprise_comparisons_total{{model="m",mode="isolated",origin="client",verdict="{}"}}'
    # The jump lies inside the window and the window is dense, so that extrapolation changes little.
    jump = "0+0x30 {0}+0x29"
    panel = next(
        one.expression for one in dashboards.queries() if one.place == "divergence.json: isolated: of n, below x % (C)"
    )
    expected = wilson_upper(k, n)
    close = f"abs({{}} - {expected!r}) < bool {0.02 * expected!r}"
    recorded = "mode:reprise_divergences_per_comparison:wilson_upper_increase1h"
    case = {
        "rule_files": [str(path) for path in RULES],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": [
                    {"series": series.format("diverged"), "values": jump.format(k)},
                    {"series": series.format("match"), "values": jump.format(n - k)},
                ],
                "promql_expr_test": [
                    {
                        "expr": close.format(f"({expression})"),
                        "eval_time": "59m",
                        "exp_samples": [{"labels": '{mode="isolated"}', "value": 1}],
                    }
                    for expression in (recorded, panel)
                ],
            }
        ],
    }
    (tmp_path / "case.yml").write_text(yaml.safe_dump(case))
    done = promtool("test", "rules", tmp_path / "case.yml")
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_metrics_page_is_well_named() -> None:
    """Promtool has nothing to say about names, units and texts of our metrics."""
    metrics = Metrics(CollectorRegistry())
    metrics.declare("m")
    metrics.leases("replica")
    metrics.observe_gate("replica", GateView())
    metrics.observe_replica("replica", Posture().to_mapping() | {"posture": "p"})
    page, _ = metrics.render("")
    done = promtool("check", "metrics", input=page.decode())
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
