"""A setting or a metric that the README does not name does not exist for the people who run this."""

import re
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from app.observation.metrics import Metrics
from app.settings import Settings

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
METRICS = re.findall(r"^# TYPE (\S+)", Metrics(CollectorRegistry()).render("")[0].decode(), re.MULTILINE)


def text(page: str) -> str:
    """A page of the repository."""
    return (ROOT / page).read_text()


@pytest.mark.parametrize("name", Settings.model_fields)
def test_every_setting_is_in_the_readme(name: str) -> None:
    """The README names each setting by its environment variable."""
    assert re.search(rf"\bREPRISE_{name.upper()}\b", README)


def test_metrics_are_found() -> None:
    """There are metrics; a test over none of them would prove nothing."""
    assert len(METRICS) >= 10
    assert all(name.startswith("reprise_") for name in METRICS)


@pytest.mark.parametrize("page", ["README.md", "docs/compare.md"])
def test_commands_can_be_pasted(page: str) -> None:
    """Every command line with arguments names the environment that holds the command."""
    commands = re.findall(
        r"(?:^|`)(\S*reprise) (?:serve|engine|probe|replay|compare|simulate|receipt) [-\w]", text(page), re.MULTILINE
    )
    assert commands
    assert {command.rpartition("/")[0] for command in commands} <= {".venv/bin", ".venv-engine/bin"}


@pytest.mark.parametrize("name", METRICS)
def test_every_metric_is_in_the_readme(name: str) -> None:
    """The README names each metric as Prometheus shows it."""
    assert re.search(rf"\b{name}\b", README)
