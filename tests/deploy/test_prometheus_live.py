"""Debian's Prometheus scrapes a running gateway, and every query of every dashboard and rule is run in it."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support import dashboards
from tests.support.dashboards import RULES, RunningPrometheus, running_prometheus
from tests.support.running import RunningGateway, running_gateway, start
from tests.support.scripted import ScriptedVllm, guarded
from tests.support.tools import tool

pytestmark = pytest.mark.anyio

ASKED = {"model": "m", "temperature": 0}


async def traffic(gateway: RunningGateway, upstream: ScriptedVllm) -> None:
    """Repeats that agree, one that does not, streams, an isolated request, nonsense, and a mode that cannot be had."""
    for _ in range(3):
        await gateway.post(ASKED)
        await gateway.post({**ASKED, "determinism": "isolated"})
        await gateway.post({**ASKED, "stream": True})
    holding = start(gateway.post({"model": "m", "x_script": {"hold": 1}}))
    await upstream.until(10)
    await gateway.post(ASKED)
    upstream.release.set()
    await asyncio.gather(holding, gateway.post(b"{"), gateway.post({**ASKED, "determinism": "invariant"}))


@pytest.fixture
async def prometheus(upstream: ScriptedVllm, tmp_path: Path) -> AsyncIterator[RunningPrometheus]:
    """A Prometheus with our rules that has seen a gateway before and after some traffic."""
    program = tool("prometheus")
    guarded(upstream, batch_invariance=False)
    async with running_gateway(tmp_path / "state", upstream.url, ledger=True, guard_key="g" * 32) as gateway:
        rules = tmp_path / "prometheus" / "rules"
        rules.mkdir(parents=True)
        for path in RULES:
            shutil.copy(path, rules)
        engine = upstream.url.removeprefix("http://")
        config = {
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
            "rule_files": ["rules/*.yml"],
            "scrape_configs": [
                {"job_name": "reprise", "static_configs": [{"targets": [f"127.0.0.1:{gateway.port}"]}]},
                {"job_name": "vllm", "static_configs": [{"targets": [engine], "labels": {"profile": "deterministic"}}]},
            ],
        }
        async with running_prometheus(program, tmp_path / "prometheus", config) as running:
            await running.until('reprise_requests_total{model="m"}')
            await traffic(gateway, upstream)
            await running.until('increase(reprise_comparisons_total{model="m",verdict="diverged"}[1m]) > 0')
            yield running


async def test_every_query_and_every_rule_is_answered(prometheus: RunningPrometheus) -> None:
    """No query of a dashboard and no rule gives an error, at one time and over a range; the rules are all healthy."""
    asked = [*dashboards.queries(), *dashboards.rule_expressions()]
    assert len(asked) > 100
    await prometheus.until('mode:reprise_divergences:increase1h{mode="standard"} > 0')
    (now,) = await prometheus.samples("vector(time())")
    end = float(now["value"][1])
    failed = []
    for one in asked:
        answer = await prometheus.get("query", query=one.expression)
        ranged = await prometheus.get(
            "query_range", query=one.expression, start=str(end - 300), end=str(end), step="15s"
        )
        if not answer["status"] == ranged["status"] == "success" or "warnings" in answer:
            failed.append((one.place, answer, ranged))
    assert not failed
    groups = (await prometheus.get("rules"))["data"]["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert len(rules) == len(dashboards.rules())
    assert not [(rule["name"], rule.get("lastError")) for rule in rules if rule["health"] == "err"]


async def test_the_panels_show_the_traffic(prometheus: RunningPrometheus) -> None:
    """What was sent is what the panels show: one divergence in standard, none in isolated, and a mode refused."""
    by_place = {one.place: one.expression for one in dashboards.queries()}

    async def value(place: str, **labels: str) -> float:
        found = [one for one in await prometheus.samples(by_place[place]) if labels.items() <= one["metric"].items()]
        assert len(found) == 1, (place, found)
        return float(found[0]["value"][1])

    table = "divergence.json: Every mode and origin"
    assert await value(f"{table} (A)", mode="standard", origin="client") >= 1
    assert (
        0
        < await value(f"{table} (C)", mode="standard", origin="client")
        < await value(f"{table} (D)", mode="standard", origin="client")
    )
    agreement = "divergence.json: Agreement: verbatim, by edits, by meaning"
    # The two are sums of the same quotients, added up in another order.
    assert 0 < await value(f"{agreement} (A)") <= await value(f"{agreement} (B)") + 1e-9 < 1
    assert await prometheus.samples(by_place[f"{agreement} (C)"]) == []  # nobody asked for semantic similarity
    promise = "divergence.json: isolated: of n, below x %"
    assert await value(f"{promise} (A)") == 0
    assert await value(f"{promise} (B)") >= 2
    assert 0.1 < await value(f"{promise} (C)") < 0.7
    assert await value("divergence.json: Divergences by cause (A)", cause="co_batched") > 0
    assert await value("cost.json: Mitigations refused (A)", mode="invariant") > 0
    assert await value("traffic.json: How they ended (A)", outcome="invalid") > 0
    assert await value("traffic.json: Time to the first token (B)") > 0
    assert await value("replicas.json: What each replica runs (A)", posture="p-1") == 1


async def test_a_panel_without_traffic_has_no_value(prometheus: RunningPrometheus) -> None:
    """A mode that nobody used has no rate and no bound, and no quotient anywhere is NaN or infinite."""
    quotients = [one for one in dashboards.queries() if " > 0)" in one.expression]
    assert len(quotients) >= 15
    for one in quotients:
        values = {sample["value"][1] for sample in await prometheus.samples(one.expression)}
        assert not values & {"NaN", "+Inf", "-Inf"}, one
    (rate,) = [one for one in quotients if one.place == "divergence.json: Rate of divergence (A)"]
    assert "verified" not in {sample["metric"]["mode"] for sample in await prometheus.samples(rate.expression)}


async def test_a_divergence_leads_to_its_request(prometheus: RunningPrometheus) -> None:
    """The exemplar of a divergence carries the request's id, under the name by which Grafana links to its receipt."""
    (now,) = await prometheus.samples("vector(time())")
    end = float(now["value"][1])
    answer = await prometheus.get(
        "query_exemplars", query="reprise_divergences_total", start=str(end - 300), end=str(end + 5)
    )
    found = [one for series in answer["data"] for one in series["exemplars"]]
    assert found
    assert all(one["labels"].keys() == {"request_id"} for one in found)
