"""What is sent to the server that is diagnosed, what is read of its answers, and how neighbours run beside them."""

import gc
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import anyio
import httpx
import pytest
from anyio.lowlevel import checkpoint

from app.determinism.output import CHAT_PATH, TEXT_PATH
from app.diagnose.wire import Asking, Reply, Trouble, Wire
from tests.unit.diagnose.scripted import URL, Piece, Server, refusal

pytestmark = pytest.mark.anyio

ASKING = Asking("scripted")
PATIENCE = 60.0


def wire(client: httpx.AsyncClient, asking: Asking = ASKING, *, timeout: float = PATIENCE) -> Wire:
    """A wire by a clock that stands still."""
    return Wire(client, asking, timeout, lambda: 0.0)


def client_of(answer: Callable[[httpx.Request], Any]) -> httpx.AsyncClient:
    """A client on a network where this answers."""
    return httpx.AsyncClient(base_url=URL, transport=httpx.MockTransport(answer))


def choice(index: int = 0, **members: Any) -> dict[str, Any]:
    """A choice of a completion."""
    return {"index": index, "text": f"text {index}", "finish_reason": "length", **members}


async def one(body: Any, status: int = 200, headers: dict[str, str] | None = None) -> Reply:
    """What becomes of this answer to a request of one prompt."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    async with client_of(lambda _request: httpx.Response(status, content=content, headers=headers)) as client:
        return await wire(client).complete(["a"], 4, "salt")


# --- what is sent ----------------------------------------------------------------------------------------------------


async def asked(asking: Asking, **how: bool) -> tuple[dict[str, Any], dict[str, str]]:
    """Body and headers of a completion."""
    server = Server()
    async with httpx.AsyncClient(base_url=URL, transport=server.transport) as client:
        await wire(client, asking).complete([(1, 2, 3), (4, 5)], 5, "salt-1", **how)
    return server.asked[0].body, dict(server.asked[0].headers)


async def test_one_request_holds_all_prompts() -> None:
    """Prompts that shall share a batch are one request, with everything that fixes its answers and their length."""
    server = Server()
    async with httpx.AsyncClient(base_url=URL, transport=server.transport) as client:
        reply = await wire(client).complete([(1, 2, 3), (4, 5), (6,)], 5, "salt-1")

    (sent,) = server.asked
    assert sent.path == TEXT_PATH
    assert sent.body == {
        "model": "scripted",
        "prompt": [[1, 2, 3], [4, 5], [6]],
        "max_tokens": 5,
        "temperature": 0.0,
        "logprobs": 2,
        "ignore_eos": True,
        "return_token_ids": True,
        "cache_salt": "salt-1",
    }
    assert [choice.position for choice in reply.choices] == [0, 1, 2]
    assert reply.prompt_ids == ((1, 2, 3), (4, 5), (6,))


@pytest.mark.parametrize(("prompt", "sent"), [("some words", "some words"), ((7, 8, 9), [7, 8, 9])])
async def test_a_single_prompt_is_no_list_of_prompts(prompt: str | tuple[int, ...], sent: object) -> None:
    """As text or as ids, one prompt is sent as one."""
    server = Server()
    async with httpx.AsyncClient(base_url=URL, transport=server.transport) as client:
        await wire(client).complete([prompt], 5, "salt")

    assert server.asked[0].body["prompt"] == sent


async def test_a_chat_is_sent_as_one() -> None:
    """A message, with logprobs as chats want them."""
    server = Server()
    async with httpx.AsyncClient(base_url=URL, transport=server.transport) as client:
        reply = await wire(client).chat("two words", 3, "salt")

    (sent,) = server.asked
    assert sent.path == CHAT_PATH
    assert sent.body["messages"] == [{"role": "user", "content": "two words"}]
    assert (sent.body["logprobs"], sent.body["top_logprobs"]) == (True, 2)
    assert sent.isolated
    assert len(reply.prompt_ids[0] or ()) == 2
    assert len(reply.choices[0].logprobs or ()) == 3


@pytest.mark.parametrize(
    ("asking", "isolated", "header"),
    [
        (ASKING, True, ("x-determinism-mitigations", "batch_isolation")),
        (ASKING, False, ("x-determinism-mode", "standard")),
        (Asking("scripted", isolated=False), True, ("x-determinism-mode", "standard")),
    ],
)
async def test_a_gateway_is_told_how_to_run_a_request(asking: Asking, isolated: bool, header: tuple[str, str]) -> None:
    """Alone where that is asked for and taken, else in the standard mode; never both, which would contradict."""
    _, headers = await asked(asking, isolated=isolated)

    assert [(name, value) for name, value in headers.items() if name.startswith("x-")] == [header]


@pytest.mark.parametrize(
    ("seed", "seeded", "sent"), [(None, True, None), (7, True, 7), (0, True, 0), (7, False, None), (None, False, None)]
)
async def test_a_seed_is_sent_where_it_is_pinned(seed: int | None, seeded: bool, sent: int | None) -> None:
    """The seed of the run, 0 too; none without one, and none where the sampler is looked at."""
    body, _ = await asked(Asking("scripted", 0.8, seed), seeded=seeded)

    assert body.get("seed") == sent
    assert ("seed" in body) == (sent is not None)
    assert body["temperature"] == 0.8


async def test_a_server_without_logprobs_is_not_asked_for_them() -> None:
    """Neither form asks for logprobs once the server has refused them."""
    server = Server()
    async with httpx.AsyncClient(base_url=URL, transport=server.transport) as client:
        mute = wire(client, Asking("scripted", logprobs=False))
        await mute.complete([(1,)], 2, "a")
        await mute.chat("word", 2, "b")

    assert [{"logprobs", "top_logprobs"} & set(sent.body) for sent in server.asked] == [set(), set()]


# --- what is read ----------------------------------------------------------------------------------------------------


async def test_choices_are_in_the_order_of_the_prompts() -> None:
    """However the server orders them, a choice belongs to the prompt of its index."""
    body = {"choices": [choice(1, token_ids=[5]), choice(0, token_ids=[4])]}
    async with client_of(lambda _request: httpx.Response(200, json=body)) as client:
        reply = await wire(client).complete(["a", "b"], 1, "salt")

    assert [list(each.token_ids or ()) for each in reply.choices] == [[4], [5]]


async def test_what_the_server_says_of_itself_is_kept() -> None:
    """Mode, co-resident peak, replica and posture come from a gateway's headers, cached tokens from the usage."""
    headers = {
        "x-determinism-mode": "custom",
        "x-determinism-coresident-peak": "3",
        "x-determinism-replica": "r-1",
        "x-determinism-posture": "p-9",
    }
    usage = {"completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 128}}
    reply = await one({"choices": [choice()], "usage": usage, "system_fingerprint": "fp"}, headers=headers)

    assert (reply.mode, reply.peak, reply.replica, reply.posture, reply.cached) == ("custom", 3, "r-1", "p-9", 128)


@pytest.mark.parametrize(("told", "posture"), [("fp-1", "fp-1"), (None, None), (5, None)])
async def test_a_stock_engine_tells_its_posture_by_its_fingerprint_alone(told: object, posture: str | None) -> None:
    """Without a gateway the engine's own field counts; what it does not say stays unknown."""
    reply = await one({"choices": [choice()], "system_fingerprint": told})

    assert reply.posture == posture
    assert (reply.mode, reply.peak, reply.replica, reply.cached) == (None, None, None, None)
    assert reply.prompt_ids == (None,)


async def test_an_answer_takes_as_long_as_the_clock_says() -> None:
    """Seconds are those between request and answer by the clock that is given."""
    server = Server()
    async with httpx.AsyncClient(base_url=URL, transport=server.transport) as client:
        before = server.clock()
        reply = await Wire(client, ASKING, PATIENCE, server.clock).complete([(1,)], 8, "salt")

    assert reply.seconds == server.clock() - before > 0


# --- what goes wrong -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "body", "reason"),
    [
        (500, {"error": {"message": "out\nof order"}}, "HTTP 500: out of order"),
        (429, {"error": {"message": "slow down"}}, "rate limited, HTTP 429: slow down"),
        (502, b"<html>\n<b>Bad gateway</b>", "HTTP 502: <html> <b>Bad gateway</b>"),
        (503, b"", "HTTP 503: no reason given"),
        (200, b"not json", "the answer is not 1 choice(s) in OpenAI's shape"),
        (200, [], "the answer is not 1 choice(s) in OpenAI's shape"),
        (200, {"error": {"message": "late"}}, "the answer is not 1 choice(s) in OpenAI's shape"),
        (200, {"choices": []}, "the answer is not 1 choice(s) in OpenAI's shape"),
        (200, {"choices": [choice(0), choice(1)]}, "the answer is not 1 choice(s) in OpenAI's shape"),
        (200, {"choices": [{"index": 0, "text": 5}]}, "the answer is not 1 choice(s) in OpenAI's shape"),
        (200, {"choices": [choice(finish_reason=None)]}, "the answer was cut short"),
        (200, {"choices": [choice(finish_reason="abort")]}, "the answer was cut short"),
    ],
)
async def test_what_is_no_answer_is_trouble_in_one_line(status: int, body: Any, reason: str) -> None:
    """An error, another shape, another number of choices and a cut answer each say what they are."""
    with pytest.raises(Trouble) as caught:
        await one(body, status)

    assert str(caught.value) == caught.value.reason == reason
    assert caught.value.status == (None if status == 200 else status)


async def test_trouble_tells_what_the_server_calls_it() -> None:
    """OpenAI's code is kept, for those who can do without what was refused."""
    body = {"error": {"message": "no", "code": "determinism_unavailable"}}
    with pytest.raises(Trouble) as caught:
        await one(body, 503)

    assert caught.value.code == "determinism_unavailable"


async def attempt(asking: Wire, *, streamed: bool) -> None:
    """A request of either kind that gets no answer."""
    if streamed:
        async with asking.running(["a"], 4, "salt"):
            pytest.fail("no neighbour runs")
    await asking.complete(["a"], 4, "salt")


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (httpx.ConnectError("x"), "connection refused or host unknown"),
        (httpx.ReadTimeout("x"), "no answer in time"),
        (httpx.RemoteProtocolError("x"), "the connection broke (RemoteProtocolError)"),
    ],
)
@pytest.mark.parametrize("streamed", [False, True])
async def test_a_connection_that_fails_is_trouble(error: httpx.HTTPError, reason: str, streamed: bool) -> None:
    """Whether the request is one that is looked at or a neighbour's."""

    def fail(_request: httpx.Request) -> httpx.Response:
        raise error

    async with client_of(fail) as client:
        with pytest.raises(Trouble) as caught:
            await attempt(wire(client), streamed=streamed)

    assert caught.value.reason == reason


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_silent_server_is_waited_for_as_long_as_was_said(streamed: bool) -> None:
    """The patience of one answer, after which the request is given up."""

    async def silent(_request: httpx.Request) -> httpx.Response:
        await anyio.sleep_forever()
        raise AssertionError

    async with client_of(silent) as client:
        with pytest.raises(Trouble, match=r"^no answer within 0 s$"):
            await attempt(wire(client, timeout=0.0), streamed=streamed)


# --- neighbours ------------------------------------------------------------------------------------------------------


class Street:
    """Neighbours' streams, each of which says one piece and then waits until it is closed.

    ``story`` holds what happened in order; at step ``cancel_at`` the ``scope`` is cancelled, and steps are at every
    place where a stream can wait: before it is there, before its piece, and as it is closed.
    """

    def __init__(self, cancel_at: int | None = None, refused: int | None = None) -> None:
        self.scope = anyio.CancelScope()
        self.story: list[str] = []
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[httpx.Headers] = []
        self.running: set[str] = set()
        self.closed: list[str] = []
        self.steps = 0
        self._cancel_at = cancel_at
        self._refused = refused

    @property
    def begun(self) -> list[str]:
        """Neighbours whose answers began, in order."""
        return [event.removeprefix("answer ") for event in self.story if event.startswith("answer ")]

    async def step(self) -> None:
        """A place to wait."""
        self.steps += 1
        if self.steps == self._cancel_at:
            self.scope.cancel()
        await checkpoint()

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        """The beginning of a neighbour's answer."""
        body = json.loads(request.content)
        name = str(body["prompt"])
        self.bodies.append(body)
        self.headers.append(request.headers)
        self.story.append(f"request {name}")
        await self.step()
        if len(self.bodies) == self._refused:
            return refusal(503, "full", "queue_full")
        self.story.append(f"answer {name}")
        return httpx.Response(200, stream=_Stream(self, name))


class _Stream(httpx.AsyncByteStream):
    def __init__(self, street: Street, name: str) -> None:
        self._street, self._name = street, name

    async def __aiter__(self) -> AsyncIterator[bytes]:
        street, name = self._street, self._name
        await street.step()
        street.running.add(name)
        street.story.append(f"token {name}")
        try:
            yield b"data: {}\n\n"
            await anyio.sleep_forever()
        finally:
            street.running.discard(name)

    async def aclose(self) -> None:
        self._street.closed.append(self._name)
        self._street.running.discard(self._name)
        await self._street.step()


async def beside(street: Street, names: list[str], block: Callable[[], Any]) -> None:
    """Neighbours of these names, and a block beside them that may be cancelled."""
    async with client_of(street) as client:
        with street.scope:
            async with wire(client).running(names, 9, "salt"):
                await block()


async def test_neighbours_begin_one_after_the_other() -> None:
    """Each is asked for when the one before has its first token, so that they join the batch in the same order."""
    street = Street()
    await beside(street, ["a", "b", "c"], checkpoint)

    expected = [f"{what} {name}" for name in "abc" for what in ("request", "answer", "token")]
    assert street.story == expected


async def test_neighbours_are_asked_as_any_other_traffic() -> None:
    """Streams in the standard mode, each with a salt of its own, as long as was said."""
    street = Street()
    await beside(street, ["a", "b"], checkpoint)

    assert [body["cache_salt"] for body in street.bodies] == ["salt-0", "salt-1"]
    assert {body["max_tokens"] for body in street.bodies} == {9}
    assert all(body["stream"] and body["ignore_eos"] for body in street.bodies)
    assert [headers.get("x-determinism-mode") for headers in street.headers] == ["standard"] * 2
    assert not any("x-determinism-mitigations" in headers for headers in street.headers)


async def test_neighbours_run_for_the_length_of_the_block() -> None:
    """No stream is closed before the block ends, however long it takes and whoever collects what nobody holds."""
    street = Street()

    async def block() -> None:
        for _ in range(3):
            gc.collect()
            await anyio.wait_all_tasks_blocked()
        assert street.running == {"a", "b", "c"}
        assert street.closed == []

    await beside(street, ["a", "b", "c"], block)

    await anyio.wait_all_tasks_blocked()
    assert street.running == set()
    assert sorted(street.closed) == ["a", "b", "c"]


async def test_neighbours_are_closed_when_the_block_fails() -> None:
    """The block's error comes out as it is, and nobody is left running."""
    street = Street()

    async def block() -> None:
        raise Trouble("the one that joined got no answer")

    with pytest.raises(Trouble, match="the one that joined"):
        await beside(street, ["a", "b"], block)

    assert sorted(street.closed) == ["a", "b"]


async def test_neighbours_are_closed_when_another_is_refused() -> None:
    """The refusal is trouble, the block does not begin, and those who run already are closed."""
    street = Street(refused=3)

    with pytest.raises(Trouble, match=r"^HTTP 503: full$"):
        await beside(street, ["a", "b", "c", "d"], lambda: pytest.fail("not all neighbours run"))

    assert sorted(street.closed) == street.begun == ["a", "b"]


@pytest.mark.parametrize("pieces", [(), (b"",)])
async def test_a_neighbour_that_says_nothing_is_trouble(pieces: tuple[bytes, ...]) -> None:
    """A stream that ends before its first token is no neighbour."""
    async with client_of(lambda _request: httpx.Response(200, stream=Piece(*pieces))) as client:
        with pytest.raises(Trouble, match="held nothing"):
            async with wire(client).running(["a"], 4, "salt"):
                pytest.fail("no neighbour runs")


STEPS = 9
"""Places where three neighbours wait: each when it is asked for, before its token and as it is closed."""


async def test_the_street_has_as_many_steps_as_are_tried() -> None:
    """The next test cancels at each of them."""
    street = Street()
    await beside(street, ["a", "b", "c"], checkpoint)

    assert street.steps == STEPS


@pytest.mark.parametrize("step", range(1, STEPS + 1))
async def test_neighbours_are_closed_wherever_the_run_is_cancelled(step: int) -> None:
    """At any place where anything waits: whoever had begun is closed, and nobody begins after."""
    street = Street(cancel_at=step)
    await beside(street, ["a", "b", "c"], checkpoint)

    await anyio.wait_all_tasks_blocked()
    assert street.scope.cancelled_caught
    assert sorted(street.closed) == street.begun
    assert street.running == set()


async def test_neighbours_are_closed_when_the_block_is_cancelled() -> None:
    """While all of them run and the block waits."""
    street = Street()

    async def block() -> None:
        street.scope.cancel()
        await anyio.sleep_forever()

    await beside(street, ["a", "b", "c"], block)

    assert street.scope.cancelled_caught
    assert sorted(street.closed) == ["a", "b", "c"]
