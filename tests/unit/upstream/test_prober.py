"""What a probe sees, and when a replica is taken out."""

from typing import Any

import httpx
import pytest

from app.determinism.mode import Mitigation
from app.errors import DeterminismUnavailable
from app.upstream.prober import Prober
from app.upstream.replica import UNKNOWN_POSTURE, GateView, Replica

pytestmark = pytest.mark.anyio

REPLICA = Replica.at("http://127.0.0.1:1")
MODELS = {"data": [{"id": "m", "root": "org/m", "x": 1}]}
RUNNING = 'vllm:num_requests_running{engine="0"} 2.0\nvllm:num_requests_waiting{engine="0"} 1.0\n'


def prober(**pages: tuple[int, Any] | Exception) -> Prober:
    """A prober of a replica with these pages; names are paths, with _ for /."""

    def answer(request: httpx.Request) -> httpx.Response:
        page = pages.get(request.url.path.strip("/").replace("/", "_"), (404, {}))
        if isinstance(page, Exception):
            raise page
        status, content = page
        return (
            httpx.Response(status, text=content) if isinstance(content, str) else httpx.Response(status, json=content)
        )

    transport = httpx.MockTransport(answer)
    return Prober(timeout=1, guard_key="k", api_key=None, transport=transport)


STOCK: dict[str, Any] = {
    "health": (200, ""),
    "version": (200, {"version": "0.32.0"}),
    "v1_models": (200, MODELS),
    "metrics": (200, RUNNING),
}


async def test_a_stock_engine() -> None:
    """Version and models are known, the gateway's gate can isolate, and what launch flags decide stays unknown."""
    status = await prober(**STOCK).observe(REPLICA)

    assert (status.healthy, status.guarded, status.version) == (True, False, "0.32.0")
    assert status.models == tuple(MODELS["data"])
    assert status.served == {"m"}
    assert status.provides(Mitigation.BATCH_ISOLATION).held is True
    assert status.provides(Mitigation.EAGER).held is None
    assert status.digest.startswith("p-")


async def test_without_metrics_there_is_no_isolation() -> None:
    """An upstream that does not count its requests cannot prove that it is empty."""
    status = await prober(**STOCK | {"metrics": (404, "")}).observe(REPLICA)
    assert status.provides(Mitigation.BATCH_ISOLATION).held is False


async def test_a_guarded_engine() -> None:
    """Posture, digest and provisions are the guard's word."""
    provides = {"eager": {"held": True, "reason": ""}, "from_the_future": {"held": True, "reason": ""}}
    gate = {"waiting_exclusive": 3, "expected_wait_exclusive": 1.5, "from_the_future": 1}
    page = {"posture": {"dtype": "bfloat16"}, "digest": "p-abc", "provides": provides, "gate": gate}
    status = await prober(**STOCK, reprise_posture=(200, page)).observe(REPLICA)

    assert (status.guarded, status.digest, status.posture.dtype) == (True, "p-abc", "bfloat16")
    assert status.provides(Mitigation.EAGER).held is True
    assert status.gate == GateView(waiting_exclusive=3, expected_wait_exclusive=1.5)


@pytest.mark.parametrize(
    "model", [{"eos": "x"}, {"length": True}, {"stops": 5}, {"defaults": {"temperature": "hot"}}, [], "m", None, {}]
)
async def test_an_odd_fact_of_the_model_is_unknown(model: Any) -> None:
    """Nothing can be verified there then; every other mode goes on."""
    provides = {"eager": {"held": True, "reason": ""}}
    page = {"posture": {}, "digest": "p-abc", "provides": provides, "max_logprobs": 20, "model": model}
    status = await prober(**STOCK, reprise_posture=(200, page)).observe(REPLICA)
    assert (status.healthy, status.digest, status.max_logprobs) == (True, "p-abc", 20)
    assert status.provides(Mitigation.EAGER).held is True
    with pytest.raises(DeterminismUnavailable, match=r"not known: .*eos.*length"):
        status.model.model()


async def test_the_interval_log_of_one_request() -> None:
    """The guard's answer as it is; None for whatever hinders it."""
    page = {"epoch": "e-1", "admissions": []}
    assert await prober(reprise_admissions=(200, page)).admissions(REPLICA, request="r") == page
    hindrances: tuple[tuple[int, Any] | Exception, ...] = (
        (403, {}),
        (200, "<html>"),
        (200, []),
        httpx.ConnectError("no"),
    )
    for hindered in hindrances:
        assert await prober(reprise_admissions=hindered).admissions(REPLICA, request="r") is None


@pytest.mark.parametrize(("code", "words"), [(403, "REPRISE_GUARD_KEY"), (503, "not observed"), (500, "500")])
async def test_a_guard_that_does_not_tell(code: int, words: str) -> None:
    """The replica serves ordinary requests; everything that needs the guard's word is unknown, with the reason."""
    status = await prober(**STOCK, reprise_posture=(code, {})).observe(REPLICA)

    assert (status.healthy, status.digest) == (True, f"{UNKNOWN_POSTURE}@{REPLICA.name}")
    for mitigation in (Mitigation.BATCH_ISOLATION, Mitigation.EAGER):
        assert status.provides(mitigation).held is None
        assert words in status.provides(mitigation).reason


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"health": (503, "")}, "/health answered 503"),
        ({"v1_models": (401, {})}, "/v1/models answered 401"),
        ({"v1_models": (200, {"nothing": 1})}, "its answers are not vLLM's"),
        ({"v1_models": (200, "<html>")}, "its answers are not vLLM's"),
        ({"v1_models": (200, {"data": [None]})}, "its answers are not vLLM's"),
        ({"v1_models": (200, {"data": [{"id": "m"}, 3]})}, "its answers are not vLLM's"),
        ({"reprise_posture": (200, [])}, "its answers are not vLLM's"),
        (
            {"reprise_posture": (200, {"posture": {}, "digest": "p", "provides": {}, "gate": {"shared": "x"}})},
            "not vLLM's",
        ),
        ({"reprise_posture": (200, {"posture": {"eager": "x"}, "digest": "p", "provides": {}})}, "not vLLM's"),
        ({"health": httpx.ConnectError("refused")}, "ConnectError: refused"),
        ({"health": httpx.ReadTimeout("")}, "ReadTimeout"),
    ],
)
async def test_an_unhealthy_replica_says_why(change: dict[str, Any], problem: str) -> None:
    """The problem is told in a few words."""
    status = await prober(**STOCK | change).observe(REPLICA)
    assert not status.healthy
    assert problem in status.problem


async def test_two_stock_engines_are_never_one_pool() -> None:
    """What is not known of two replicas may differ, so their digests do."""
    stock = prober(**STOCK)
    assert (await stock.observe(REPLICA)).digest != (await stock.observe(Replica.at("http://127.0.0.1:2"))).digest


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://h:1", ("h:1", "http://h:1")),
        ("http://h", ("h:80", "http://h")),
        ("https://h/base/v1/", ("h:443", "https://h/base")),
    ],
)
def test_a_replicas_address(url: str, expected: tuple[str, str]) -> None:
    """A base URL with or without /v1; the name is host and port."""
    replica = Replica.at(url)
    assert (replica.name, replica.url) == expected


@pytest.mark.parametrize("url", ["h:1", "ftp://h", "http://", "http://h?x=1", "http://u:p@h"])
def test_a_bad_address_is_refused(url: str) -> None:
    """What is no base URL is an error, without showing credentials."""
    with pytest.raises(ValueError, match="upstream must") as caught:
        Replica.at(url)
    assert "u:p" not in str(caught.value)
