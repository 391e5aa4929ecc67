"""``deploy/up`` as a person meets it: real processes, a fake ``reprise``."""

import json
import os
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from launcher.readiness import Answer
from tests.deploy.conftest import ROOT, Checkout

DEADLINE = 60  # seconds; nothing here should need one


def read_until(stream: "subprocess.Popen[str]", text: str) -> str:
    """The output up to the line that contains ``text``; the test fails where the output ends without it."""
    assert stream.stdout is not None
    seen = ""
    for line in stream.stdout:
        seen += line
        if text in line:
            return seen
    raise AssertionError(
        f"never said {text!r}; said {seen!r}; errors {stream.stderr.read() if stream.stderr else ''!r}"
    )


def is_running(pid: int) -> bool:
    """Whether the process lives; one that is dead but not yet collected does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in {"Z", "X"}
    except OSError:
        return False


def up(*arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    """Run the real checkout's ``deploy/up`` to its end."""
    return subprocess.run(
        [ROOT / "deploy" / "up", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=DEADLINE,
        env={**os.environ, **environment},
    )


def test_dry_run_lists_every_command_in_order_and_keeps_the_key_to_itself() -> None:
    """A dry run prints what would run: two environments, model, engine, gateway; the guard key is not in it."""
    key = "a-key-that-must-not-be-printed"
    done = up("--dry-run", "--device", "cpu", REPRISE_GUARD_KEY=key)
    assert done.returncode == 0
    assert key not in done.stdout + done.stderr
    milestones = [
        "venv --clear",
        "--require-hashes -r",
        "serve --host 127.0.0.1 --port 8000 --upstream http://127.0.0.1:8001 --check",
        ".venv-engine",
        "torch-cpu.txt",
        "# if that fails:",
        "requirements-cpu.txt",
        "app.engine.demo_model",
        "engine --profile deterministic",
        "serve --host 127.0.0.1 --port 8000 --upstream http://127.0.0.1:8001\n",
    ]
    places = [done.stdout.find(milestone) for milestone in milestones]
    assert -1 not in places, dict(zip(milestones, places, strict=True))
    assert places == sorted(places)
    assert done.stdout.count("REPRISE_GUARD_KEY=<secret>") == 2


def test_dry_run_for_cuda_installs_vllm_itself() -> None:
    """On an NVIDIA GPU the same command takes ``vllm``: its pins, no CPU build, everything else alike."""
    done = up("--dry-run", "--device", "cuda")
    assert done.returncode == 0
    assert "requirements-cuda.txt" in done.stdout
    assert "requirements-cpu.txt" not in done.stdout
    assert "torch-cpu.txt" not in done.stdout
    assert "engine --profile deterministic" in done.stdout


def test_dry_run_before_existing_servers_installs_no_engine() -> None:
    """With ``--upstream`` nothing about an engine is installed or started, and every URL reaches the gateway."""
    done = up("--dry-run", "--upstream", "http://one:8001", "--upstream", "https://two")
    assert done.returncode == 0
    assert "engine" not in done.stdout
    assert "--upstream http://one:8001 --upstream https://two" in done.stdout


def test_dry_run_honours_every_flag(tmp_path: Path) -> None:
    """Ports, host, profile and an own model show up in the commands; the bundled model is then not made."""
    flags = ("--port", "9000", "--engine-port", "9001", "--host", "0.0.0.0", "--profile", "throughput")  # noqa: S104 - named, not bound
    done = up("--dry-run", "--device", "cpu", *flags, "--model", str(tmp_path))
    assert f"engine --profile throughput --target cpu --model {tmp_path} --port 9001" in done.stdout
    assert "serve --host 0.0.0.0 --port 9000 --upstream http://127.0.0.1:9001" in done.stdout
    assert "demo_model" not in done.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--port", "0"), "--port"),
        (("--port", "eighty"), "--port"),
        (("--profile", "fast"), "--profile"),
        (("--upstream", "localhost:8001"), "--upstream"),
        (("--upstream", "http://user:secret@one"), "REPRISE_UPSTREAM_API_KEY"),
        (("--upstream", "http://one", "--model", "x"), "--model"),
        (("--port", "9000", "--engine-port", "9000"), "both 9000"),
        (("--no-such-flag",), "--no-such-flag"),
        (("--start-timeout", "nan"), "--start-timeout"),
    ],
)
def test_a_command_line_that_cannot_be_meant_is_one_line(arguments: tuple[str, ...], words: str) -> None:
    """Bad flags end with exit code 2 and one line that names the flag."""
    done = up(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert words in done.stderr


def test_an_unfit_python_is_one_line(tmp_path: Path) -> None:
    """Without Python 3.11 nothing starts: one line that says what is needed, exit code 1."""
    old = tmp_path / "python-of-old"
    old.write_text("#!/bin/sh\nexit 1\n")
    old.chmod(0o755)
    done = up("--dry-run", REPRISE_PYTHON=str(old))
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert "3.11" in done.stderr


@pytest.mark.parametrize("flag", ["--port", "--engine-port"])
def test_a_port_in_use_is_said_before_anything_is_installed(
    empty_checkout: Checkout, ports: tuple[str, str], flag: str
) -> None:
    """A port that is taken ends the run at once: exit code 1, one line with the flag that helps, nothing made."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        chosen = {"--port": ports[0], "--engine-port": ports[1]} | {flag: port}
        process = empty_checkout.start("--device", "cpu", *(word for pair in chosen.items() for word in pair))
        out, errors = process.communicate(timeout=DEADLINE)
    assert process.returncode == 1
    assert out == ""
    assert len(errors.splitlines()) == 1
    assert port in errors
    assert flag in errors
    assert not empty_checkout.layout.gateway_environment.exists()


def test_no_network_is_one_line_with_the_log(empty_checkout: Checkout, ports: tuple[str, str]) -> None:
    """When no package index answers, the run ends with exit code 1 and says so; a later run starts over."""
    nowhere = {"PIP_INDEX_URL": f"http://127.0.0.1:{ports[1]}/", "PIP_RETRIES": "0", "PIP_CONFIG_FILE": os.devnull}
    process = empty_checkout.start("--upstream", "http://127.0.0.1:1", "--port", ports[0], **nowhere, PIP_FIND_LINKS="")
    _out, errors = process.communicate(timeout=DEADLINE)
    assert process.returncode == 1
    last = errors.splitlines()[-1]
    assert "no package index that has it could be reached" in last
    assert ".reprise/logs/install.log" in last
    assert not (empty_checkout.layout.gateway_environment / "reprise-stamp.json").exists()


def test_a_whole_run_from_start_to_ctrl_c(checkout: Checkout, ports: tuple[str, str]) -> None:
    """Ready is said when both answer, with a curl line; Ctrl-C ends both, and the guard key is nowhere to be read."""
    gateway_port, engine_port = ports
    flags = ("--model", "org/model", "--device", "cpu", "--port", gateway_port, "--engine-port", engine_port)
    process = checkout.start(*flags, REPRISE_GUARD_KEY="")
    said = read_until(process, "Ctrl-C")
    engine, gateway = checkout.note("engine"), checkout.note("serve")

    url = f"http://127.0.0.1:{gateway_port}"
    assert f"Reprise is ready at {url}" in said
    assert f"{url}/metrics" in said
    curl = next(line for line in said.splitlines() if line.startswith("curl"))
    assert json.loads(curl.split("-d '")[1].removesuffix("'"))["model"] == "fake-model"
    assert "x-determinism-mode: isolated" in curl
    assert len(engine["key"]) == 64
    assert engine["key"] == gateway["key"]
    assert engine["argv"][:2] == ["--profile", "deterministic"]

    process.send_signal(signal.SIGINT)
    out, errors = process.communicate(timeout=DEADLINE)
    assert process.returncode == 0
    assert errors == ""
    assert not [pid for pid in (engine["pid"], gateway["pid"]) if is_running(pid)]
    logs = "".join(path.read_text() for path in (checkout.layout.state / "logs").iterdir())
    assert engine["key"] not in said + out + logs


def test_ctrl_c_twice_kills_what_does_not_want_to_end(checkout: Checkout, ports: tuple[str, str]) -> None:
    """A worker that ignores every polite signal and outlives the engine's server is gone when the run has ended."""
    flags = ("--model", "org/model", "--device", "cpu", "--port", ports[0], "--engine-port", ports[1])
    process = checkout.start(*flags, FAKE_ENGINE="leaves-worker")
    read_until(process, "Ctrl-C")
    worker = checkout.note("engine")["worker"]
    assert is_running(worker)
    process.send_signal(signal.SIGINT)
    read_until(process, "Stopping")
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=DEADLINE)
    assert process.returncode == 0
    assert not is_running(worker)


def test_an_engine_that_cannot_start_ends_the_run(checkout: Checkout, ports: tuple[str, str]) -> None:
    """A dead engine: its last words, one line with exit code and log, exit code 1, and never a word of being ready."""
    flags = ("--model", "org/model", "--device", "cpu", "--port", ports[0], "--engine-port", ports[1])
    process = checkout.start(*flags, FAKE_ENGINE="dies")
    out, errors = process.communicate(timeout=DEADLINE)
    assert process.returncode == 1
    assert "ready" not in out
    assert "the fake engine cannot start" in errors
    assert errors.splitlines()[-1] == (
        "deploy/up: the engine ended (exit code 3); everything is stopped (log: .reprise/logs/engine.log)"
    )
    assert not (checkout.notes / "serve.json").exists()


def test_settings_that_the_gateway_refuses_are_said_before_the_engine_starts(
    checkout: Checkout, ports: tuple[str, str]
) -> None:
    """The gateway's own line and one more with the log, exit code 1, and no engine."""
    flags = ("--model", "org/model", "--device", "cpu", "--port", ports[0], "--engine-port", ports[1])
    process = checkout.start(*flags, FAKE_REFUSAL="reprise serve: default_mode: no such mode")
    out, errors = process.communicate(timeout=DEADLINE)
    assert process.returncode == 1
    assert "starting the engine" not in out
    assert errors.splitlines()[-2:] == [
        "    | reprise serve: default_mode: no such mode",
        "deploy/up: the gateway cannot start with these settings (log: .reprise/logs/gateway.log)",
    ]
    assert not (checkout.notes / "engine.json").exists()


@pytest.mark.parametrize("victim", ["engine", "serve"])
def test_a_child_that_dies_later_takes_the_other_with_it(
    checkout: Checkout, ports: tuple[str, str], victim: str
) -> None:
    """After being ready, the death of either program ends the run with exit code 1 and leaves nothing running."""
    flags = ("--model", "org/model", "--device", "cpu", "--port", ports[0], "--engine-port", ports[1])
    process = checkout.start(*flags)
    read_until(process, "Ctrl-C")
    os.kill(checkout.note(victim)["pid"], signal.SIGKILL)
    _out, errors = process.communicate(timeout=DEADLINE)
    assert process.returncode == 1
    assert "signal SIGKILL" in errors.splitlines()[-1]
    assert not [name for name in ("engine", "serve") if is_running(checkout.note(name)["pid"])]


def test_an_engine_that_is_never_ready_is_given_up(checkout: Checkout, ports: tuple[str, str]) -> None:
    """A server that runs but is not ready when the time is up ends the run with exit code 1 and one line."""
    flags = ("--model", "org/model", "--device", "cpu", "--port", ports[0], "--engine-port", ports[1])
    process = checkout.start(*flags, "--start-timeout", "0.1", FAKE_ENGINE="never-ready")
    out, errors = process.communicate(timeout=DEADLINE)
    assert process.returncode == 1
    assert "is ready at" not in out
    assert "the engine was not ready after 0.1 s" in errors.splitlines()[-1]


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (Answer(0, b""), "no answer"),
        (Answer(503, b""), "status 503"),
        (Answer(503, b'{"replicas": [{"replica": "a:1", "problem": "refused"}, {"replica": "b:2", "problem": "401"}]}'),
         "a:1: refused; b:2: 401"),
    ],
)  # fmt: skip
def test_what_keeps_a_server_from_being_ready_is_one_line(answer: Answer, problem: str) -> None:
    """The reason that a server gives becomes part of the one line; no answer is a reason too."""
    assert answer.problem == problem


def test_a_stop_before_ready_is_no_success(checkout: Checkout, ports: tuple[str, str]) -> None:
    """SIGTERM while the engine starts ends everything with 128 + 15."""
    flags = ("--model", "org/model", "--device", "cpu", "--port", ports[0], "--engine-port", ports[1])
    process = checkout.start(*flags, FAKE_ENGINE="never-ready")
    read_until(process, "starting the engine")
    process.send_signal(signal.SIGTERM)
    _out, errors = process.communicate(timeout=DEADLINE)
    assert process.returncode == 128 + signal.SIGTERM
    assert len(errors.splitlines()) == 1
    note = checkout.notes / "engine.json"
    assert not note.exists() or not is_running(checkout.note("engine")["pid"])


def test_existing_servers_get_the_gateway_alone(checkout: Checkout, ports: tuple[str, str]) -> None:
    """With ``--upstream`` only the gateway starts, with the operator's own guard key in its environment."""
    process = checkout.start("--upstream", "http://127.0.0.1:1", "--port", ports[0], REPRISE_GUARD_KEY="operators-key")
    said = read_until(process, "Ctrl-C")
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=DEADLINE)
    assert process.returncode == 0
    assert "engine.log" not in said
    assert checkout.note("serve")["key"] == "operators-key"
    assert not (checkout.notes / "engine.json").exists()


def test_what_cannot_be_isolated_is_not_promised(checkout: Checkout, ports: tuple[str, str]) -> None:
    """Before an engine whose guard refuses the key, the ready message says so, and its curl line is one that works."""
    flags = ("--upstream", "http://127.0.0.1:1", "--port", ports[0])
    process = checkout.start(*flags, FAKE_ISOLATION="unknown: the guard refused the gateway's guard key")
    said = read_until(process, "Ctrl-C")
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=DEADLINE)

    assert "No request can be isolated here: fake:1: the guard refused the gateway's guard key." in said
    assert "x-determinism-mode: standard" in said
    assert "alone on the engine" not in said


def test_one_run_per_checkout(checkout: Checkout, ports: tuple[str, str]) -> None:
    """A second run is refused in one line before it touches the logs of the first, on its ports and on free ones."""
    first = checkout.start("--upstream", "http://127.0.0.1:1", "--port", ports[0])
    read_until(first, "Ctrl-C")
    log = checkout.layout.log("gateway")
    before = log.stat().st_ino

    for port in ports:
        second = checkout.start("--upstream", "http://127.0.0.1:1", "--port", port)
        _, errors = second.communicate(timeout=DEADLINE)

        assert second.returncode == 1
        assert errors == "deploy/up: another ./deploy/up runs in this checkout; stop it, or use a second clone\n"
    assert log.stat().st_ino == before
    first.send_signal(signal.SIGTERM)
    first.communicate(timeout=DEADLINE)
