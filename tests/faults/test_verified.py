"""Verified answers when something is lost: the verifier, its word, or the client, in every phase of an answer."""

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.support.departures import until
from tests.support.process import gateway_process
from tests.support.running import Answer, RunningGateway, request_bytes
from tests.support.verifying import (
    GUARD_KEY,
    WINDOW,
    Verifying,
    chat,
    events,
    path_of,
    reference,
    said,
    verified_site,
    verifying_gateway,
)

pytestmark = pytest.mark.anyio

LOST = ("reset", "half", "die")
ODD = ("error", "null", "no_json", "cached", "few", "many", "short", "twice", "foreign", "nan", "words", "400", "404")
REFUSED = ("429", "500", "503", "unavailable")
UNCONFIRMED = ("posture", "company", "no_word")
STATUS = {"429": 429, "503": 503, **dict.fromkeys(("unavailable", *UNCONFIRMED), 503)}
TEXT_FAULTS = ("reset", "half", "die", "500", "503", "null", "no_json", "backwards", "stop", "decoded")
EARLIER = ("",) * 3
"""Passes that go well before one that does not; the first of them may leave a tie open."""

LONG = chat(max_tokens=40, ignore_eos=True)


@asynccontextmanager
async def two(state: Path, **settings: Any) -> AsyncIterator[tuple[Verifying, Verifying, RunningGateway]]:
    """A gateway before two verifiers; a replica that fails its probes once is out."""
    async with (
        Verifying().serve() as one,
        Verifying().serve() as other,
        verifying_gateway(state, one, other, probe_failures=1, **settings) as gateway,
    ):
        yield one, other, gateway
        assert [*one.wrong, *other.wrong] == []


def broken_off(answer: Answer) -> dict[str, Any]:
    """The error with which a stream ended, which must not look complete."""
    assert answer.status == 200
    assert not answer.complete
    assert b"[DONE]" not in answer.body
    error: dict[str, Any] = events(answer)[-1]["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


async def nothing_is_held(gateway: RunningGateway, *servers: Verifying) -> None:
    """Wait until no lease is left, by the gateway's word and its gauges, and no request runs."""

    async def idle() -> bool:
        replicas = (await gateway.get("/readyz")).json()["replicas"]
        page = (await gateway.get("/metrics")).body.decode()
        gauges = [line for line in page.splitlines() if line.startswith("reprise_leases{")]
        held = sum(replica["leases"] for replica in replicas) + sum(float(line.rpartition(" ")[2]) for line in gauges)
        return not held and not any(server.running for server in servers)

    await until(idle, seconds=10)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("fault", [*LOST, *ODD, *REFUSED, *UNCONFIRMED])
async def test_a_first_pass_without_a_usable_answer_is_an_http_error(tmp_path: Path, fault: str, stream: bool) -> None:
    """Nothing has been sent to the caller by then, so that is told with a status, streamed or not."""
    async with verified_site(tmp_path) as (server, gateway):
        server.fail("pass", fault)
        members = LONG | {"stream": stream}
        answer = await gateway.post(members)
        assert answer.status == STATUS.get(fault, 502)
        assert answer.error["type"] in {"server_error", "rate_limit_error"}
        assert answer.headers.get("retry-after") == ("7" if fault in {"429", "503"} else None)
        await nothing_is_held(gateway, server)
        if fault != "die":
            assert said(await gateway.post(members)).text == reference(members).text


@pytest.mark.parametrize("fault", [*LOST, *ODD, *REFUSED, *UNCONFIRMED])
async def test_a_later_pass_without_a_usable_answer_breaks_the_stream_off(tmp_path: Path, fault: str) -> None:
    """What was decided is out, and it is the definition's; the rest is an error event, and no end of a stream."""
    async with verified_site(tmp_path) as (server, gateway):
        server.fail("pass", *EARLIER, fault)
        members = LONG | {"stream": True}
        answer = await gateway.post(members)
        assert broken_off(answer)["code"] not in {None, "internal_error"}
        shown = "".join(event["choices"][0]["delta"]["content"] for event in events(answer)[:-1])
        assert shown
        assert reference(members).text.startswith(shown)
        await nothing_is_held(gateway, server)
        name = 'reprise_requests_total{mode="verified",model="m",outcome="incomplete"}'
        assert await gateway.metric(name) == 1
        assert await gateway.metric("reprise_verification_passes_total") == len(EARLIER)


@pytest.mark.parametrize("at", [1, 2, 4])
@pytest.mark.parametrize("fault", [*LOST, *ODD, *REFUSED, *UNCONFIRMED])
async def test_another_verifier_of_the_posture_goes_on_with_the_same_answer(
    tmp_path: Path, fault: str, at: int
) -> None:
    """A pass is a function of its tokens: whoever is left computes it, and the client sees nothing of it."""
    async with two(tmp_path) as (one, other, gateway):
        one.fail("pass", *[""] * (at - 1), fault)
        members = LONG | {"stream": True, "return_token_ids": True}
        answer = await gateway.post(members)
        assert answer.status == 200, answer.body
        found = said(answer)
        assert found.token_ids == list(reference(members).tokens)
        assert len(one.of("pass")) == at
        assert other.of("pass")
        assert one.of("pass")[-1].body == other.of("pass")[0].body
        assert one.of("pass")[-1].headers["x-request-id"] == other.of("pass")[0].headers["x-request-id"]
        path = f"/v1/determinism/receipts/{answer.headers['x-determinism-request']}"
        assert (await gateway.get(path)).json()["receipt"]["replica"] == other.url.removeprefix("http://")
        await nothing_is_held(gateway, one, other)


@pytest.mark.parametrize("fault", TEXT_FAULTS)
async def test_the_text_comes_from_another_verifier_too(tmp_path: Path, fault: str) -> None:
    """As with passes: it is lost where it comes from, or makes no sense, and another one writes it."""
    async with two(tmp_path) as (one, other, gateway):
        members = chat(max_tokens=40, ignore_eos=True, logprobs=True, stream=True)
        one.fail("text", "", fault)
        assert said(await gateway.post(members)).text == reference(members).text
        assert other.of("text")
        await nothing_is_held(gateway, one, other)


@pytest.mark.parametrize("fault", TEXT_FAULTS)
async def test_without_another_one_a_lost_text_is_an_error(tmp_path: Path, fault: str) -> None:
    """Before the first byte an HTTP error, after it an error event."""
    async with verified_site(tmp_path) as (server, gateway):
        members = chat(max_tokens=40, ignore_eos=True, logprobs=True, stream=True)
        if fault != "die":
            server.fail("text", fault)
            first = await gateway.post(members)
            assert first.status == (503 if fault == "503" else 502) if fault != "backwards" else first.status == 200
        server.fail("text", "", fault)
        assert broken_off(await gateway.post(members))["message"]
        await nothing_is_held(gateway, server)


async def test_a_prompt_is_rendered_by_whoever_is_left(tmp_path: Path) -> None:
    """A verifier that is gone when the request begins costs it nothing."""
    for fault in ("reset", "die"):
        async with two(tmp_path / fault) as (one, other, gateway):
            one.fail("render", fault)
            members = chat(max_tokens=10)
            assert said(await gateway.post(members)).text == reference(members).text
            assert other.of("render")


async def test_two_verifiers_that_fail_are_told(tmp_path: Path) -> None:
    """The second one's reason is what the caller gets, and nobody is asked a third time for one pass."""
    async with two(tmp_path) as (one, other, gateway):
        one.fail("pass", "500")
        other.fail("pass", "unavailable")
        answer = await gateway.post(LONG)
        assert (answer.status, answer.error["code"]) == (503, "determinism_unavailable")
        assert len(one.of("pass")) == len(other.of("pass")) == 1


async def test_who_failed_is_not_asked_first_again(tmp_path: Path) -> None:
    """While there is another one; it would cost every pass a failure."""
    async with two(tmp_path) as (one, other, gateway):
        one.fail("pass", *["500"] * 50)
        members = LONG | {"stream": True}
        assert said(await gateway.post(members)).text == reference(members).text
        assert len(one.of("pass")) == 1
        assert len(other.of("pass")) > 3


@pytest.mark.parametrize("kind", ["pass", "text"])
@pytest.mark.parametrize(
    ("fault", "code"), [("reset", "upstream_reset"), ("die", "upstream_reset"), ("503", "not_ready")]
)
async def test_a_verifier_of_another_posture_never_goes_on(tmp_path: Path, kind: str, fault: str, code: str) -> None:
    """Its rows are those of another answer: the one that was begun ends with an error, and it is not even asked."""
    async with (
        Verifying().serve() as one,
        Verifying(seed=1, digest="p-2").serve() as other,
        verifying_gateway(tmp_path, one, other) as gateway,
    ):
        one.fail(kind, *EARLIER, fault)
        assert broken_off(await gateway.post(LONG | {"stream": True}))["code"] == code
        assert not other.of("pass")
        assert not other.of("text")
        await nothing_is_held(gateway, one, other)


async def test_a_verifier_that_comes_back_as_another_is_found_out(tmp_path: Path) -> None:
    """Its probe shows the new posture between two passes: the next pass is not sent to it."""
    async with verified_site(tmp_path) as (server, gateway):
        server.hold("pass", "head")
        async with gateway.connection() as (reader, writer):
            writer.write(request_bytes("POST", path_of(LONG), json.dumps(LONG | {"stream": True}).encode(), {}))
            await server.until_held("pass")
            server.held.clear()
            server.release.set()
            await reader.readuntil(b"finish_reason")
            server.hold("draft", "head")
            server.release.clear()
            await server.until_held("draft")
            server.page["digest"] = server.digest = "p-2"

            async def seen() -> bool:
                replicas = (await gateway.get("/readyz")).json()["replicas"]
                return bool(replicas[0]["posture"] == "p-2")

            await until(seen, seconds=10)
            passes = len(server.of("pass"))
            server.release.set()
            rest = await reader.read()
        assert b"has another posture, p-2 and not p-1" in rest
        assert b"[DONE]" not in rest
        assert len(server.of("pass")) == passes


PHASES = [
    (kind, place, number)
    for kind in ("render", "draft", "pass", "text")
    for place in ("head", "body")
    for number in ((1,) if kind == "render" else (1, 3))
]
"""An errand, whether it has begun to answer, and which of its kind it is."""


@asynccontextmanager
async def client(gateway: RunningGateway, members: dict[str, Any]) -> AsyncIterator[asyncio.StreamReader]:
    """A client that has sent its request, and is gone when the block ends."""
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    try:
        body = json.dumps(members).encode()
        writer.write(request_bytes("POST", path_of(members), body, {"content-type": "application/json"}))
        yield reader
    finally:
        writer.transport.abort()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("kind", "place", "number"), PHASES)
async def test_a_client_that_leaves_stops_the_errand_that_is_under_way(
    tmp_path: Path, kind: str, place: str, number: int, stream: bool
) -> None:
    """Whether it queues or runs there, or its answer is on the way: the connection closes, and no lease is left."""
    members = LONG | {"stream": stream}
    async with verified_site(tmp_path, drafter="lies") as (server, gateway):
        server.hold(kind, place)
        async with client(gateway, members):
            held = await server.until_held(kind)
            for _ in range(1, number):
                held = await server.until_next_held(kind)
            sent = len(server.received)
        async with asyncio.timeout(5):
            await held.closed_by_client.wait()
        await nothing_is_held(gateway, server)
        assert len(server.received) == sent, "nothing more was sent for a client that had left"
        server.held.clear()
        assert said(await gateway.post(members)).text == reference(members).text
        assert await gateway.metric('reprise_requests_total{mode="verified",model="m",outcome="client_closed"}') == 1


@pytest.mark.parametrize(("kind", "admission"), [("draft", "shared"), ("pass", "exclusive")])
async def test_a_lease_is_shown_while_it_is_held(tmp_path: Path, kind: str, admission: str) -> None:
    """By the gauge of the kind of its admission, once, and by `/readyz`."""
    async with verified_site(tmp_path) as (server, gateway):
        server.hold(kind, "head")
        async with client(gateway, LONG):
            await server.until_held(kind)
            name = server.url.removeprefix("http://")
            assert await gateway.metric(f'reprise_leases{{admission="{admission}",replica="{name}"}}') == 1
            assert (await gateway.get("/readyz")).json()["replicas"][0]["leases"] == 1
        await nothing_is_held(gateway, server)


async def test_clients_that_leave_at_any_moment_leave_nothing(tmp_path: Path) -> None:
    """Between two errands as well as in one: no lease, no connection, and the next one gets its answer."""
    async with verified_site(tmp_path, drafter="lies") as (server, gateway):
        members = LONG | {"stream": True}

        async def leave(turns: int) -> None:
            async with client(gateway, members) as reader:
                for _ in range(turns):
                    await asyncio.sleep(0)
                if turns % 3 == 0:
                    await reader.readuntil(b"data: ")

        for turns in range(0, 200, 5):
            await asyncio.gather(*(leave(turns + more) for more in range(5)))
        await nothing_is_held(gateway, server)
        assert said(await gateway.post(members)).text == reference(members).text


async def test_clients_that_leave_while_a_verifier_is_replaced(tmp_path: Path) -> None:
    """The first one breaks off, the second one holds: the client's leaving reaches that one."""
    async with two(tmp_path) as (one, other, gateway):
        one.fail("pass", "reset")
        other.hold("pass", "head")
        async with client(gateway, LONG):
            held = await other.until_held("pass")
        async with asyncio.timeout(5):
            await held.closed_by_client.wait()
        await nothing_is_held(gateway, one, other)


@pytest.mark.parametrize("kind", ["draft", "pass", "text"])
async def test_at_shutdown_an_answer_in_the_making_has_its_grace(tmp_path: Path, kind: str) -> None:
    """What ends within it ends well; what does not ends with an error event, and the process with it."""
    settings = {"REPRISE_SHUTDOWN_DELAY": "0", "REPRISE_GUARD_KEY": GUARD_KEY, "REPRISE_WINDOW": str(WINDOW)}
    members = LONG | {"stream": True}
    for grace, ends in (("30", True), ("1", False)):
        async with Verifying().serve() as server:
            running = gateway_process(tmp_path / grace, server, REPRISE_SHUTDOWN_GRACE=grace, **settings)
            async with running as (process, gateway):
                with anyio.fail_after(40):
                    async with client(gateway, members) as reader:
                        await reader.readuntil(b"finish_reason")
                        server.hold(kind, "head")
                        await server.until_held(kind)
                        process.send_signal(signal.SIGTERM)
                        server.held.clear()
                        if ends:
                            server.release.set()
                        rest = await reader.read()
                    await process.wait()
        assert (b"data: [DONE]" in rest) is ends
        assert (b"shutting down" in rest) is not ends
        assert rest.endswith(b"0\r\n\r\n") is ends


async def test_a_drafter_that_says_nothing_is_given_up(tmp_path: Path) -> None:
    """By a deadline of its own; the answer needs no draft, and asks the only one there is again."""
    async with (
        Verifying().serve() as server,
        verifying_gateway(tmp_path, server, draft_timeout=0.3) as gateway,
    ):
        server.fail("draft", "silent")
        assert said(await gateway.post(LONG)).text == reference(LONG).text
        assert await gateway.metric("reprise_verification_passes_total") > 5
        assert len(server.of("draft")) > 1
        await nothing_is_held(gateway, server)


async def test_a_drafter_that_says_nothing_is_asked_once_where_there_is_another(tmp_path: Path) -> None:
    """It has failed as one that answers with an error has; the other one drafts from then on."""
    async with two(tmp_path, draft_timeout=0.3) as (one, other, gateway):
        one.fail("draft", *["silent"] * 50)
        members = LONG | {"stream": True}
        assert said(await gateway.post(members)).text == reference(members).text
        assert len(one.of("draft")) == 1
        assert len(other.of("draft")) > 3
        await nothing_is_held(gateway, one, other)


async def test_a_drafter_that_fails_costs_one_window_where_there_is_another(tmp_path: Path) -> None:
    """Each draft of it would fail again; the other one drafts from then on."""
    async with two(tmp_path) as (one, other, gateway):
        one.fail("draft", *["500"] * 50)
        members = LONG | {"stream": True}
        assert said(await gateway.post(members)).text == reference(members).text
        assert len(one.of("draft")) == 1
        assert len(other.of("draft")) > 3


async def test_a_verifier_that_says_nothing_is_replaced(tmp_path: Path) -> None:
    """And where there is no other one, that is a 504, or the end of the stream."""
    async with two(tmp_path / "two", first_byte_timeout=0.3) as (one, other, gateway):
        one.fail("pass", *EARLIER, "silent")
        assert said(await gateway.post(LONG | {"stream": True})).text == reference(LONG).text
        assert other.of("pass")
    async with (
        Verifying().serve() as server,
        verifying_gateway(tmp_path / "one", server, first_byte_timeout=0.3) as gateway,
    ):
        server.fail("pass", "silent", *EARLIER, "silent")
        assert (await gateway.post(LONG)).status == 504
        assert broken_off(await gateway.post(LONG | {"stream": True}))["code"] == "upstream_timeout"
