"""Gateways that share a Redis: repeats are one cohort wherever they were answered; a wrong setting ends the start."""

import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from app.main import create_app
from app.settings import Settings
from tests.support.redis_server import RedisServer, free_port, redis_server
from tests.support.running import RunningGateway, running_gateway
from tests.support.scripted import ScriptedVllm

pytestmark = pytest.mark.anyio

ASK = {"model": "m", "temperature": 0}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    """A Redis for one test."""
    folder = tmp_path / "redis"
    folder.mkdir()
    with redis_server(folder, port=free_port()) as running:
        yield running


async def cohorts(gateway: RunningGateway) -> float:
    """How many cohorts the ledger of a gateway held when it was last measured."""
    return await gateway.metric("reprise_ledger_cohorts")


async def written(gateway: RunningGateway, count: int) -> None:
    """Wait until a gateway has written so many observations."""
    while await gateway.metric("reprise_ledger_written_total") < count:
        pass


async def test_two_gateways_share_cohorts(server: RedisServer, upstream: ScriptedVllm, tmp_path: Path) -> None:
    """With one installation key: the second knows the first one's reference, and both have one ledger."""
    shared: dict[str, Any] = {"ledger": True, "ledger_url": server.url}
    async with running_gateway(tmp_path / "a", upstream.url, **shared) as first:
        key_file = tmp_path / "a" / "installation.key"
        async with running_gateway(tmp_path / "b", upstream.url, installation_key_file=key_file, **shared) as second:
            await first.post({**ASK, "x_script": {"text": "one"}, "seed": 1})
            await written(first, 1)
            await second.post({**ASK, "x_script": {"text": "one"}, "seed": 1})
            await written(second, 1)
            matched = 'reprise_comparisons_total{mode="standard",model="m",origin="client",verdict="match"}'
            assert await second.metric(matched) == 1
            assert (await second.get("/readyz")).json()["ledger"] == {"kind": "redis", "problem": None, "queued": 0}
    with server.admin() as admin:
        assert len(admin.keys("reprise:*:cohort:*")) == 1


async def test_gateways_with_keys_of_their_own_share_nothing(
    server: RedisServer, upstream: ScriptedVllm, tmp_path: Path
) -> None:
    """Their cohort keys differ, and so do the names of their keys in Redis."""
    for name in "ab":
        async with running_gateway(tmp_path / name, upstream.url, ledger=True, ledger_url=server.url) as gateway:
            await gateway.post(ASK)
            await written(gateway, 1)
            assert await cohorts(gateway) <= 1
    with server.admin() as admin:
        names = [str(name).split(":")[1] for name in admin.keys("reprise:*:cohort:*")]
    assert len(set(names)) == 2


async def test_a_redis_that_comes_late_is_used(
    server: RedisServer, upstream: ScriptedVllm, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Until then the ledger is away and what is missing is counted; then it is there, without a restart."""
    server.kill()
    url = server.url.replace("redis://", "redis://:hunter2@")
    async with running_gateway(tmp_path, upstream.url, ledger=True, ledger_url=url) as gateway:
        with caplog.at_level(logging.WARNING):
            while (await gateway.get("/readyz")).json()["ledger"]["problem"] is None:
                pass  # it is known before anything was asked
            await gateway.post(ASK)
            dropped = 0.0
            while not dropped:
                dropped = await gateway.metric('reprise_ledger_dropped_total{reason="store_unavailable"}')
        server.options = ("--requirepass", "hunter2")
        server.start()
        while await gateway.metric("reprise_ledger_up") == 0:
            await gateway.post(ASK)
        assert dropped == 1
        assert (await gateway.get("/readyz")).json()["ledger"]["problem"] is None
    assert "tried again" in caplog.text
    assert "hunter2" not in caplog.text


def test_a_url_that_is_none_ends_the_start(tmp_path: Path) -> None:
    """With a line that names the setting and not the URL, and the state directory is free again."""
    settings = Settings(state_dir=tmp_path, ledger_url=SecretStr("redis://:hunter2@x:y"))
    for _ in range(2):
        with pytest.raises(OSError, match="REPRISE_LEDGER_URL: it must be redis://") as caught:
            create_app(settings)
        assert "hunter2" not in str(caught.value)
    assert "hunter2" not in repr(settings)


def test_a_missing_client_ends_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who did not install the extra is told its name; without the URL nobody needs it."""
    monkeypatch.setitem(sys.modules, "redis", None)
    monkeypatch.delitem(sys.modules, "app.observation.redis", raising=False)
    with pytest.raises(OSError, match=r"pip install 'reprise-gateway\[redis\]'"):
        create_app(Settings(state_dir=tmp_path, ledger_url=SecretStr("redis://localhost")))
    create_app(Settings(state_dir=tmp_path))
