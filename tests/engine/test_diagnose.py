"""The blame ladder on the real engine: which layers act on it, in 16 bits and in 32, and which mode repeats."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from subprocess import run

import anyio
import pytest

from app.determinism.divergence import Closeness
from app.determinism.mode import DETERMINISTIC_MODES, Mode
from app.diagnose.advice import advise
from app.diagnose.diagnosis import Diagnosis
from app.diagnose.findings import Finding, State, Suspect
from app.diagnose.investigation import CANDIDATES, Investigation
from app.diagnose.verdict import Verdict
from tests.engine.conftest import ROOT, Engine, free_port, running, wait_for

pytestmark = [pytest.mark.anyio, pytest.mark.engine]

PATIENCE = 180.0
"""Seconds that a climb may take. What a test asserts is known after a third of them on two cores; the rest is left to
what is still unclear then, and is cut where it takes longer."""

TOKENS = 10


async def climb(url: str, *, cures: bool = False, sizes: tuple[int, ...] = (8,)) -> Diagnosis:
    """A finished run, as short as its tests allow."""
    prompts = CANDIDATES[:4]
    investigation = Investigation(url, prompts, None, PATIENCE, TOKENS, repeats=2, sizes=sizes, cures=cures)
    diagnosis = Diagnosis(investigation)
    await diagnosis.run()
    return diagnosis


def verdict_of(diagnosis: Diagnosis) -> Verdict:
    """Its verdict, which is there."""
    verdict = diagnosis.verdict
    assert verdict is not None
    return verdict


def finding(verdict: Verdict, suspect: Suspect) -> Finding:
    """The finding on a suspect, which is there."""
    found = verdict.of(suspect)
    assert found is not None
    return found


async def test_an_engine_in_bfloat16(verifier: Engine) -> None:
    """Batch shape and prefix cache change answers, contents and runs do not, and every fork is at a tie."""
    verdict = verdict_of(await climb(verifier.url))
    shape, cache = finding(verdict, Suspect.BATCH_SHAPE), finding(verdict, Suspect.PREFIX_CACHE)
    content, alone = finding(verdict, Suspect.NEIGHBOUR_CONTENT), finding(verdict, Suspect.RUN_TO_RUN)

    assert shape.acts
    # A batch whose prompts do not reach the engine at one moment is partly computed in a smaller shape.
    assert shape.bits.k > shape.bits.n // 2
    assert cache.acts
    assert content.state is State.NOT_SEEN
    assert content.bits.n > 0
    assert (alone.state, alone.bits.k) == (State.NOT_SEEN, 0)
    assert alone.bits.n > 0
    assert finding(verdict, Suspect.FAULT).state is State.NOT_SEEN
    assert {verdict.forks.closeness(fork) for fork in verdict.forks.forks} <= {Closeness.TIE}
    assert 0.01 < (verdict.forks.noise or 0) < 1


async def test_a_gateway_before_it(gateway_url: str) -> None:
    """The gateway proves that requests ran alone; a deterministic mode repeats under load, and it is advised."""
    diagnosis = await climb(gateway_url, cures=True, sizes=(4,))
    verdict, deployment = verdict_of(diagnosis), diagnosis.deployment
    measured = {cure.mode: cure for cure in diagnosis.cures}
    advice = advise(verdict, diagnosis.cures, gateway=True)

    assert deployment is not None
    assert deployment.gateway
    assert deployment.alone_proven
    assert finding(verdict, Suspect.BATCH_SHAPE).acts
    assert finding(verdict, Suspect.PREFIX_CACHE).state is State.UNTESTED  # the deterministic profile has none
    assert measured[Mode.STANDARD].measured
    assert measured[Mode.ISOLATED].reached_zero
    assert advice.mode in DETERMINISTIC_MODES | {"standard"}


@pytest.fixture(scope="module")
def float32_and_moe(
    engine_python: str, demo_model_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, str]]:
    """Two engines side by side, a core each: the bundled model in float32, and a mixture of experts."""
    folder = tmp_path_factory.mktemp("moe")
    maker = [engine_python, str(ROOT / "tests" / "support" / "tiny_moe.py"), str(folder), str(demo_model_dir)]
    run(maker, check=True, capture_output=True, timeout=300)
    engines = [(str(demo_model_dir), "0", ["--dtype", "float32"]), (str(folder), "1", [])]
    urls = []
    with ExitStack() as stack:
        checks = []
        for model, core, more in engines:
            port = free_port()
            argv = [engine_python, "-m", "app.cli", "engine", "--profile", "throughput", "--target", "cpu"]
            argv += ["--model", model, "--served-model-name", "m", "--port", str(port)]
            argv += ["--", "--enforce-eager", "--max-model-len", "2048", *more]
            log = tmp_path_factory.mktemp("engine") / "log"
            pins = {"VLLM_CPU_OMP_THREADS_BIND": core, "REPRISE_GUARD_KEY": "k"}
            checks.append(stack.enter_context(running(argv, log, **pins)))
            urls.append(f"http://127.0.0.1:{port}")
        for url, check in zip(urls, checks, strict=True):
            wait_for(f"{url}/health", {}, check)
        yield urls[0], urls[1]


async def test_float32_and_a_mixture_of_experts(float32_and_moe: tuple[str, str]) -> None:
    """In float32 tokens stay and logprobs move by far less than in 16 bits; experts of vLLM do not mind neighbours."""
    found: dict[str, Verdict] = {}

    async def look(url: str) -> None:
        found[url] = verdict_of(await climb(url))

    async with anyio.create_task_group() as group:
        for url in float32_and_moe:
            group.start_soon(look, url)
    float32, moe = (found[url] for url in float32_and_moe)

    assert not float32.diverged
    assert finding(float32, Suspect.BATCH_SHAPE).state is State.LOGPROBS_ONLY
    assert 0 < (float32.forks.noise or 0) < 1e-3
    assert float32.forks.limit < 1e-3
    for suspect in (Suspect.NEIGHBOUR_CONTENT, Suspect.RUN_TO_RUN):
        assert finding(moe, suspect).state is State.NOT_SEEN
        assert finding(moe, suspect).bits.n > 0
    assert finding(moe, Suspect.BATCH_SHAPE).state is not State.UNTESTED
