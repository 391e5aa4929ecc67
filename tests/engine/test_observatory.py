"""What the metrics say of divergence, on a real engine, next to a comparison of the same answers made outside."""

import itertools
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from app.determinism.divergence import Closeness, Verdict, compare
from app.determinism.output import CHAT_PATH, Output
from app.determinism.reading import read_unary
from app.probe.prompts import BUILT_IN, load_prompt
from tests.engine.conftest import Engine, free_port, running, wait_for

pytestmark = pytest.mark.engine

PROMPTS = BUILT_IN
TOKENS = 40


@pytest.fixture
def gateway(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A gateway that has seen nothing yet."""
    state, port = tmp_path_factory.mktemp("observed"), free_port()
    argv = [sys.executable, "-m", "app.cli", "serve", "--port", str(port), "--upstream", engine.url]
    url = f"http://127.0.0.1:{port}"
    with running([*argv, "--state-dir", str(state)], state / "log", REPRISE_GUARD_KEY=engine.guard_key) as check:
        wait_for(f"{url}/readyz", {}, check)
        yield url


def ask(url: str, prompt: str, mode: str, **more: Any) -> Output:
    """An answer with its token ids and logprobs, as the caller's own wish, so that both sides see the same."""
    body = {"model": "smollm2", "messages": [{"role": "user", "content": prompt}], "max_tokens": TOKENS}
    body |= {"temperature": 0, "logprobs": True, "top_logprobs": 2, "return_token_ids": True, **more}
    response = httpx.post(
        f"{url}{CHAT_PATH}", json=body, headers={"x-determinism-mode": mode}, timeout=300, trust_env=False
    )
    assert response.status_code == 200, response.text
    output = read_unary(CHAT_PATH, response.content)
    assert output is not None
    return output


def samples(url: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """The metrics page."""
    page = httpx.get(f"{url}/metrics", timeout=30, trust_env=False).text
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


def counted(page: dict[tuple[str, tuple[tuple[str, str], ...]], float], name: str, **labels: str) -> int:
    """The sum of the samples of a name that have these labels."""
    wanted = set(labels.items())
    return int(sum(value for (known, had), value in page.items() if known == name and wanted <= set(had)))


def settled(url: str, compared: int, mode: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """The page once the recorder has compared so many."""
    while True:
        page = samples(url)
        seen = [counted(page, "reprise_comparisons_total", mode=mode, verdict=v) for v in ("match", "diverged")]
        if sum(seen) >= compared:
            return page


def under_load(url: str, mode: str, *, load: int, times: int) -> tuple[list[Output], list[tuple[int, Output]]]:
    """The references, each asked for alone, and the repeats, each with the number of its prompt, among other work."""
    references = [ask(url, prompt, mode) for prompt in PROMPTS]
    done = threading.Event()

    def work(worker: int) -> None:
        for step in itertools.count():
            if done.is_set():
                return
            ask(url, load_prompt(worker, step), "standard", temperature=1)

    with ThreadPoolExecutor(load + 4) as pool:
        other = [pool.submit(work, worker) for worker in range(load)]
        numbers = [number for _ in range(times) for number in range(len(PROMPTS))]
        repeats = [(number, pool.submit(ask, url, PROMPTS[number], mode)) for number in numbers]
        try:
            answers = [(number, future.result()) for number, future in repeats]
        finally:
            done.set()
        for future in other:
            future.result()
    return references, answers


def test_the_metrics_agree_with_a_comparison_made_outside(gateway: str) -> None:
    """Among other work `standard` diverges, co-batched, and forks and margins are those of the same answers here."""
    references, answers = under_load(gateway, "standard", load=12, times=4)
    page = settled(gateway, len(answers), "standard")
    comparisons = [compare(references[number], output) for number, output in answers]
    diverged = [each for each in comparisons if each.verdict is Verdict.DIVERGED]

    assert len(diverged) > 0
    assert counted(page, "reprise_comparisons_total", mode="standard", verdict="diverged") == len(diverged)
    assert counted(page, "reprise_comparisons_total", mode="standard", verdict="match") == len(answers) - len(diverged)
    assert counted(page, "reprise_divergences_total", mode="standard", cause="co_batched") == len(diverged)
    closeness = Counter(Closeness.of(each.margin) for each in diverged)
    for margin in Closeness:
        assert counted(page, "reprise_divergence_margins_total", mode="standard", margin=margin) == closeness[margin]
    assert closeness[Closeness.UNKNOWN] == 0
    assert_histogram(page, "reprise_fork_tokens", [each.fork_tokens for each in diverged], mode="standard")
    assert_histogram(page, "reprise_fork_margin_nats", [each.margin for each in diverged])
    assert_histogram(page, "reprise_logprob_delta_nats", [each.logprob_delta for each in comparisons])


def assert_histogram(page: Any, name: str, values: list[float | int | None], **labels: str) -> None:
    """The buckets hold these values."""
    known = [value for value in values if value is not None]
    edges = {dict(had)["le"] for (sample, had) in page if sample == f"{name}_bucket"}
    assert counted(page, f"{name}_count", **labels) == len(known)
    for edge in edges:
        within = sum(value <= float(edge) for value in known)
        assert counted(page, f"{name}_bucket", le=edge, **labels) == within, (name, edge)


def test_canaries_are_answered(engine: Engine, tmp_path: Path) -> None:
    """By a real vLLM, in each of their modes: it is particular about what a request looks like."""
    port = free_port()
    argv = [sys.executable, "-m", "app.cli", "serve", "--port", str(port), "--upstream", engine.url]
    environment = {"REPRISE_GUARD_KEY": engine.guard_key, "REPRISE_CANARY_INTERVAL": "0.1"}
    url = f"http://127.0.0.1:{port}"
    with running([*argv, "--state-dir", str(tmp_path / "state")], tmp_path / "log", **environment) as check:
        wait_for(f"{url}/readyz", {}, check)
        for mode in ("standard", "seeded", "isolated"):
            while not counted(samples(url), "reprise_canary_requests_total", mode=mode, outcome="ok"):
                check()
        page = samples(url)
    assert counted(page, "reprise_canary_requests_total", outcome="invalid") == 0


def test_isolated_is_zero_of_n(gateway: str) -> None:
    """Among the same work: no divergence, and logprobs that are equal to the last bit."""
    references, answers = under_load(gateway, "isolated", load=4, times=2)
    page = settled(gateway, len(answers), "isolated")

    assert all(references[number].digest == output.digest for number, output in answers)
    assert counted(page, "reprise_comparisons_total", mode="isolated", verdict="match") == len(answers)
    assert counted(page, "reprise_comparisons_total", mode="isolated", verdict="diverged") == 0
    deltas = [compare(references[number], output).logprob_delta for number, output in answers]
    assert set(deltas) == {0.0}
