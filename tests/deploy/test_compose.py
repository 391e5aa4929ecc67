"""The files for containers: no Docker engine runs in the tests, so the facts that matter are asserted on the text."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from launcher import recipe
from launcher.layout import Layout
from launcher.options import parse
from tests.deploy.conftest import ROOT

COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
ENGINES = {name: service for name, service in SERVICES.items() if name.startswith("engine-")}
OURS = {name: service for name, service in SERVICES.items() if "build" in service}
DOCKERFILE = (ROOT / "Dockerfile").read_text()


def entrypoint(stage: str) -> list[str]:
    """The entrypoint of a stage of the Dockerfile."""
    body = re.search(rf"^FROM \S+ AS {stage}\n(.*?)(?=^FROM |\Z)", DOCKERFILE, re.MULTILINE | re.DOTALL)
    assert body is not None
    words = re.search(r"^ENTRYPOINT (\[.*\])$", body[1], re.MULTILINE)
    assert words is not None
    content: list[str] = yaml.safe_load(words[1])
    return content


def flags(argv: list[str]) -> dict[str, str]:
    """A command's flags by name."""
    return dict(zip(argv[::2], argv[1::2], strict=True))


def test_the_compose_file_fits_its_schema() -> None:
    """The compose specification's own schema accepts the file."""
    check = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", "docker-compose.yml"]
    done = subprocess.run(check, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_line_to_paste_sets_every_key() -> None:
    """Those without which compose refuses, and the observatory's, without which the page is shown to nobody there."""
    file = (ROOT / "docker-compose.yml").read_text()
    required = set(re.findall(r"\$\{(\w+):\?", file)) | {"REPRISE_OBSERVATORY_KEY"}
    pasted = re.search(r"^#   export (.*?[^\\])\n", file, re.MULTILINE | re.DOTALL)
    assert pasted is not None
    assert required == set(re.findall(r"(\w+)=", pasted[1]))


@pytest.mark.parametrize("name", ENGINES)
def test_an_engine_starts_as_deploy_up_starts_it(name: str) -> None:
    """The engine's container runs the command of ``deploy/up``, which is the one that tests exercise."""
    profile = name.removeprefix("engine-")
    options = parse(["--profile", profile, "--model", "MODEL", "--device", "cuda"])
    ours = list(recipe.engine_start(Layout(ROOT), options, "cuda", "key").argv)
    assert entrypoint("engine") == ["reprise", ours[1]]
    contained, bare = flags(ENGINES[name]["command"]), flags(ours[2:])
    # The container listens for its neighbours, finds its GPU itself, and takes the model from the operator.
    assert contained.pop("--host") == "0.0.0.0"  # noqa: S104 - inside the compose network
    assert contained.pop("--model").startswith("${MODEL:-")
    assert (bare.pop("--model"), bare.pop("--target")) == ("MODEL", "cuda")
    assert contained == bare
    assert ENGINES[name]["profiles"] == [profile]


def test_the_gateway_starts_as_deploy_up_starts_it() -> None:
    """The gateway's container runs the command of ``deploy/up``; upstreams come from its environment."""
    ours = list(recipe.gateway_start(Layout(ROOT), parse(["--host", "0.0.0.0"]), "key").argv)  # noqa: S104 - named, not bound
    assert entrypoint("gateway") == ["reprise", ours[1]]
    upstream = ours.index("--upstream")
    assert SERVICES["gateway"]["command"] == ours[2:upstream]
    default = SERVICES["gateway"]["environment"]["REPRISE_UPSTREAMS"]
    assert default == "${REPRISE_UPSTREAMS:-http://engine-deterministic:8001}"


def test_nothing_starts_without_a_guard_key() -> None:
    """Gateway and engines refuse to start when no guard key is set: an empty one would open exclusive admission."""
    for name, service in OURS.items():
        assert service["environment"]["REPRISE_GUARD_KEY"].startswith("${REPRISE_GUARD_KEY:?"), name


def test_both_profiles_have_an_engine_on_an_nvidia_gpu() -> None:
    """There is an engine for each profile, each with a GPU of its own."""
    assert set(ENGINES) == {"engine-deterministic", "engine-throughput"}
    for service in ENGINES.values():
        devices = service["deploy"]["resources"]["reservations"]["devices"]
        assert devices == [{"driver": "nvidia", "count": 1, "capabilities": ["gpu"]}]


def test_containers_hold_no_more_rights_than_they_need() -> None:
    """No container of ours runs as root, gains rights, or listens beyond this machine."""
    for name, service in SERVICES.items():
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", [])), name
    assert SERVICES["gateway"]["read_only"] is True
    for stage in ("engine", "gateway"):
        users = re.findall(r"^USER (\S+)$", DOCKERFILE.split(f" AS {stage}\n")[1].split("\nFROM ")[0], re.MULTILINE)
        assert users, stage
        assert users[-1].split(":")[0] not in {"0", "root"}, stage


def test_the_image_installs_what_the_lock_file_holds() -> None:
    """The gateway's packages come from the lock file with hashes; the engine's pins are left as vLLM made them."""
    assert "--no-deps --require-hashes -r requirements.lock" in DOCKERFILE
    assert "uv pip install --system --no-cache --no-deps --no-index" in DOCKERFILE
    pins = (ROOT / "deploy" / "engine" / "requirements-cuda.txt").read_text()
    version = re.search(r"^vllm==(\S+)$", pins, re.MULTILINE)
    assert version is not None
    assert f"FROM vllm/vllm-openai:v{version[1]} AS engine" in DOCKERFILE


def test_prometheus_scrapes_every_service_of_ours() -> None:
    """Each of our services is a target, at the port on which it serves ``/metrics``."""
    config = yaml.safe_load((ROOT / "deploy" / "prometheus" / "prometheus.yml").read_text())
    targets = {
        target for job in config["scrape_configs"] for group in job["static_configs"] for target in group["targets"]
    }
    assert targets == {f"{name}:{8000 if name == 'gateway' else 8001}" for name in OURS}


@pytest.mark.parametrize("script", ["deploy/up", "deploy/test", "deploy/python.sh", ".ci/run"])
def test_shell_scripts_are_sound(script: str) -> None:
    """Shellcheck has nothing to say."""
    shellcheck = Path(sys.executable).parent / "shellcheck"
    done = subprocess.run([shellcheck, "-x", script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
