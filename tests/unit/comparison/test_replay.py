"""Requests sent again: what goes out, in which order lines come back, and what becomes of failures and Ctrl-C."""

import json
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import httpx
import pytest

from app.comparison.entry import NotComparable
from app.comparison.jsonl import read_lines
from app.comparison.replay import Replay, Replayer, Resent
from app.determinism.evidence import Evidence
from app.determinism.mode import Mode
from tests.unit.comparison.made import answer, line, read, request

pytestmark = pytest.mark.anyio

URL = "http://gateway"
Handler = Callable[[httpx.Request], Awaitable[httpx.Response]]


class Site:
    """A server without a socket; it remembers what it was sent."""

    def __init__(self, handler: Handler | None = None) -> None:
        self.seen: list[httpx.Request] = []
        self._handler = handler

    @property
    def transport(self) -> httpx.MockTransport:
        """The way to it."""
        return httpx.MockTransport(self._answer)

    async def _answer(self, asked: httpx.Request) -> httpx.Response:
        if asked.method == "GET":
            return httpx.Response(200, json={"data": []})
        self.seen.append(asked)
        if self._handler is not None:
            return await self._handler(asked)
        return httpx.Response(200, json=answer("fine"), headers={"x-determinism-mode": "isolated", "server": "x"})


async def replayed(site: Site, *lines: dict[str, Any], **options: Any) -> list[dict[str, Any]]:
    """The lines of a replay as JSON; each of them must be readable as a file's."""
    found: list[Resent] = []
    replay = Replay(URL, **options)
    await Replayer(replay, read(*lines), "a.jsonl", transport=site.transport).run(found.append)
    assert len(list(read_lines([resent.line for resent in found], "again"))) == len(found)
    assert not any(b"\n" in resent.line for resent in found)
    return [json.loads(resent.line) for resent in found]


def sent(asked: httpx.Request) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(asked.content)
    return body


async def test_a_request_goes_out_in_the_mode_and_comes_back_with_its_facts() -> None:
    """Headers carry mode and run; the line has the request as sent, the new answer, and what the server said."""
    site = Site()
    (found,) = await replayed(
        site, line("q", answer("old"), custom_id="7"), mode=Mode.ISOLATED, run="r1", evidence=Evidence.NONE
    )

    assert site.seen[0].headers["x-determinism-mode"] == "isolated"
    assert site.seen[0].headers["x-determinism-run"] == "r1"
    assert sent(site.seen[0]) == request("q") == found["request"]
    assert (found["path"], found["custom_id"]) == ("/v1/chat/completions", "7")
    assert found["answer"] == answer("fine")
    assert found["determinism"] == {"mode": "isolated"}


async def test_without_a_mode_a_request_speaks_for_itself() -> None:
    """No header is added, and member and suffix stay."""
    site = Site()
    asked = {**line("q", None), "request": request("q", determinism="seeded", model="m@seeded")}
    await replayed(site, asked, evidence=Evidence.NONE)

    assert not [name for name in site.seen[0].headers if name.startswith("x-determinism")]
    assert sent(site.seen[0]) == asked["request"]


async def test_what_would_contradict_the_replay_is_left_out() -> None:
    """A stream becomes an answer in one piece, and the mode asked for now replaces the one asked for then."""
    site = Site()
    asked = request("q", stream=True, stream_options={"include_usage": True}, determinism="seeded", model="m@seeded")
    await replayed(site, {**line("q", None), "request": asked}, mode=Mode.STANDARD, evidence=Evidence.NONE)

    assert sent(site.seen[0]) == request("q")


async def test_evidence_and_model_can_be_chosen() -> None:
    """Token ids and logprobs are asked for by default, and another model may answer."""
    site = Site()
    await replayed(site, line("q", None), model="other")

    assert sent(site.seen[0]) == request("q", model="other", return_token_ids=True, logprobs=True, top_logprobs=2)


async def test_every_other_byte_stays() -> None:
    """Numbers and escapes go out as the file has them."""
    site = Site()
    body = '{"temperature": 0.10, "seed": 18446744073709551615,\\u0020"prompt": "\\u0041"}'.replace("\\u0020", " ")
    records = list(read_lines([f'{{"path": "/v1/completions", "request": {body}}}'.encode()], "a"))
    await Replayer(Replay(URL, evidence=Evidence.NONE), records, "a", transport=site.transport).run(lambda _: None)

    assert site.seen[0].content == body.encode()


async def test_lines_come_in_the_files_order() -> None:
    """Whatever the order of the answers: here the first one is the last to come."""
    released, others = anyio.Event(), anyio.Event()

    async def handler(asked: httpx.Request) -> httpx.Response:
        name = sent(asked)["messages"][0]["content"]
        if name == "0":
            await released.wait()
        if name == "5":
            released.set()
            await others.wait()
        others.set() if name == "0" else None
        return httpx.Response(200, json=answer(name))

    found = await replayed(Site(handler), *(line(str(n), None) for n in range(6)), concurrency=2)
    assert [each["answer"]["choices"][0]["message"]["content"] for each in found] == list("012345")


@pytest.mark.parametrize(
    ("response", "said"),
    [
        (httpx.Response(503, json={"error": {"message": "no replica"}}), "HTTP 503: no replica"),
        (httpx.Response(200, text="<html>"), "the answer is not in OpenAI's shape"),
        (httpx.ReadTimeout("late"), "no answer in time"),
        (httpx.RemoteProtocolError("gone"), "the connection broke (RemoteProtocolError)"),
    ],
)
async def test_a_failure_is_a_line(response: httpx.Response | httpx.HTTPError, said: str) -> None:
    """It says why there is no answer, in its place; the other requests are not held up."""

    async def handler(asked: httpx.Request) -> httpx.Response:
        if sent(asked)["messages"][0]["content"] != "bad":
            return httpx.Response(200, json=answer("fine"))
        if isinstance(response, httpx.HTTPError):
            raise response
        return response

    found = await replayed(Site(handler), line("a", None), line("bad", None), line("b", None))

    assert [each.get("error") for each in found] == [None, said, None]
    assert ["answer" in each for each in found] == [True, False, True]


async def test_an_answer_of_several_lines_becomes_one() -> None:
    """A server may indent its JSON; what it says stays the same."""

    async def handler(_: httpx.Request) -> httpx.Response:
        return httpx.Response(200, content=json.dumps(answer("two\nlines"), indent=2) + "\r\n")

    (found,) = await replayed(Site(handler), line("q", None))
    assert found["answer"] == answer("two\nlines")


async def test_what_was_answered_outlives_a_cancellation() -> None:
    """Lines that wait for an earlier one are given all the same, and nothing is given of what was under way."""
    stuck = anyio.Event()

    async def handler(asked: httpx.Request) -> httpx.Response:
        name = sent(asked)["messages"][0]["content"]
        if name == "0":
            await anyio.sleep_forever()
        if name == "3":
            stuck.set()
            await anyio.sleep_forever()
        return httpx.Response(200, json=answer(name))

    found: list[Resent] = []
    replayer = Replayer(
        Replay(URL, concurrency=2),
        read(*(line(str(n), None) for n in range(6))),
        "a",
        transport=Site(handler).transport,
    )
    async with anyio.create_task_group() as group:
        group.start_soon(replayer.run, found.append)
        await stuck.wait()
        group.cancel_scope.cancel()

    assert [json.loads(each.line)["request"]["messages"][0]["content"] for each in found] == ["1", "2"]


async def test_a_request_that_cannot_be_sent_is_named_before_any_is() -> None:
    """A line without a request, or with a member that is there twice, is named by file and line."""
    site = Site()
    result = {"custom_id": "1", "response": {"body": answer("a")}}
    with pytest.raises(NotComparable, match=r"a\.jsonl:2: there is no request to send"):
        await replayed(site, line("q", None), result)
    twice = list(read_lines([b'{"path": "/v1/completions", "request": {"stream": true, "stream": false}}'], "b"))
    with pytest.raises(NotComparable, match="b:1: 'stream' is given more than once"):
        Replayer(Replay(URL), twice, "b")

    assert site.seen == []


@pytest.mark.parametrize(
    ("failure", "said"),
    [(httpx.ConnectError("x"), "cannot reach http://gateway"), (httpx.Response(401), "refuses the API key")],
)
async def test_a_server_that_cannot_be_asked_is_named(failure: httpx.Response | httpx.HTTPError, said: str) -> None:
    """Before anything is sent, so that a wrong address is no file full of errors."""

    def handler(_: httpx.Request) -> httpx.Response:
        if isinstance(failure, httpx.HTTPError):
            raise failure
        return failure

    replayer = Replayer(Replay(URL), read(line("q", None)), "a", transport=httpx.MockTransport(handler))
    with pytest.raises(NotComparable, match=said):
        await replayer.run(lambda _: pytest.fail("a line"))
