"""What the guard tells a gateway: the posture of its replica, against the guard key."""

import json

import pytest

from app.determinism.posture import Posture
from app.engine.plugin import WORKER_METHOD
from tests.unit.engine.fakes import EXCLUSIVE, KEY, SHARED, FakeEngine, Started, observed

pytestmark = pytest.mark.anyio


async def test_posture_is_the_workers_word_and_becomes_the_fingerprint() -> None:
    """Observed once at start, before anybody asks; digest, provisions and the gate go with it."""
    engine = FakeEngine([{"device": "cpu", "kv_split": "fixed", "threads": 2}])

    async def test(started: Started) -> None:
        page = await observed(started)
        posture = Posture.from_mapping(page["posture"])
        expected = Posture(
            device="cpu", kv_split="fixed", threads=2, eager=True, api_servers=1, epoch="spring", guard_key=True
        )
        told = {name: value for name, value in posture.to_mapping().items() if name in _told(expected)}
        assert told == {name: value for name, value in expected.to_mapping().items() if value is not None}
        assert page["digest"] == posture.digest == started.serving.system_fingerprint
        assert page["provides"]["fixed_kv_split"] == {"held": True, "reason": ""}
        assert page["provides"]["framework_determinism"]["held"] is None
        assert set(page["gate"].values()) == {0}
        assert {"shared", "waiting_exclusive", "expected_wait_exclusive"} <= page["gate"].keys()
        assert page["epoch"].startswith("e-")
        assert page["guard_version"]
        assert page["model"] is None
        assert page["self_test"] == {"held": None, "reason": ""}
        await started.posture()
        assert engine.calls == [WORKER_METHOD]

    await Started(engine, {"REPRISE_GUARD_KEY": KEY, "REPRISE_EPOCH": "spring"}).run(test)


def _told(posture: Posture) -> set[str]:
    return set(posture.to_mapping()) - set(posture.unknown)


async def test_before_it_is_observed_the_answer_is_not_ready() -> None:
    """503, never a guess; the first question starts the observation where no lifespan did."""
    started = Started(FakeEngine([{"device": "cpu"}]))
    first = await started.posture()
    assert (first.status, json.loads(first.content)["error"]["code"]) == (503, "not_ready")
    assert (await observed(started))["posture"]["device"] == "cpu"


async def test_an_answer_names_the_posture_that_gave_it() -> None:
    """To a gateway only; unknown until it was observed, then the digest that the posture page tells."""
    started = Started(FakeEngine([{"device": "cpu"}]))

    async def told(headers: dict[str, str]) -> str | None:
        call = started.replica.call(headers)
        call.finish.set()
        await started.replica.serve(call)
        return call.headers.get("x-determinism-posture")

    assert [await told(headers) for headers in (SHARED, EXCLUSIVE)] == ["unknown", "unknown"]
    digest = (await observed(started))["digest"]
    assert [await told(headers) for headers in (SHARED, EXCLUSIVE)] == [digest, digest]
    assert await told({}) is None


@pytest.mark.parametrize("headers", [{}, {"x-determinism-guard-key": "wrong"}, EXCLUSIVE])
async def test_posture_needs_the_guard_key(headers: dict[str, str]) -> None:
    """403 without it, also where no key is configured."""
    keyed = await Started(FakeEngine([{}])).posture(headers)
    assert (keyed.status == 403) is (headers is not EXCLUSIVE)
    keyless = await Started(FakeEngine([{}]), {}).posture(headers)
    assert keyless.status == 403
    assert json.loads(keyless.content)["error"]["code"] == "forbidden"
