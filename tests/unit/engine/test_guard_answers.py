"""What the guard tells a gateway: the peak at the end of a stream, and the posture."""

import json
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.determinism.posture import Posture
from app.engine.guard import Message, Reporter
from app.engine.plugin import EXTENSION, WORKER_METHOD
from app.scheduling.gate import Admission, Gate, Ticket
from tests.unit.engine.fakes import EXCLUSIVE, KEY, SHARED, Call, FakeEngine, Replica, quiet

pytestmark = pytest.mark.anyio

COMMENT = b': reprise-guard {"coresident_peak":1}\n\n'
DONE = b"data: [DONE]\n\n"
SSE = [(b"content-type", b"text/event-stream; charset=utf-8")]


def alone() -> Ticket:
    """A granted ticket with nobody beside it."""
    return Gate().enqueue(Admission.EXCLUSIVE, lambda: None)


async def relay(bodies: list[bytes], headers: list[tuple[bytes, bytes]] = SSE) -> list[Message]:
    """What a gateway gets of an answer in these body messages."""
    sent: list[Message] = []

    async def keep(message: Message) -> None:
        sent.append(message)

    reporter = Reporter(keep, alone(), 0.25)
    await reporter.send({"type": "http.response.start", "status": 200, "headers": headers})
    for number, data in enumerate(bodies):
        more = number + 1 < len(bodies)
        await reporter.send({"type": "http.response.body", "body": data, "more_body": more})
    return sent


async def test_the_comment_is_a_message_of_its_own_before_the_end() -> None:
    """Headers with the peak so far and the wait, the events untouched, the comment, then [DONE]."""
    sent = await relay([b'data: {"a":1}\n\n', DONE, b""])
    assert sent[0]["headers"] == [
        *SSE,
        (b"x-determinism-coresident-peak", b"1"),
        (b"x-determinism-admission-wait", b"0.250000"),
    ]
    assert [message["body"] for message in sent[1:]] == [b'data: {"a":1}\n\n', COMMENT, DONE, b""]
    assert [message["more_body"] for message in sent[1:]] == [True, True, True, False]


event = st.sampled_from([b'data: {"text":"hi"}\n\n', b'data: {"text":"data: [DONE]"}\n\n', b": ping\n\n"])


@settings(deadline=None)  # of a busy machine's clock nothing is promised here
@given(events=st.lists(st.tuples(event, st.booleans())), apart=st.booleans())
async def test_however_events_are_packed_the_comment_comes_once_before_the_end(
    *, events: list[tuple[bytes, bool]], apart: bool
) -> None:
    """Several events in one message, and text that looks like the end, change nothing."""
    bodies = [b""]
    for data, cut in [*events, (DONE, apart)]:
        if cut:
            bodies.append(b"")
        bodies[-1] += data
    sent = await relay(bodies)
    assert b"".join(message["body"] for message in sent[1:]) == b"".join(data for data, _ in events) + COMMENT + DONE


@pytest.mark.parametrize("bodies", [[b'data: {"text":"data: [DONE]"}\n\n'], [b"data: {}\n\n"], [b""]])
async def test_a_stream_that_does_not_end_gets_no_comment(bodies: list[bytes]) -> None:
    """An aborted stream must not look complete."""
    assert [message["body"] for message in (await relay(bodies))[1:]] == bodies


async def test_a_unary_answer_is_left_as_it_is() -> None:
    """The end of a stream is only looked for in a stream."""
    sent = await relay([DONE], [(b"content-type", b"application/json")])
    assert [message["body"] for message in sent[1:]] == [DONE]


class Started:
    """A replica whose server has started; ask it for its posture."""

    def __init__(self, engine: FakeEngine, environ: dict[str, str] | None = None) -> None:
        self.replica = Replica(environ, engine)
        self.serving = SimpleNamespace(system_fingerprint="vllm-0.32.0-12345678")
        self.replica.state.openai_serving_chat = self.serving
        self.replica.state.vllm_config = SimpleNamespace(
            parallel_config=SimpleNamespace(_api_process_count=1, worker_extension_cls=EXTENSION),
            model_config=SimpleNamespace(enforce_eager=True),
        )

    async def posture(self, headers: dict[str, str] = SHARED) -> Call:
        """GET /reprise/posture."""
        call = self.replica.call(headers, "/reprise/posture", method="GET")
        await self.replica.serve(call)
        return call

    async def run(self, test: Any) -> None:
        """Run ``test`` between the server's start and its end."""
        lifespan = self.replica.call({}, kind="lifespan", data=None)
        async with anyio.create_task_group() as group:
            group.start_soon(self.replica.serve, lifespan)
            await quiet()
            await test(self)
            lifespan.wire.put_nowait({"type": "lifespan.shutdown"})
        assert lifespan.sent == [{"type": "lifespan.startup.complete"}]


async def observed(started: Started) -> dict[str, Any]:
    """The posture page once it is there; the file digests are made in a thread."""
    with anyio.fail_after(5):
        while (page := await started.posture()).status == 503:
            await quiet()
    answer: dict[str, Any] = json.loads(page.content)
    return answer


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
        assert page["gate"] == {"shared": 0, "exclusive": 0, "waiting_shared": 0, "waiting_exclusive": 0}
        assert page["guard_version"]
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


@pytest.mark.parametrize("headers", [{}, {"x-determinism-guard-key": "wrong"}, EXCLUSIVE])
async def test_posture_needs_the_guard_key(headers: dict[str, str]) -> None:
    """403 without it, also where no key is configured."""
    keyed = await Started(FakeEngine([{}])).posture(headers)
    assert (keyed.status == 403) is (headers is not EXCLUSIVE)
    keyless = await Started(FakeEngine([{}]), {}).posture(headers)
    assert keyless.status == 403
    assert json.loads(keyless.content)["error"]["code"] == "forbidden"


async def test_workers_that_fail_are_unknown_and_asked_again() -> None:
    """The posture says unknown meanwhile; the next question asks them again, and the digest follows."""
    engine = FakeEngine(None)

    async def test(started: Started) -> None:
        page = await observed(started)
        assert page["posture"]["device"] is None
        assert page["provides"]["fixed_kv_split"]["held"] is None
        engine.workers = [{"device": "cpu", "kv_split": "fixed"}]
        with anyio.fail_after(5):
            while (again := await observed(started))["posture"]["device"] is None:
                await quiet()
        assert again["provides"]["fixed_kv_split"]["held"] is True
        assert started.serving.system_fingerprint == again["digest"] != page["digest"]

    await Started(engine).run(test)


async def test_workers_without_the_extension_are_not_asked() -> None:
    """Asking would only fill vLLM's log with errors."""
    engine = FakeEngine(None)

    async def test(started: Started) -> None:
        await observed(started)
        assert (await observed(started))["posture"]["threads"] is None
        assert engine.calls == []

    started = Started(engine)
    started.replica.state.vllm_config.parallel_config.worker_extension_cls = ""
    await started.run(test)


@pytest.mark.parametrize(("mode", "published"), [("full", True), ("hash", True), ("custom", False), ("none", False)])
async def test_an_operators_own_fingerprint_stays(mode: str, *, published: bool) -> None:
    """--fingerprint-mode custom and none are choices; vLLM's own hashes give way to the digest."""

    async def test(started: Started) -> None:
        page = await observed(started)
        assert (started.serving.system_fingerprint == page["digest"]) is published

    started = Started(FakeEngine([{}]))
    started.replica.state.args.fingerprint_mode = mode
    await started.run(test)


async def test_a_vllm_without_fingerprints_says_so_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """Posture works on; the log tells where the digest is."""

    async def test(started: Started) -> None:
        assert (await observed(started))["digest"].startswith("p-")

    started = Started(FakeEngine([{}]))
    del started.replica.state.openai_serving_chat
    await started.run(test)
    assert "no system_fingerprint" in caplog.text


async def test_a_posture_that_cannot_be_read_is_not_ready(caplog: pytest.LogCaptureFixture) -> None:
    """A worker's answer of the wrong type is an error in the log, not a posture and not a crash."""

    async def test(started: Started) -> None:
        with anyio.fail_after(5):
            while "posture could not be observed" not in caplog.text:
                await quiet()
        assert (await started.posture()).status == 503

    await Started(FakeEngine([{"threads": "two"}])).run(test)


async def test_a_server_that_ends_early_ends_the_observation() -> None:
    """Workers that never answer do not keep the server from ending."""

    class Silent(FakeEngine):
        async def collective_rpc(self, method: str, timeout: float | None = None) -> list[dict[str, Any]]:  # noqa: ASYNC109, ARG002
            await anyio.sleep_forever()
            raise AssertionError

    async def test(started: Started) -> None:
        assert (await started.posture()).status == 503

    with anyio.fail_after(5):
        await Started(Silent()).run(test)
