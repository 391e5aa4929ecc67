"""The Grafana dashboards: what the code makes, in Grafana's schema, about series that exist."""

import json
import re
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import yaml

from grafana.boards import names
from tests.support import dashboards
from tests.support.dashboards import DASHBOARDS, ROOT
from tests.support.tools import tool

BOARDS = dashboards.boards()
PANELS = list(dashboards.panels())
GENERATE = (sys.executable, str(ROOT / "deploy" / "grafana" / "generate.py"))
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())


def generate(*arguments: str, cwd: Path = ROOT) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([*GENERATE, *arguments], cwd=cwd, capture_output=True, text=True, check=False)


def members(value: object, name: str) -> list[object]:
    """Every value of a member of that name, at any depth."""
    if isinstance(value, list):
        return [found for item in value for found in members(item, name)]
    if isinstance(value, dict):
        return [
            *([value[name]] if name in value else []),
            *(one for item in value.values() for one in members(item, name)),
        ]
    return []


def family(series: str) -> str:
    """The metric that a series of a histogram belongs to; any other series is one itself."""
    return re.sub(r"_(bucket|sum|count)$", "", series)


def test_the_four_dashboards_are_there() -> None:
    """Divergence, cost, traffic and replicas, each with an address that does not change."""
    assert {name: board["uid"] for name, board in BOARDS.items()} == {
        f"{slug}.json": f"reprise-{slug}" for slug in ("cost", "divergence", "replicas", "traffic")
    }


def test_the_files_are_what_the_code_makes() -> None:
    """``--check`` finds no difference, so that nobody edits the JSON and loses it."""
    done = generate("--check")
    assert done.returncode == 0, done.stderr


def test_the_check_notices_an_edit_a_missing_and_a_foreign_file(tmp_path: Path) -> None:
    """A dashboard that was edited by hand, is missing, or is known to no code fails the check by name."""
    assert generate("--folder", str(tmp_path), cwd=tmp_path).returncode == 0
    assert generate("--check", "--folder", str(tmp_path)).returncode == 0
    (tmp_path / "cost.json").write_text("{}")
    (tmp_path / "traffic.json").unlink()
    (tmp_path / "own.json").write_text("{}")
    done = generate("--check", "--folder", str(tmp_path))
    assert done.returncode == 1
    assert [line.split()[0] for line in done.stderr.splitlines()] == ["cost.json", "own.json", "traffic.json"]


@pytest.mark.parametrize("name", BOARDS)
def test_a_dashboard_survives_grafanas_schema(name: str) -> None:
    """Read and written again through Grafana's own types, nothing is lost and nothing is added."""
    with warnings.catch_warnings():
        # Its classes for this schema say that there is a newer one; files that are provisioned are of this one.
        warnings.simplefilter("ignore", DeprecationWarning)
        from grafana_foundation_sdk.cog.encoder import JSONEncoder  # noqa: PLC0415 - importing it is what warns
        from grafana_foundation_sdk.cog.plugins import register_default_plugins  # noqa: PLC0415 - as above
        from grafana_foundation_sdk.models.dashboard import Dashboard  # noqa: PLC0415 - as above
    register_default_plugins()
    again = JSONEncoder().encode(Dashboard.from_json(json.loads((DASHBOARDS / name).read_text())))
    assert json.loads(again) == BOARDS[name]


@pytest.mark.parametrize("name", BOARDS)
def test_no_data_source_is_hard_coded(name: str) -> None:
    """Panels, queries, annotations and variables take the data source that the reader chose."""
    sources = members(BOARDS[name], "datasource")
    assert len(sources) > len(BOARDS[name]["panels"])
    assert all(source == {"type": "prometheus", "uid": "${datasource}"} for source in sources)


@pytest.mark.parametrize("name", BOARDS)
def test_a_dashboard_can_be_narrowed(name: str) -> None:
    """Model, mode and origin are all unless chosen, so that canaries can be left out."""
    variables = {one["name"]: one for one in BOARDS[name]["templating"]["list"]}
    assert list(variables) == ["datasource", "model", "mode", "origin", "window"]
    for choice in ("model", "mode", "origin"):
        assert variables[choice]["current"] == {"text": "All", "value": "$__all"}
        assert (variables[choice]["includeAll"], variables[choice]["multi"]) == (True, True)
        assert names.used(variables[choice]["query"])[0][0] in names.known()


def test_canaries_can_be_left_out_of_every_rate_of_divergence() -> None:
    """What is counted by origin is filtered by origin in each panel that shows it by mode."""
    by_origin = [
        (place, target["expr"])
        for place, panel in PANELS
        for target in panel["targets"]
        if "reprise_comparisons_total{" in target["expr"] and "by (mode" in target["expr"]
    ]
    assert len(by_origin) >= 12
    assert not [place for place, expression in by_origin if 'origin=~"$origin"' not in expression]


# Panels of the dashboard *Divergence* in which who asked plays no part.
_OF_NO_ORIGIN = {"Ledger", "Cohorts in the ledger", "Size of the ledger"}


@pytest.mark.parametrize(
    "panel",
    [panel for place, panel in PANELS if place.startswith("divergence") and panel["title"] not in _OF_NO_ORIGIN],
    ids=lambda panel: panel["title"],
)
def test_a_panel_that_the_choice_of_origins_does_not_reach_says_so(panel: dict[str, Any]) -> None:
    """Nobody takes what a histogram shows of canaries too for clients' figures."""
    filtered = any("$origin" in target["expr"] for target in panel["targets"])
    said = re.search(
        r"All (modes|models) and origins\.$|All modes and origins\.|Clients' requests alone", panel["description"]
    )
    assert filtered != (said is not None)


@pytest.mark.parametrize("title", ["Divergences by cause", "Divergences by margin at the fork"])
@pytest.mark.parametrize("first", [8, 9, 10, 11])
def test_a_lone_divergence_is_seen_wherever_it_falls(title: str, first: int, tmp_path: Path) -> None:
    """The windows of two neighbouring points share a scrape, so that no increase lies between them."""
    panel = next(panel for place, panel in PANELS if place == f"divergence.json: {title}")
    assert panel["interval"] == "1m"
    # By Grafana's rule for points 1m apart and a scrape every 15s: the larger of 1m + 15s and 4 * 15s.
    expression = dashboards.interpolated(panel["targets"][0]["expr"].replace("$__rate_interval", "75s"))
    label = "cause" if "cause" in title else "margin"
    name = {"cause": "reprise_divergences_total", "margin": "reprise_divergence_margins_total"}[label]
    series = f'{name}{{model="m",mode="isolated",origin="client",{label}="x"}}'
    # A scrape 5s after the full minute and every 15s from there, as no scrape falls on Grafana's points.
    values = " ".join(f"_ {int(scrape >= first)} _" for scrape in range(32))
    holds(
        tmp_path,
        [{"series": series, "values": values}],
        f"sum_over_time(({expression})[6m:1m]) > bool 0.9",
        f'{{{label}="x"}}',
        interval="5s",
    )


@pytest.mark.parametrize(
    ("matched", "diverged", "judged", "similarity", "expected"),
    [
        (50, 50, 0, 0.0, None),
        (50, 50, 50, 0.5, 0.75),
        (50, 50, 10, 0.5, 0.75),
        (100, 0, 0, 0.0, 1.0),
        (0, 100, 20, 0.25, 0.25),
    ],
)
def test_agreement_rests_on_what_was_judged(
    matched: int, diverged: int, judged: int, similarity: float, expected: float | None, tmp_path: Path
) -> None:
    """Diverged answers that nobody judged count with the mean of those that were judged, and never as if equal."""
    expression = next(
        one.expression
        for one in dashboards.queries()
        if one.place == "divergence.json: Agreement: verbatim, by edits, by meaning (B)"
    )
    grows = {
        'reprise_comparisons_total{model="m",mode="standard",origin="client",verdict="match"}': matched,
        'reprise_comparisons_total{model="m",mode="standard",origin="client",verdict="diverged"}': diverged,
        'reprise_similarity_ratio_count{kind="edit"}': judged,
        'reprise_similarity_ratio_sum{kind="edit"}': judged * similarity,
    }
    series = [{"series": name, "values": f"0+0x30 {by}+0x29"} for name, by in grows.items()]
    if expected is None:
        holds(tmp_path, series, f"absent({expression})", "{}")
    else:
        holds(tmp_path, series, f"abs(({expression}) - {expected}) < bool 1e-9", "{}")


def holds(folder: Path, series: list[dict[str, str]], expression: str, labels: str, *, interval: str = "1m") -> None:
    """Check in Prometheus that an expression is 1 at the 59th step of these series."""
    case = {
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": interval,
                "input_series": series,
                "promql_expr_test": [
                    {
                        "expr": expression,
                        "eval_time": "59m" if interval == "1m" else "7m10s",
                        "exp_samples": [{"labels": labels, "value": 1}],
                    }
                ],
            }
        ],
    }
    (folder / "case.yml").write_text(yaml.safe_dump(case))
    done = subprocess.run(
        [tool("promtool"), "test", "rules", folder / "case.yml"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(("place", "panel"), PANELS, ids=[place for place, _ in PANELS])
def test_a_panel_says_how_to_read_it(place: str, panel: dict[str, Any]) -> None:
    """Each panel has a text, asks something, and shows no NaN."""
    assert len(panel["description"]) > 20, place
    assert panel["targets"]
    assert panel["fieldConfig"]["defaults"]["noValue"] == "no traffic"
    special = panel["fieldConfig"]["defaults"]["mappings"][0]
    assert special["options"] == {"match": "null+nan", "result": {"text": "no traffic"}}


@pytest.mark.parametrize("name", BOARDS)
def test_panels_lie_side_by_side(name: str) -> None:
    """No panel covers another or leaves the grid, and each has a number of its own."""
    panels = BOARDS[name]["panels"]
    cells = [
        (place["x"] + x, place["y"] + y)
        for place in (panel["gridPos"] for panel in panels)
        for x in range(place["w"])
        for y in range(place["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24
    assert len({panel["id"] for panel in panels}) == len(panels)


def test_every_query_names_what_exists() -> None:
    """Each query is about series of the gateway or of the pinned vLLM, filtered by labels that they have."""
    asked = dashboards.queries()
    assert len(asked) > 60
    for one in asked:
        assert names.check(one.expression) == one.expression


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("rate(reprise_request_total[5m])", "there is no series reprise_request_total"),
        ("vllm:gpu_prefix_cache_hits_total", "there is no series vllm:gpu_prefix_cache_hits_total"),
        ("mode:reprise_divergences:increase2d", "there is no series mode:reprise_divergences:increase2d"),
        ('sum(reprise_leases{model="m"})', "reprise_leases has no label model"),
        ('reprise_fork_tokens_bucket{le="1",origin="client"}', "reprise_fork_tokens_bucket has no label origin"),
        ("vector(1)", "names no series"),
    ],
)
def test_a_query_about_nothing_is_refused(expression: str, reason: str) -> None:
    """A renamed metric or a label that a series does not have stops the generator, with the query in the message."""
    with pytest.raises(names.UnknownSeriesError, match=reason) as caught:
        names.check(expression)
    assert expression in str(caught.value)


def test_every_query_is_promql(tmp_path: Path) -> None:
    """Prometheus's own parser accepts each query as Grafana sends it."""
    recorded = [{"record": f"q{number}", "expr": one.expression} for number, one in enumerate(dashboards.queries())]
    path = tmp_path / "queries.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": recorded}]}))
    done = subprocess.run([tool("promtool"), "check", "rules", path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert f"{len(recorded)} rules found" in done.stdout


def test_every_series_of_ours_is_shown_somewhere() -> None:
    """What the gateway counts has a panel or a rule; what nobody looks at should not be counted."""
    ours = {name for name in names.known() if name.startswith("reprise_")}
    shown = {
        name
        for one in (*dashboards.queries(), *dashboards.rule_expressions())
        for name, _ in names.used(one.expression)
    }
    assert {family(name) for name in ours} - {family(name) for name in shown} == set()


def test_grafana_starts_closed_and_finds_everything() -> None:
    """Grafana has a password from the environment, lets nobody in without one, and reads what is mounted."""
    service = COMPOSE["services"]["grafana"]
    environment = service["environment"]
    assert environment["GF_SECURITY_ADMIN_PASSWORD"].startswith("${GRAFANA_ADMIN_PASSWORD:?")
    assert environment["GF_AUTH_ANONYMOUS_ENABLED"] == "false"
    assert service["ports"] == ["127.0.0.1:3000:3000"]
    mounts = dict(volume.split(":")[:2] for volume in service["volumes"] if volume.startswith("./"))
    assert mounts == {
        "./deploy/grafana/provisioning": "/etc/grafana/provisioning",
        "./deploy/grafana/dashboards": "/etc/grafana/dashboards",
    }
    provisioning = ROOT / "deploy" / "grafana" / "provisioning"
    provider = yaml.safe_load((provisioning / "dashboards" / "reprise.yml").read_text())["providers"][0]
    assert provider["options"]["path"] == mounts["./deploy/grafana/dashboards"]
    source = yaml.safe_load((provisioning / "datasources" / "prometheus.yml").read_text())["datasources"][0]
    assert (source["type"], source["url"]) == ("prometheus", "http://prometheus:9090")
    assert "uid" not in source


@pytest.mark.parametrize("name", COMPOSE["services"])
def test_what_we_did_not_build_is_pinned(name: str) -> None:
    """An image from elsewhere has a whole version, so that it does not change by itself."""
    image = COMPOSE["services"][name].get("image")
    assert ("build" in COMPOSE["services"][name]) != bool(image)
    assert image is None or image.rpartition(":")[2].lstrip("v").count(".") == 2


def test_the_dockerfile_is_sound() -> None:
    """Hadolint has nothing to say."""
    done = subprocess.run([tool("hadolint"), "Dockerfile"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == ""
