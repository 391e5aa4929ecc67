"""Semantic similarity beside the recorder: observed for pairs that diverged, never waited for, never a verdict."""

import logging
import threading
from collections.abc import Sequence

import pytest
from prometheus_client import CollectorRegistry

from app.determinism.output import Choice, Output
from app.observation.likeness import Likeness
from app.observation.metrics import Metrics


class Fixed:
    """An embedder that gives each text a vector by its first letter, once it may."""

    def __init__(self) -> None:
        self.may = threading.Event()
        self.asked: list[str] = []
        self.broken = False

    def embed(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        """A right angle between different letters."""
        self.may.wait(30)
        self.asked += texts
        if self.broken:
            raise RuntimeError("no")
        return [[1.0, 0.0] if text.startswith("a") else [0.0, 1.0] for text in texts]


def output(text: str) -> Output:
    """A whole answer."""
    return Output.of([Choice(0, text, finish_reason="stop")])


@pytest.fixture
def registry() -> CollectorRegistry:
    """A registry of its own."""
    return CollectorRegistry()


def observed(registry: CollectorRegistry) -> tuple[float, float]:
    """How many similarities were observed, and their sum."""
    labels = {"kind": "semantic"}
    count = registry.get_sample_value("reprise_similarity_ratio_count", labels)
    total = registry.get_sample_value("reprise_similarity_ratio_sum", labels)
    assert count is not None
    assert total is not None
    return count, total


def test_pairs_are_observed_and_the_end_does_not_lose_the_thread(registry: CollectorRegistry) -> None:
    """Two alike and two that are not; leaving the block ends the thread."""
    embedder = Fixed()
    embedder.may.set()
    with Likeness(embedder, Metrics(registry).similarity["semantic"]) as likeness:
        likeness.offer(output("abc"), output("axy"))
        likeness.offer(output("abc"), output("xyz"))
    assert observed(registry) == (2.0, 1.0)
    assert not [thread for thread in threading.enumerate() if thread.name == "reprise-semantic"]


def test_nobody_waits_for_it(registry: CollectorRegistry) -> None:
    """What finds too many waiting is left out."""
    embedder = Fixed()
    with Likeness(embedder, Metrics(registry).similarity["semantic"]) as likeness:
        for number in range(500):
            likeness.offer(output("a"), output(f"a{number}"))
        embedder.may.set()
    assert 1 <= observed(registry)[0] <= 65


def test_a_model_that_fails_costs_one_pair(registry: CollectorRegistry, caplog: pytest.LogCaptureFixture) -> None:
    """It is logged without a text."""
    embedder = Fixed()
    embedder.may.set()
    embedder.broken = True
    with caplog.at_level(logging.ERROR), Likeness(embedder, Metrics(registry).similarity["semantic"]) as likeness:
        likeness.offer(output("a secret"), output("another"))
    assert observed(registry)[0] == 0
    assert "could not be compared by their meaning" in caplog.text
    assert "secret" not in caplog.text
