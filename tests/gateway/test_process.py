"""The gateway as a process: how it starts, fails to start, and stops."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
COMMAND = [sys.executable, "-m", "app.cli"]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}


def run(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command that is expected to end by itself."""
    return subprocess.run(
        [*COMMAND, *words], capture_output=True, text=True, timeout=60, check=False, env=ENVIRONMENT | environment
    )


@contextmanager
def listening() -> Iterator[int]:
    """A port that somebody else has."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        yield other.getsockname()[1]


def test_a_port_in_use(tmp_path: Path) -> None:
    """One clear line and a non-zero exit."""
    with listening() as port:
        done = run("serve", "--port", str(port), "--state-dir", str(tmp_path))
    assert done.returncode == 1
    assert done.stderr == f"reprise serve: cannot listen on 127.0.0.1:{port}: Address already in use\n"


@pytest.mark.parametrize(
    ("words", "environment", "line"),
    [
        (("--port", "80000"), {}, "reprise serve: port: Input should be less than or equal to 65535\n"),
        (("--upstream", "nonsense"), {}, "reprise serve: upstreams: an upstream must be http"),
        (("--config", "/nowhere/x.toml"), {}, "reprise serve: config: there is no such file"),
        ((), {"REPRISE_UPSTREAM_API_KEY_FILE": "/nowhere/key"}, "reprise serve: [Errno 2] No such file"),
        ((), {"REPRISE_STATE_DIR": "/proc/nowhere"}, "reprise serve: [Errno 2] No such file"),
    ],
)
def test_a_bad_setting_is_one_line(
    words: tuple[str, ...], environment: dict[str, str], line: str, tmp_path: Path
) -> None:
    """It names the setting or the file, shows no traceback, and the exit is non-zero."""
    done = run("serve", *words, **({"REPRISE_STATE_DIR": str(tmp_path)} | environment))
    assert done.returncode in {1, 2}
    assert done.stderr.startswith(line)
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("environment", "line"),
    [
        ({"REPRISE_DEFAULT_MODE": "isolatd"}, "did you mean 'isolated'?\n"),
        ({"REPRISE_CANARY_INTERVAL": "abc"}, "reprise serve: canary_interval: Input should be a valid number"),
        ({"REPRISE_CANARIES": "/nowhere/x.jsonl"}, "reprise serve: the canaries cannot be read: /nowhere/x.jsonl"),
        ({"REPRISE_INSTALLATION_KEY_FILE": "/nowhere/key"}, "reprise serve: [Errno 2] No such file"),
        ({"REPRISE_LEDGER_URL": "http://x"}, "reprise serve: REPRISE_LEDGER_URL: it must be redis://"),
        ({"REPRISE_KEEP_TEXTS": "1", "REPRISE_REDACTOR": "no.such:hook"}, "reprise serve: the redactor 'no.such:hook'"),
    ],
)
def test_settings_can_be_checked_without_serving(environment: dict[str, str], line: str, tmp_path: Path) -> None:
    """`--check` says what `serve` would, in one line; it listens nowhere and makes no state directory."""
    state = tmp_path / "state"
    with listening() as port:
        words = ("serve", "--check", "--port", str(port), "--state-dir", str(state))
        refused, fine = run(*words, **environment), run(*words)
    assert refused.returncode in {1, 2}
    assert line in refused.stderr
    assert refused.stderr.count("\n") == 1
    assert (fine.returncode, fine.stdout, fine.stderr) == (0, "The settings can be used.\n", "")
    assert not state.exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_stops_when_told(tmp_path: Path, number: signal.Signals) -> None:
    """It says where it listens, keeps its files private, and ends cleanly on SIGTERM and Ctrl-C."""
    with listening() as port:
        pass
    state = tmp_path / "state"
    argv = [*COMMAND, "serve", "--port", str(port), "--state-dir", str(state)]
    environment = ENVIRONMENT | {"REPRISE_SHUTDOWN_DELAY": "0"}
    with subprocess.Popen(argv, stderr=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stderr is not None
        try:
            assert f"listening on http://127.0.0.1:{port}" in process.stderr.readline()
            wait_until_it_serves(port)
            process.send_signal(number)
            assert process.wait(20) == (130 if number == signal.SIGINT else -number)
            assert "Traceback" not in process.stderr.read()
        finally:
            process.kill()
    assert (state / "installation.key").stat().st_mode & 0o777 == 0o600
    assert state.stat().st_mode & 0o077 == 0


def wait_until_it_serves(port: int) -> None:
    """The listener is up before the line is printed; an answer to /healthz says that the lifespan has begun."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        assert connection.makefile("rb").readline().startswith(b"HTTP/1.1 200")


def test_the_engine_command_is_shown() -> None:
    """`reprise engine --print` shows what would run, and no secret."""
    done = run(
        "engine", "--profile", "throughput", "--target", "cpu", "--model", "m", "--print", REPRISE_GUARD_KEY="s3cret"
    )
    assert done.returncode == 0
    assert "--middleware app.engine.guard.Guard" in done.stdout
    assert "--enforce-eager" not in done.stdout
    assert "s3cret" not in done.stdout + done.stderr


def test_a_guard_variable_that_makes_no_sense_is_one_line() -> None:
    """Before vLLM is started, and naming the variable."""
    done = run("engine", "--target", "cpu", "--model", "m", REPRISE_EXCLUSIVE_SHARE="2")
    assert done.returncode == 1
    assert done.stderr.startswith("reprise engine: exclusive_share must be over 0 and at most 1")
    assert "REPRISE_EXCLUSIVE_SHARE" in done.stderr
    assert done.stderr.count("\n") == 1


def test_help_and_version() -> None:
    """Every command explains itself."""
    assert run("--version").stdout.startswith("reprise ")
    for command in ("serve", "engine", "probe", "simulate", "receipt"):
        assert f"reprise {command}" in run(command, "--help").stdout
