"""The real engine: one vLLM in the deterministic profile for the whole run, and a gateway before it."""

import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

ROOT = Path(__file__).resolve().parents[2]
READY_SECONDS = 400
VERIFIER_LENGTH = 2048
VERIFIER_BLOCKS = 24
"""Blocks of the verifier's prefix cache, 128 tokens each."""


@dataclass(frozen=True)
class Engine:
    """A running vLLM."""

    url: str
    model: str
    guard_key: str = field(repr=False)


@pytest.fixture(scope="session")
def engine_python() -> str:
    """The interpreter that has vLLM and our package."""
    path = Path(os.environ.get("REPRISE_TEST_ENGINE_PYTHON", ROOT / ".venv-engine" / "bin" / "python"))
    assert path.exists(), f"{path} is missing; ./deploy/test makes it, ./deploy/test --no-engine does without"
    return str(path)


@pytest.fixture(scope="session")
def demo_model_dir() -> Path:
    """The bundled model's folder."""
    path = Path(os.environ.get("REPRISE_TEST_MODEL", ROOT / ".models" / "SmolLM2-135M-Instruct"))
    assert path.exists(), f"{path} is missing; ./deploy/test makes it, ./deploy/test --no-engine does without"
    return path


@pytest.fixture(scope="session")
def engine(engine_python: str, demo_model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """The engine as `./deploy/up` starts it, on a free port."""
    key, port = secrets.token_hex(16), free_port()
    argv = [engine_python, "-m", "app.cli", "engine", "--profile", "deterministic", "--target", "cpu"]
    argv += ["--model", str(demo_model_dir), "--served-model-name", "smollm2", "--port", str(port)]
    found = Engine(f"http://127.0.0.1:{port}", "smollm2", key)
    with running(argv, tmp_path_factory.mktemp("engine") / "log", REPRISE_GUARD_KEY=key) as check:
        wait_for(f"{found.url}/reprise/posture", {"x-determinism-guard-key": key}, check)
        yield found


@pytest.fixture(scope="session")
def gateway_url(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A gateway of its own process before the engine."""
    with gateway_before(tmp_path_factory.mktemp("gateway"), engine.url, guard_key=engine.guard_key) as url:
        yield url


@pytest.fixture(scope="session")
def verifier(engine_python: str, demo_model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """A second engine in the profile for verifiers, with a small prefix cache."""
    key, port = secrets.token_hex(16), free_port()
    argv = [engine_python, "-m", "app.cli", "engine", "--profile", "verifier", "--target", "cpu"]
    argv += ["--model", str(demo_model_dir), "--served-model-name", "smollm2", "--port", str(port), "--"]
    argv += ["--max-model-len", str(VERIFIER_LENGTH)]
    argv += ["--num-gpu-blocks-override", str(VERIFIER_BLOCKS)]
    found = Engine(f"http://127.0.0.1:{port}", "smollm2", key)
    with running(argv, tmp_path_factory.mktemp("verifier") / "log", REPRISE_GUARD_KEY=key) as check:
        wait_for(f"{found.url}/reprise/posture", {"x-determinism-guard-key": key}, check)
        yield found


@contextmanager
def gateway_before(state: Path, *upstreams: str, guard_key: str, **environment: str) -> Iterator[str]:
    """A gateway of its own process before these engines, ready; its URL."""
    port = free_port()
    argv = [sys.executable, "-m", "app.cli", "serve", "--port", str(port), "--state-dir", str(state)]
    argv += [f"--upstream={upstream}" for upstream in upstreams]
    state.mkdir(parents=True, exist_ok=True)
    with running(argv, state / "log", REPRISE_GUARD_KEY=guard_key, **environment) as check:
        wait_for(f"http://127.0.0.1:{port}/readyz", {}, check)
        yield f"http://127.0.0.1:{port}"


@pytest.fixture
def unused_port() -> int:
    """As `free_port`."""
    return free_port()


@contextmanager
def running(argv: list[str], log: Path, **environment: str) -> Iterator[Callable[[], None]]:
    """Run a program for the time of the block; the yielded check fails with its log's end when it has died."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            argv,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
            start_new_session=True,
        )

    def check() -> None:
        assert process.poll() is None, log.read_text(errors="replace")[-3000:]

    try:
        yield check
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(30)


def wait_for(url: str, headers: dict[str, str], check: Callable[[], None]) -> None:
    """Ask until the answer is 200."""
    deadline = time.monotonic() + READY_SECONDS
    with httpx.Client(trust_env=False, headers=headers, timeout=5) as client:
        while time.monotonic() < deadline:
            check()
            try:
                if client.get(url).status_code == httpx.codes.OK:
                    return
            except httpx.HTTPError:
                pass
            time.sleep(0.1)  # noqa: TID251 - another process is on its way; there is nothing to wait on but its answer
    pytest.fail(f"{url} was not ready within {READY_SECONDS} s")


def free_port() -> int:
    """A loopback port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
