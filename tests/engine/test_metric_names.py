"""The series of vLLM that the dashboards show are on a real engine's page, with the labels that the queries use."""

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from grafana.boards.names import VLLM
from tests.engine.conftest import Engine

pytestmark = pytest.mark.engine


def test_the_pinned_series_exist(engine: Engine) -> None:
    """A vLLM that renames a series is noticed here, before a panel is empty."""
    page = httpx.get(f"{engine.url}/metrics", trust_env=False, timeout=30).raise_for_status().text
    found = {
        sample.name: frozenset(sample.labels)
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }
    assert {name: found.get(name) for name in VLLM} == dict(VLLM)
