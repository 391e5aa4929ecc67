"""What to install and what to start, as values made from the options and the layout alone."""

import hashlib
import platform
import sys
from dataclasses import dataclass
from pathlib import Path

from launcher.command import Command
from launcher.layout import BUNDLED_NAME, Layout
from launcher.options import Options

TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
PIP = ("-m", "pip", "install", "--no-input", "--disable-pip-version-check", "--progress-bar", "off")


@dataclass(frozen=True, slots=True)
class Installation:
    """A virtual environment and how it is filled.

    ``digest`` stands for everything that the packages in it depend on; ``project_digest`` for what our own package's
    installation adds. ``covers`` holds the digests of smaller sets that this one includes: an environment that has more
    than is wanted is left alone, one that has less is added to.
    """

    name: str
    directory: Path
    packages: tuple[Command, ...]
    project: Command
    digest: str
    project_digest: str
    covers: frozenset[str] = frozenset()


def gateway(layout: Layout, *, development: bool) -> Installation:
    """The gateway's environment, from the lock file with hashes; ``development`` adds what the tests need.

    With what `reprise lab` computes and draws with, which the image does without.
    """
    runtime, complete = layout.root / "requirements-lab.lock", layout.root / "requirements-dev.lock"
    lock = complete if development else runtime
    python = layout.gateway_environment / "bin" / "python"
    digests = {path: _digest(layout, [path]) for path in (runtime, complete)}
    return Installation(
        name="gateway",
        directory=layout.gateway_environment,
        packages=(_locked("installing the gateway's packages", python, lock),),
        project=_project(layout, python),
        digest=digests[lock],
        project_digest=_digest(layout, [layout.root / "pyproject.toml"]),
        covers=frozenset({digests[runtime]}) if development else frozenset(),
    )


def engine(layout: Layout, device: str) -> Installation:
    """The engine's environment: the CPU build of vLLM or, for ``cuda``, the ordinary one."""
    pins = layout.root / "deploy" / "engine"
    python = layout.engine_environment / "bin" / "python"
    if device == "cuda":
        files = [pins / "requirements-cuda.txt"]
        packages: tuple[Command, ...] = (
            Command(
                "installing the engine (vLLM for CUDA: several GB)",
                (str(python), *PIP, "-r", str(files[0])),
            ),
        )
    else:
        files = [pins / "torch-cpu.txt", pins / "requirements-cpu.txt"]
        torch = (str(python), *PIP, "--no-deps", "-r", str(files[0]))
        label = "installing torch for the engine (1 of 2)"
        packages = (
            Command(label, torch, fallback=Command(label, (*torch, "--extra-index-url", TORCH_CPU_INDEX))),
            _locked("installing the engine (2 of 2; vLLM's CPU build takes a minute or two)", python, files[1]),
        )
    return Installation(
        name="engine",
        directory=layout.engine_environment,
        packages=packages,
        project=_project(layout, python),
        digest=_digest(layout, files),
        project_digest=_digest(layout, [layout.root / "pyproject.toml"]),
    )


def creation(installation: Installation, *, clear: bool) -> Command:
    """The command that makes the environment; with ``clear`` an empty one, whatever was there."""
    flags = ("--clear",) if clear else ()
    label = f"making {installation.directory.name}"
    return Command(label, (sys.executable, "-m", "venv", *flags, str(installation.directory)))


def model(layout: Layout) -> Command:
    """The command that makes the bundled model's folder."""
    python = layout.engine_environment / "bin" / "python"
    argv = (str(python), "-m", "app.engine.demo_model", str(layout.bundled_model))
    return Command(f"preparing the bundled model, {layout.bundled_model.name}", argv)


def engine_start(layout: Layout, options: Options, device: str, guard_key: str) -> Command:
    """The command that serves the model, the guard loaded."""
    reprise = str(layout.engine_environment / "bin" / "reprise")
    model_flags = ("--model", options.model) if options.model else bundled_model_flags(layout)
    argv = (reprise, "engine", "--profile", options.profile, "--target", device, *model_flags)
    argv += ("--port", str(options.engine_port))
    return Command(f"starting the engine, profile {options.profile}", argv, secrets={"REPRISE_GUARD_KEY": guard_key})


def bundled_model_flags(layout: Layout) -> tuple[str, ...]:
    """The bundled model, under the short name that callers use."""
    return ("--model", str(layout.bundled_model), "--served-model-name", BUNDLED_NAME)


def gateway_start(layout: Layout, options: Options, guard_key: str | None) -> Command:
    """The command that serves the gateway. ``guard_key`` None leaves the environment's, if there is one."""
    secrets = {} if guard_key is None else {"REPRISE_GUARD_KEY": guard_key}
    return Command("starting the gateway", _serve(layout, options), secrets=secrets)


def gateway_check(layout: Layout, options: Options) -> Command:
    """The command that looks at the gateway's settings, and starts nothing."""
    return Command("checking the gateway's settings", (*_serve(layout, options), "--check"))


def _serve(layout: Layout, options: Options) -> tuple[str, ...]:
    upstreams = options.upstreams or (f"http://127.0.0.1:{options.engine_port}",)
    return (
        str(layout.gateway_environment / "bin" / "reprise"),
        "serve",
        "--host",
        options.host,
        "--port",
        str(options.port),
        *(part for url in upstreams for part in ("--upstream", url)),
    )


def _locked(label: str, python: Path, lock: Path) -> Command:
    return Command(label, (str(python), *PIP, "--no-deps", "--require-hashes", "-r", str(lock)))


def _project(layout: Layout, python: Path) -> Command:
    argv = (str(python), *PIP, "--no-deps", "--no-build-isolation", "--editable", str(layout.root))
    return Command("installing Reprise itself", argv)


def _digest(layout: Layout, files: list[Path]) -> str:
    """SHA-256 over the files and over what else decides whether an environment still fits: Python, machine, place."""
    hasher = hashlib.sha256()
    for part in (sys.version, sys.base_prefix, platform.machine(), str(layout.root)):
        hasher.update(part.encode() + b"\0")
    for path in files:
        hasher.update(path.read_bytes() + b"\0")
    return hasher.hexdigest()
