"""The command that launches an engine: a profile, made concrete for one machine, one model and one port.

Standard library only: it also runs where our wheel was installed with ``--no-deps``, inside vLLM's own image.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final, NoReturn

from app.engine.profile import EngineProfile, Target

SECRETS: Final = ("REPRISE_GUARD_KEY", "VLLM_API_KEY")
"""Variables that the engine inherits, and of which a printed command shows the name only."""

THREADS_BIND: Final = "VLLM_CPU_OMP_THREADS_BIND"

_ENTRY_POINT: Final = ("-m", "vllm.entrypoints.openai.api_server")
_CPU_TOPOLOGY: Final = Path("/sys/devices/system/cpu")
_QUERY_DEADLINE: Final = 10.0


class LaunchError(Exception):
    """The engine cannot be launched; the message is one line for people."""


@dataclass(frozen=True, slots=True)
class LaunchCommand:
    """What to execute: ``env`` holds only what is added to the environment, ``argv`` starts with the interpreter."""

    env: Mapping[str, str]
    argv: tuple[str, ...]
    secrets: tuple[str, ...] = ()

    def shell(self) -> str:
        """One line for a POSIX shell. Secrets appear as references to the variables that hold them."""
        assignments = [f'{name}="${name}"' for name in self.secrets]
        assignments += [f"{name}={shlex.quote(value)}" for name, value in self.env.items()]
        return " ".join([*assignments, shlex.join(self.argv)])

    def run(self) -> NoReturn:
        """Become the engine: replaces this process. Raises LaunchError if the interpreter cannot be executed."""
        try:
            os.execvpe(self.argv[0], self.argv, {**os.environ, **self.env})  # noqa: S606 - no shell is the point
        except OSError as exc:
            raise LaunchError(f"cannot execute {self.argv[0]}: {exc.strerror}") from exc


def command(  # noqa: PLR0913 - one keyword for each thing that a launch needs; no group of them has a name of its own
    profile: EngineProfile,
    *,
    target: Target,
    model: str,
    host: str = "127.0.0.1",
    port: int = 8001,
    served_model_name: str | None = None,
    extra: Sequence[str] = (),
    python: str = sys.executable,
    environ: Mapping[str, str] = os.environ,
) -> LaunchCommand:
    """The command for ``profile`` on ``target``.

    ``extra`` follows the profile's own arguments, so that it wins where vLLM takes the last one. Of ``environ`` the
    profile's pins are never taken over, its defaults are.
    """
    rendering = profile.render(target, cuda_capability() if target is Target.CUDA else None)
    defaults = dict(rendering.defaults)
    if target is Target.CPU and not _is_parallel(extra):
        defaults[THREADS_BIND] = binding(environ)
    if Path(model).is_dir():
        defaults["HF_HUB_OFFLINE"] = "1"
    env = {name: value for name, value in defaults.items() if name not in environ} | dict(rendering.environment)
    argv = (python, *_ENTRY_POINT, "--model", model, "--host", host, "--port", str(port))
    name = ("--served-model-name", served_model_name) if served_model_name else ()
    return LaunchCommand(
        env=MappingProxyType(dict(sorted(env.items()))),
        argv=(*argv, *name, *rendering.argv, *extra),
        secrets=tuple(secret for secret in SECRETS if environ.get(secret)),
    )


def detect_target() -> Target:
    """CUDA if nvidia-smi is there and lists a GPU, else CPU."""
    return Target.CUDA if cuda_capability() is not None else Target.CPU


def cuda_capability() -> tuple[int, int] | None:
    """The least compute capability of this machine's NVIDIA GPUs; None if there are none or they cannot be asked."""
    smi = shutil.which("nvidia-smi")
    if smi is None:
        return None
    query = [smi, "--query-gpu=compute_cap", "--format=csv,noheader"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, check=True, timeout=_QUERY_DEADLINE)  # noqa: S603 - a fixed query to the nvidia-smi of PATH, without a shell
    except (OSError, subprocess.SubprocessError):
        return None
    return parse_capabilities(answer.stdout)


def parse_capabilities(text: str) -> tuple[int, int] | None:
    """The least "major.minor" among the lines of ``text``; None if there is none."""
    found = [(int(major), int(minor)) for major, minor in re.findall(r"^\s*(\d+)\.(\d+)\s*$", text, re.MULTILINE)]
    return min(found, default=None)


def binding(environ: Mapping[str, str] = os.environ) -> str:
    """The CPUs for the engine's OpenMP threads, as ``VLLM_CPU_OMP_THREADS_BIND`` takes them: "0,1".

    The operator's value if there is one. Else one CPU of each physical core that this process may use, without the last
    where there are more than two, which is left to the API server and the scheduler. vLLM's "auto" means the same, but
    says it only in a log; written out, the thread count is part of the command.
    """
    if environ.get(THREADS_BIND):
        return environ[THREADS_BIND]
    cpus = physical_cores(os.sched_getaffinity(0), _sibling_lists())
    usable = cpus[:-1] if len(cpus) > 2 else cpus  # noqa: PLR2004 - see the docstring
    return ",".join(str(cpu) for cpu in usable)


def physical_cores(allowed: Collection[int], siblings: Mapping[int, str]) -> list[int]:
    """The lowest allowed CPU of each physical core; ``siblings`` holds the kernel's name of the core of each CPU."""
    first_of_core: dict[str, int] = {}
    for cpu in sorted(allowed):
        first_of_core.setdefault(siblings.get(cpu, str(cpu)), cpu)
    return list(first_of_core.values())


def _sibling_lists() -> dict[int, str]:
    lists = {}
    for path in _CPU_TOPOLOGY.glob("cpu[0-9]*/topology/thread_siblings_list"):
        lists[int(path.parts[-3].removeprefix("cpu"))] = path.read_text(encoding="ascii").strip()
    return lists


def _is_parallel(extra: Sequence[str]) -> bool:
    # vLLM wants one list of CPUs for each worker; only it knows the machine's memory nodes.
    return any(re.match(r"--(tensor|pipeline|data)-parallel-size|-(tp|pp|dp)\b", argument) for argument in extra)
