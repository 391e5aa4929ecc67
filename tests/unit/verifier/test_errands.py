"""What an errand's answer means: JSON, the engine's own words of refusal, or a replica that is to blame."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from typing import cast

import pytest
from anyio import wait_all_tasks_blocked

from app.determinism.mode import Mitigation, Mode
from app.determinism.plan import Plan
from app.errors import (
    DeterminismUnavailable,
    InvalidRequest,
    NotFound,
    NotReady,
    QueueFull,
    RepriseError,
    Unauthorized,
    UpstreamError,
    UpstreamTimeout,
)
from app.scheduling.scheduler import ANYBODY, Scheduler
from app.scheduling.ticket import Admission
from app.upstream.client import UpstreamClient, UpstreamResponse
from app.upstream.drain import DrainProof
from app.upstream.replica import Replica, ReplicaStatus
from app.verifier.errands import EngineRefusal, Lost, Sender, answer_of, blaming
from tests.support.running import start

REPLICA = Replica.at("http://127.0.0.1:1")


class Response:
    """The head of an answer."""

    def __init__(self, status: int, retry_after: bytes | None = None) -> None:
        self.status = status
        self._retry_after = retry_after

    def header(self, wanted: bytes) -> bytes | None:
        """One header's value."""
        return self._retry_after if wanted == b"retry-after" else None


def read(status: int, body: bytes, *, callers: bool = False, retry_after: bytes | None = None) -> object:
    return answer_of(cast(UpstreamResponse, Response(status, retry_after)), body, callers=callers)


@pytest.mark.parametrize("body", [b"{}", b"null", b'{"error": {"message": "late"}}', b"[1]"])
def test_any_json_of_a_200_is_an_answer(body: bytes) -> None:
    """Whether it is the one that was asked for, its reader says."""
    assert read(200, body) is not NotImplemented


def test_no_json_is_no_answer() -> None:
    """NaN is none either, in which other readers see a number."""
    for body in (b"", b"{", b'{"x": NaN}', b"\xff"):
        with pytest.raises(UpstreamError, match="no JSON"):
            read(200, body)


@pytest.mark.parametrize(
    ("status", "callers", "kind", "code"),
    [
        (400, True, EngineRefusal, "invalid_request"),
        (400, False, UpstreamError, "upstream_error"),
        (401, True, Unauthorized, "invalid_api_key"),
        (401, False, Unauthorized, "invalid_api_key"),
        (403, False, UpstreamError, "upstream_error"),
        (403, True, UpstreamError, "upstream_error"),
        (404, True, NotFound, "not_found"),
        (404, False, UpstreamError, "upstream_error"),
        (413, True, EngineRefusal, "invalid_request"),
        (422, True, EngineRefusal, "invalid_request"),
        (429, True, QueueFull, "queue_full"),
        (429, False, QueueFull, "queue_full"),
        (500, True, UpstreamError, "upstream_error"),
        (503, False, NotReady, "not_ready"),
        (204, False, UpstreamError, "upstream_error"),
        (302, False, UpstreamError, "upstream_error"),
    ],
)
def test_a_refusal_keeps_its_words(status: int, callers: bool, kind: type[RepriseError], code: str) -> None:
    """What was refused of the caller's own is his, status and all; of ours it is the replica's, but for his key."""
    body = b'{"error": {"message": "the engine says why", "param": "prompt", "code": "x"}}'
    with pytest.raises(kind, match="the engine says why") as caught:
        read(status, body, callers=callers)
    assert type(caught.value) is kind
    assert caught.value.error_code == code
    if kind in {EngineRefusal, NotFound}:
        assert (caught.value.status, caught.value.param) == (status, "prompt")


def test_a_path_that_is_not_there_is_no_fault_of_the_callers() -> None:
    """A guard of another version answers 404 for it, and names no member."""
    with pytest.raises(UpstreamError, match="Not Found"):
        read(404, b'{"error": {"message": "Not Found", "param": null, "code": 404}}', callers=True)


def test_a_mitigation_that_is_unavailable_stays_that() -> None:
    """By the code of the guard's error; any other 503 is of a replica that is not ready."""
    with pytest.raises(DeterminismUnavailable, match="self-test") as caught:
        read(503, b'{"error": {"message": "the self-test failed", "code": "determinism_unavailable"}}')
    assert not caught.value.worth_retrying


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b'{"error": "flat"}', b'{"error": {"message": 1}}', b"null"])
@pytest.mark.parametrize("status", [400, 429, 500, 503])
def test_a_refusal_without_words_is_told_by_its_status(status: int, body: bytes) -> None:
    """A proxy between us speaks no OpenAI."""
    with pytest.raises(RepriseError, match=f"HTTP {status}"):
        read(status, body, callers=True)


@pytest.mark.parametrize(("said", "expected"), [(b"7", 7.0), (None, None), (b"Mon, 30 Nov", None), (b"-1", None)])
def test_when_to_come_back(said: bytes | None, expected: float | None) -> None:
    """Seconds are handed on; a date is not read."""
    for status in (429, 503):
        with pytest.raises(RepriseError) as caught:
            read(status, b"{}", retry_after=said)
        assert caught.value.retry_after == expected


@pytest.mark.parametrize("error", [UpstreamTimeout("x"), NotReady("x"), QueueFull("x"), DeterminismUnavailable("x")])
def test_a_replica_is_blamed_for_what_is_no_fault_of_the_callers(error: RepriseError) -> None:
    """`Lost` names it, and carries what to tell."""
    with pytest.raises(Lost) as caught, blaming(REPLICA):
        raise error
    assert (caught.value.replica, caught.value.cause) == (REPLICA, error)


def test_what_the_caller_did_wrong_is_nobodys_loss() -> None:
    """Another replica would say the same. And what was blamed once, is not blamed on somebody else."""
    with pytest.raises(InvalidRequest), blaming(REPLICA):
        raise InvalidRequest("x")
    lost = Lost(Replica.at("http://127.0.0.1:2"), NotReady("x"))
    with pytest.raises(Lost) as caught, blaming(REPLICA):
        raise lost
    assert caught.value is lost


class Client:
    """A client of replicas that answer at once, or never; it notes who was asked."""

    def __init__(self, *, silent: bool = False) -> None:
        self.silent = silent
        self.asked: list[Replica] = []

    @asynccontextmanager
    async def send(self, replica: Replica, *_: object) -> AsyncIterator["Silent"]:
        """As `UpstreamClient.send`."""
        self.asked.append(replica)
        if self.silent:
            await asyncio.Event().wait()
        yield Silent()


class Silent(Response):
    """An answer without a word of the guard's."""

    headers: tuple[tuple[bytes, bytes], ...] = ()

    def __init__(self) -> None:
        super().__init__(200)

    async def read(self, _limit: int) -> bytes:
        """Its body."""
        return b"{}"


def sender(scheduler: Scheduler, client: Client) -> Sender:
    def holding(_replica: str, _admission: str) -> nullcontext[None]:
        return nullcontext()

    made = cast(UpstreamClient, client)
    return Sender(scheduler, made, ANYBODY, "r", lambda _lease, _name: [], holding, lambda _replica: None)


def served(*replicas: Replica) -> Scheduler:
    scheduler = Scheduler(replicas, cast(DrainProof, None), clock=lambda: 0.0)
    for replica in replicas:
        scheduler.update(replica, ReplicaStatus(healthy=True, problem="", models=({"id": "m"},), digest="p-1"))
    return scheduler


STANDARD = Plan(Mode.STANDARD, "m")


@pytest.mark.anyio
async def test_an_errand_that_takes_too_long_is_given_up() -> None:
    """The replica is to blame, and its lease ends."""
    scheduler, client = served(REPLICA), Client(silent=True)
    with pytest.raises(Lost, match=r"took more than 0\.01 s") as caught:
        await sender(scheduler, client).leased(STANDARD, "/p", "d", {}, patience=0.01)
    assert (caught.value.replica, type(caught.value.cause)) == (REPLICA, UpstreamTimeout)
    assert client.asked == [REPLICA]
    assert scheduler.slots[REPLICA].leases == 0


@pytest.mark.anyio
async def test_patience_counts_the_queue() -> None:
    """Also where the line is the gateway's own, before anything is sent."""
    scheduler, client = served(REPLICA), Client()
    slot = scheduler.slots[REPLICA]
    ticket = await slot.gate.acquire(Admission.EXCLUSIVE, key="", priority=0, patience=5)
    with pytest.raises(Lost, match="took more than"):
        await sender(scheduler, client).leased(STANDARD, "/p", "d", {}, patience=0.01)
    assert client.asked == []
    slot.gate.release(ticket)
    assert (await sender(scheduler, client).leased(STANDARD, "/p", "d", {}, patience=5)).said == {}


@pytest.mark.anyio
async def test_a_caller_that_leaves_is_no_loss_of_patience() -> None:
    """His cancel goes through as one, and nobody is blamed."""
    scheduler, client = served(REPLICA), Client(silent=True)
    errand = start(sender(scheduler, client).leased(STANDARD, "/p", "d", {}, patience=60))
    await wait_all_tasks_blocked()
    assert scheduler.slots[REPLICA].leases == 1
    errand.cancel()
    with pytest.raises(asyncio.CancelledError):
        await errand
    assert scheduler.slots[REPLICA].leases == 0


@pytest.mark.anyio
async def test_an_errand_goes_where_it_is_preferred() -> None:
    """And nowhere that it must not."""
    other = Replica.at("http://127.0.0.1:2")
    client = Client()
    made = sender(served(REPLICA, other), client)
    plan = Plan(Mode.SEEDED, "m", frozenset({Mitigation.PINNED_SEED}))
    for prefer, without in ((None, None), (other, None), (other, other)):
        await made.leased(plan, "/p", "v", {}, prefer=prefer, without=without)
    assert client.asked == [REPLICA, other, REPLICA]
