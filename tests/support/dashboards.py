"""The checked-in dashboards and rules as tests read them, and a Prometheus on loopback for as long as a test."""

import json
import re
import socket
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import httpx
import yaml

ROOT = Path(__file__).resolve().parents[2]
DASHBOARDS = ROOT / "deploy" / "grafana" / "dashboards"
PROMETHEUS = ROOT / "deploy" / "prometheus"
RULES = sorted((PROMETHEUS / "rules").glob("*.yml"))

# What Grafana puts in place of its variables before a query leaves for Prometheus.
_VARIABLES = {
    "$__rate_interval": "1m",
    "$__interval": "1m",
    "$__range": "1h",
    "$window": "1h",
    "$model": ".*",
    "$mode": ".*",
    "$origin": ".*",
}


@dataclass(frozen=True, slots=True)
class Asked:
    """One query of a dashboard, or one expression of a rule, and where it stands. Ready for Prometheus."""

    place: str
    expression: str


def boards() -> dict[str, dict[str, Any]]:
    """The dashboards by the name of their file."""
    return {path.name: json.loads(path.read_text()) for path in sorted(DASHBOARDS.glob("*.json"))}


def panels() -> Iterator[tuple[str, dict[str, Any]]]:
    """Every panel that is not a row, with its dashboard and title."""
    for name, board in boards().items():
        yield from ((f"{name}: {panel['title']}", panel) for panel in board["panels"] if panel["type"] != "row")


def queries() -> list[Asked]:
    """Every query of every panel, and of every annotation."""
    asked = [
        Asked(f"{place} ({target['refId']})", interpolated(target["expr"]))
        for place, panel in panels()
        for target in panel["targets"]
    ]
    asked += [
        Asked(f"{name}: annotation {annotation['name']}", interpolated(annotation["expr"]))
        for name, board in boards().items()
        for annotation in board["annotations"]["list"]
    ]
    return asked


def rules() -> list[dict[str, Any]]:
    """Every rule of every file."""
    return [rule for path in RULES for group in yaml.safe_load(path.read_text())["groups"] for rule in group["rules"]]


def rule_expressions() -> list[Asked]:
    """The expression of every rule."""
    return [Asked(rule.get("record") or rule["alert"], rule["expr"]) for rule in rules()]


def interpolated(expression: str) -> str:
    """A query as Grafana sends it. Raises AssertionError for a variable that no dashboard has."""
    for variable, value in _VARIABLES.items():
        expression = re.sub(re.escape(variable) + r"(?!\w)", value, expression)
    assert "$" not in expression, expression
    return expression


@dataclass(frozen=True, slots=True)
class RunningPrometheus:
    """A server that scrapes; ``get`` asks its HTTP API and returns the answer's JSON, whatever its status."""

    client: httpx.AsyncClient

    async def get(self, path: str, **parameters: str) -> dict[str, Any]:
        """One question. Raises AssertionError if the answer is no JSON object."""
        answer = (await self.client.get(f"/api/v1/{path}", params=parameters)).json()
        assert isinstance(answer, dict)
        return answer

    async def samples(self, expression: str) -> list[dict[str, Any]]:
        """The vector that an expression gives now. Raises AssertionError where Prometheus reports an error."""
        answer = await self.get("query", query=expression)
        assert answer["status"] == "success", answer
        vector: list[dict[str, Any]] = answer["data"]["result"]
        return vector

    async def until(self, expression: str, seconds: float = 60) -> list[dict[str, Any]]:
        """Wait until an expression gives something. Raises TimeoutError."""
        with anyio.fail_after(seconds):
            while not (found := await self.samples(expression)):  # noqa: ASYNC110 - it can only be asked again
                await anyio.sleep(0.1)
        return found


@asynccontextmanager
async def running_prometheus(program: Path, folder: Path, config: dict[str, Any]) -> AsyncIterator[RunningPrometheus]:
    """Run Prometheus with its data in ``folder``; ready to be asked when the block begins."""
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    argv = [str(program), f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}"]
    argv += [f"--web.listen-address=127.0.0.1:{port}", "--enable-feature=exemplar-storage", "--log.level=warn"]
    log = folder / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(argv, stdout=output, stderr=subprocess.STDOUT)  # noqa: ASYNC220 - it is only started
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=30) as client:
            with anyio.fail_after(60):
                while not await _ready(client):
                    assert process.poll() is None, log.read_text()
                    await anyio.sleep(0.1)
            yield RunningPrometheus(client)
    finally:
        process.terminate()
        process.wait(30)


async def _ready(client: httpx.AsyncClient) -> bool:
    try:
        return (await client.get("/-/ready")).status_code == httpx.codes.OK
    except httpx.TransportError:
        return False
