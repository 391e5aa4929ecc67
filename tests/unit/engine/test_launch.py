"""The launch command: complete, printable without secrets, and the operator's where the profile does not care."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from app.engine import launch
from app.engine.launch import LaunchCommand, LaunchError, command, parse_capabilities, physical_cores
from app.engine.profile import DETERMINISTIC, THROUGHPUT, EngineProfile, Target


def cpu_command(
    *, profile: EngineProfile = DETERMINISTIC, environ: dict[str, str] | None = None, extra: tuple[str, ...] = ()
) -> LaunchCommand:
    """A command for a CPU."""
    return command(
        profile,
        target=Target.CPU,
        model="some/model",
        port=8002,
        served_model_name="m",
        extra=extra,
        python="python3",
        environ=environ or {},
    )


def test_the_command_is_complete() -> None:
    """Interpreter, entry point, model, address, name, the profile's arguments, and the operator's last."""
    argv = cpu_command(extra=("--max-model-len", "4096")).argv
    assert argv[:3] == ("python3", "-m", "vllm.entrypoints.openai.api_server")
    assert argv[3:11] == (
        *("--model", "some/model", "--host", "127.0.0.1", "--port", "8002"),
        *("--served-model-name", "m"),
    )
    assert argv[11:-2] == DETERMINISTIC.render(Target.CPU).argv
    assert argv[-2:] == ("--max-model-len", "4096")


def test_the_profile_pins_and_the_operator_chooses_the_rest() -> None:
    """An operator's KV-cache size stays, his KV split does not: it belongs to the profile that he chose."""
    environ = {"VLLM_CPU_KVCACHE_SPACE": "40", "VLLM_CPU_ATTN_SPLIT_KV": "1", "VLLM_CPU_OMP_THREADS_BIND": "4-7"}
    env = cpu_command(environ=environ).env
    assert "VLLM_CPU_KVCACHE_SPACE" not in env
    assert "VLLM_CPU_OMP_THREADS_BIND" not in env
    assert env["VLLM_CPU_ATTN_SPLIT_KV"] == "0"
    assert env["REPRISE_TORCH_DETERMINISTIC"] == "on"
    assert "REPRISE_TORCH_DETERMINISTIC" not in cpu_command(environ={"REPRISE_TORCH_DETERMINISTIC": "warn_only"}).env
    assert cpu_command(profile=THROUGHPUT, environ=environ).env.get("VLLM_CPU_ATTN_SPLIT_KV") is None


@pytest.mark.parametrize("profile", [THROUGHPUT, DETERMINISTIC])
def test_the_thread_binding_is_written_out(profile: EngineProfile) -> None:
    """Both profiles name the CPUs, so that two replicas' thread counts can be compared by their commands."""
    bound = cpu_command(profile=profile).env["VLLM_CPU_OMP_THREADS_BIND"].split(",")
    assert {int(cpu) for cpu in bound} <= os.sched_getaffinity(0)


@pytest.mark.parametrize("extra", [("--tensor-parallel-size", "2"), ("--tensor-parallel-size=2",), ("-tp", "2")])
def test_a_binding_for_one_worker_is_not_given_to_several(extra: tuple[str, ...]) -> None:
    """VLLM takes one list for each worker and refuses another number of them."""
    assert "VLLM_CPU_OMP_THREADS_BIND" not in cpu_command(extra=extra).env


def test_a_local_folder_needs_no_hub(tmp_path: Path) -> None:
    """HF_HUB_OFFLINE for a folder, not for a name that must be fetched."""
    local = command(THROUGHPUT, target=Target.CPU, model=str(tmp_path), environ={})
    assert local.env["HF_HUB_OFFLINE"] == "1"
    assert "HF_HUB_OFFLINE" not in cpu_command().env


def test_the_printed_line_runs_and_holds_no_secret() -> None:
    """A shell takes it apart into the same words; keys appear as the variables that hold them."""
    environ = {"REPRISE_GUARD_KEY": "tops3cret", "VLLM_API_KEY": "sk-s3cret"}
    made = cpu_command(environ=environ, extra=("--override-generation-config", '{"top_p": 1}'))
    line = made.shell()
    assert "s3cret" not in line
    assert line.startswith('REPRISE_GUARD_KEY="$REPRISE_GUARD_KEY" VLLM_API_KEY="$VLLM_API_KEY" ')
    words = shlex.split(line)
    assert tuple(words[-len(made.argv) :]) == made.argv
    assert [word.partition("=")[0] for word in words[2 : -len(made.argv)]] == sorted(made.env)
    assert "REPRISE_GUARD_KEY" not in cpu_command().shell()


def test_it_becomes_the_engine() -> None:
    """run() replaces the process: same process id, environment added, exit status the engine's."""
    made = LaunchCommand(
        env={"ADDED": "yes"}, argv=(sys.executable, "-c", "import os; print(os.getpid(), os.environ['ADDED'])")
    )
    script = f"from app.engine.launch import LaunchCommand as C; C({dict(made.env)!r}, {made.argv!r}).run()"
    root = Path(launch.__file__).parents[2]
    process = subprocess.Popen([sys.executable, "-c", script], cwd=root, stdout=subprocess.PIPE, text=True)
    output, _ = process.communicate(timeout=30)
    assert (process.returncode, output.split()) == (0, [str(process.pid), "yes"])


def test_an_interpreter_that_is_not_there_is_one_line() -> None:
    """The error names it."""
    with pytest.raises(LaunchError, match=r"^cannot execute /no/such/python: No such file or directory$"):
        LaunchCommand(env={}, argv=("/no/such/python",)).run()


@pytest.mark.parametrize(
    ("text", "expected"),
    [("9.0\n", (9, 0)), ("9.0\n8.6\n", (8, 6)), ("10.0\n9.0\n", (9, 0)), ("", None), ("No devices were found\n", None)],
)
def test_the_least_capable_gpu_decides(text: str, expected: tuple[int, int] | None) -> None:
    """Several GPUs run one engine."""
    assert parse_capabilities(text) == expected


@pytest.mark.parametrize(
    ("script", "target", "invariant"),
    [
        ("echo 9.0", Target.CUDA, "1"),
        ("echo 7.0", Target.CUDA, None),
        ("exit 9", Target.CPU, None),
        (None, Target.CPU, None),
    ],
)
def test_the_target_is_what_nvidia_smi_finds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str | None, target: Target, invariant: str | None
) -> None:
    """No tool or no GPU is a CPU; the capability that it tells reaches the profile."""
    if script is not None:
        smi = tmp_path / "nvidia-smi"
        smi.write_text(f"#!/bin/sh\n{script}\n")
        smi.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert launch.detect_target() is target
    made = command(DETERMINISTIC, target=target, model="m", environ={})
    assert made.env.get("VLLM_BATCH_INVARIANT") == invariant


@pytest.mark.parametrize(
    ("allowed", "siblings", "expected"),
    [
        ({0, 1, 2, 3}, {0: "0,2", 1: "1,3", 2: "0,2", 3: "1,3"}, [0, 1]),
        ({2, 3}, {0: "0,2", 1: "1,3", 2: "0,2", 3: "1,3"}, [2, 3]),
        ({5, 4}, {}, [4, 5]),
    ],
)
def test_one_cpu_for_each_core(allowed: set[int], siblings: dict[int, str], expected: list[int]) -> None:
    """Two threads of one core would only wait for each other; without topology every CPU is a core."""
    assert physical_cores(allowed, siblings) == expected


@pytest.mark.parametrize(("cpus", "expected"), [({0}, "0"), ({0, 1}, "0,1"), ({0, 1, 2, 3}, "0,1,2")])
def test_one_core_is_left_to_the_server_where_there_are_enough(
    monkeypatch: pytest.MonkeyPatch, cpus: set[int], expected: str
) -> None:
    """Of one or two none can be spared; an operator's own binding is taken as it is."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: cpus)
    monkeypatch.setattr(launch, "_sibling_lists", dict)
    assert launch.binding({}) == expected
    assert launch.binding({"VLLM_CPU_OMP_THREADS_BIND": "0-3"}) == "0-3"
