"""What is found out of a server before the ladder is climbed, and what is said where it does not tell a thing."""

import json
from dataclasses import replace
from typing import Any

import httpx
import pytest

from app.determinism.output import CHAT_PATH, TEXT_PATH
from app.diagnose.discovery import SEED, Found, connect, discover
from app.diagnose.investigation import PROMPTS_USED, Investigation
from app.diagnose.material import LONG_PROMPTS, PARAGRAPH
from app.probe.experiment import NotMeasurable
from tests.support.layered import LayeredEngine
from tests.unit.diagnose.scripted import (
    LIMITED,
    URL,
    Asked,
    Refuse,
    Server,
    refusal,
    without_ids,
    without_logprobs,
)

pytestmark = pytest.mark.anyio

PROMPTS = ("one two three", "four five", "six seven eight nine", "ten", "eleven twelve")
ASKED = Investigation(URL, prompts=PROMPTS)


async def look(server: Server, investigation: Investigation = ASKED) -> Found:
    """What is found of a server."""
    async with connect(investigation, investigation.url, server.transport) as client:
        return await discover(client, investigation, server.clock)


async def refused(server: Server, investigation: Investigation = ASKED) -> str:
    """Why a server cannot be asked: one line."""
    with pytest.raises(NotMeasurable) as caught:
        await look(server, investigation)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def refusing(what: Any, answer: httpx.Response) -> Refuse:
    """Refuses every request of which this is true."""
    return lambda _number, asked: answer if what(asked) else None


def gateway(asked: Asked) -> dict[str, str]:
    """A gateway's word on its answers."""
    return {
        "x-determinism-mode": "custom" if asked.isolated else "standard",
        "x-determinism-replica": "one",
        "x-determinism-posture": "p-1",
        "x-determinism-coresident-peak": "1",
    }


async def test_a_stock_engine_is_found_as_it_is() -> None:
    """Model, context, ids, logprobs and posture; it is no gateway, and so nothing is proven of being alone."""
    found = (await look(Server())).deployment

    assert (found.url, found.model, found.context) == (URL, "scripted", 4096)
    assert (found.exact, found.logprobs, found.unsaid) == (True, True, ())
    assert (found.gateway, found.alone_proven, found.replica, found.posture) == (False, False, None, "scripted-1")


async def test_a_gateway_is_found_by_its_word() -> None:
    """One that says in which mode it answered, and that takes requests that are to run alone."""
    found = (await look(Server(headers=gateway))).deployment

    assert (found.gateway, found.alone_proven, found.replica, found.posture) == (True, True, "one", "p-1")


async def test_a_gateway_that_counts_others_beside_a_request_proves_nothing() -> None:
    """Whatever it took: a co-resident peak above 1 says that the request was not alone."""
    found = (
        await look(Server(headers=lambda asked: gateway(asked) | {"x-determinism-coresident-peak": "2"}))
    ).deployment

    assert (found.gateway, found.alone_proven) == (True, False)


async def test_the_material_is_of_the_servers_own_tokens() -> None:
    """Probes are the prompts as the server rendered them; long prompts have exactly the lengths that are wanted."""
    server = Server()
    material = (await look(server)).material

    told = {
        tuple(asked.body["prompt"])
        for asked in server.asked
        if asked.path == TEXT_PATH and asked.body["max_tokens"] > 1
    }
    assert set(material.probes) <= told
    assert [len(prompt) for prompt in material.longs] == list(LONG_PROMPTS)
    assert material.exact
    # The first token of a text may be one that only begins texts.
    assert material.vocabulary == tuple(1 + sum(map(ord, word)) for word in PARAGRAPH.split()[1:])


async def test_salts_are_never_used_twice() -> None:
    """Every request of the search has its own, and the ladder goes on with further ones."""
    server = Server()
    found = await look(server)

    used = [asked.body["cache_salt"] for asked in server.asked]
    assert len(set(used)) == len(used)
    assert found.salts.fresh() not in used


# --- what cannot be asked at all -------------------------------------------------------------------------------------


async def test_an_unreachable_server_is_named() -> None:
    """The address is in the line."""

    def refuse(_request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    async with connect(ASKED, URL, httpx.MockTransport(refuse)) as client:
        with pytest.raises(NotMeasurable, match=f"^cannot reach {URL}: connection refused"):
            await discover(client, ASKED, lambda: 0.0)


@pytest.mark.parametrize(
    ("models", "said"),
    [
        ((401, {"error": {"message": "no"}}), "refuses the API key (HTTP 401); give --api-key"),
        ((200, {"data": []}), "names no model (HTTP 200)"),
        ((200, {"data": "x"}), "names no model (HTTP 200)"),
        ((503, {"error": {"message": "starting"}}), "names no model (HTTP 503)"),
    ],
)
async def test_a_server_that_names_no_model_is_not_asked(models: tuple[int, Any], said: str) -> None:
    """A refused key, no model, a server that is not ready."""
    server = Server(models=models)

    assert said in await refused(server)
    assert server.asked == []


async def test_an_unknown_model_is_answered_with_those_that_are_served() -> None:
    """Before anything is asked, with the option's name."""
    server = Server(models=(200, {"data": [{"id": "large"}, {"id": "base"}, {"id": 7}]}))
    line = await refused(server, replace(ASKED, model="small"))

    assert line == f"--model: {URL} does not serve 'small'; it serves 7, base, large"
    assert server.asked == []


@pytest.mark.parametrize("named", ["scripted", "scripted@isolated"])
async def test_a_model_may_be_named_with_a_mode(named: str) -> None:
    """What a gateway takes behind the name; the context is the model's."""
    server = Server()
    found = (await look(server, replace(ASKED, model=named))).deployment

    assert (found.model, found.context) == (named, 4096)
    assert {asked.body["model"] for asked in server.asked} == {named}


@pytest.mark.parametrize("models", [(404, {}), (200, {"data": []}), (200, ["x"]), (200, {"data": [{"name": "x"}]})])
async def test_a_named_model_is_asked_where_none_are_listed(models: tuple[int, Any]) -> None:
    """A server without a usable list is no obstacle; its context is then not known."""
    server = Server(models=models)
    found = (await look(server, replace(ASKED, model="named"))).deployment

    assert (found.model, found.context) == ("named", None)


@pytest.mark.parametrize(("context", "fits"), [(6, False), (7, False), (8, True), (4, False)])
async def test_a_context_without_room_for_an_answer_is_said(context: int, fits: bool) -> None:
    """The longest prompt has four tokens, and an answer of fewer than four compares nothing."""
    server = Server(LayeredEngine(frozenset(), 0, context=context))

    if fits:
        assert (await look(server)).deployment.context == context
        assert max(asked.body["max_tokens"] for asked in server.asked if len(asked.prompts[0]) == 4) == 4
    else:
        said = f"the model's context of {context} tokens is too short: a prompt alone has"
        assert (await refused(server)).startswith(said)


async def test_long_prompts_are_those_that_fit_into_the_context() -> None:
    """With room for an answer behind each."""
    found = await look(Server(LayeredEngine(frozenset(), 0, context=300)))

    assert [len(prompt) for prompt in found.material.longs] == [129, 257]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (refusal(LIMITED, "slow down"), "rate limited, HTTP 429: slow down"),
        (refusal(500, "out of order"), "HTTP 500: out of order"),
        (httpx.Response(200, json={"choices": []}), "the answer is not 1 choice(s)"),
    ],
)
@pytest.mark.parametrize("at", [1, 2, 7, 12])
async def test_a_server_without_answers_is_not_measurable(answer: httpx.Response, said: str, at: int) -> None:
    """Wherever in the search it begins; the reason is the server's, and nothing is asked after it."""
    server = Server(refuse=lambda number, _asked: answer if number >= at else None)
    line = await refused(server)

    assert line.startswith(f"{URL} gives no answer that could be compared: {said}")
    assert len(server.asked) == at


# --- what one can do without -----------------------------------------------------------------------------------------

NO_CHAT = [
    refusal(404, "Not Found"),
    refusal(405, "Method Not Allowed"),
    refusal(501, "not implemented"),
    refusal(400, "As of transformers v4.44, the tokenizer does not define a chat template"),
]


@pytest.mark.parametrize("answer", NO_CHAT, ids=lambda answer: str(answer.status_code))
async def test_a_model_without_chat_is_asked_for_completions(answer: httpx.Response) -> None:
    """One chat is refused, and never another asked; everything else is found as it is."""
    server = Server(refuse=refusing(lambda asked: asked.path == CHAT_PATH, answer))
    found = (await look(server)).deployment

    assert [asked.path for asked in server.asked].count(CHAT_PATH) == 1
    assert (found.exact, found.logprobs, found.unsaid) == (True, True, ())


async def test_a_server_without_either_form_is_not_asked_forever() -> None:
    """Where completions are missing too, that is the reason."""
    server = Server(refuse=lambda _number, _asked: refusal(404, "Not Found"))

    assert "HTTP 404: Not Found" in await refused(server)
    assert [asked.path for asked in server.asked] == [CHAT_PATH, TEXT_PATH]


@pytest.mark.parametrize("path", [CHAT_PATH, TEXT_PATH, None])
async def test_refused_logprobs_are_done_without(path: str | None) -> None:
    """In chats, in completions or in both: asked for once, then no more, and said with the server's reason."""
    answer = refusal(400, "logprobs are disabled here")
    server = Server(
        refuse=refusing(lambda asked: "logprobs" in asked.body and path in {None, asked.path}, answer),
        change=lambda asked, document: None if "logprobs" in asked.body else without_logprobs(asked, document),
    )
    found = (await look(server)).deployment

    assert not found.logprobs
    assert found.unsaid == (
        "it gives no logprobs, so only whole tokens are compared: HTTP 400: logprobs are disabled here",
    )
    assert not any("logprobs" in asked.body for asked in server.asked[-8:])


async def test_missing_logprobs_are_said() -> None:
    """A server that takes the member and ignores it, in completions at least, which are what is compared."""
    found = (
        await look(
            Server(
                change=lambda asked, document: without_logprobs(asked, document) if asked.path == TEXT_PATH else None
            )
        )
    ).deployment

    assert not found.logprobs
    assert found.unsaid == ("its answers hold no logprobs, so only whole tokens are compared",)


async def test_missing_token_ids_are_said() -> None:
    """Then prompts and neighbours are text, and lengths are not exact."""
    found = await look(Server(change=without_ids))

    assert not found.deployment.exact
    assert found.deployment.unsaid == (
        "it does not tell token ids, so neighbours of exactly the same length cannot be made",
    )
    assert set(found.material.probes) <= set(PROMPTS)
    assert all(isinstance(prompt, str) for prompt in (*found.material.probes, *found.material.longs))


async def test_ids_of_prompts_alone_make_no_neighbours() -> None:
    """Where only some are told, those of the plain words that neighbours are made of are missing."""

    def change(asked: Asked, document: dict[str, Any]) -> None:
        if asked.body.get("prompt") == PARAGRAPH:
            without_ids(asked, document)

    found = await look(Server(change=change))

    assert not found.deployment.exact
    assert not found.material.exact


@pytest.mark.parametrize("path", [CHAT_PATH, TEXT_PATH, None])
async def test_a_gateway_that_does_not_isolate_is_asked_without(path: str | None) -> None:
    """Its 503 is said with the reason; requests go on in the standard mode, and being alone is an assumption."""
    answer = refusal(503, "no replica has a guard", "determinism_unavailable")
    server = Server(
        refuse=refusing(lambda asked: asked.isolated and path in {None, asked.path}, answer), headers=gateway
    )
    found = await look(server)

    assert (found.deployment.gateway, found.deployment.alone_proven) == (True, False)
    assert found.deployment.unsaid == (
        "the gateway does not run requests alone here: HTTP 503: no replica has a guard",
    )
    assert not found.wire.asking.isolated
    isolated = [asked.isolated for asked in server.asked]
    assert isolated[0]
    assert isolated == sorted(isolated, reverse=True)


async def test_everything_can_be_missing_at_once() -> None:
    """No chat, no isolation, no logprobs, no ids: what is left is asked, and each thing said once."""

    def refuse(_number: int, asked: Asked) -> httpx.Response | None:
        if asked.isolated:
            return refusal(503, "no guard", "determinism_unavailable")
        if "logprobs" in asked.body:
            return refusal(400, "no logprobs")
        return refusal(404, "no chat") if asked.path == CHAT_PATH else None

    def change(asked: Asked, document: dict[str, Any]) -> None:
        without_ids(asked, document)
        without_logprobs(asked, document)

    found = (await look(Server(refuse=refuse, change=change))).deployment

    assert (found.exact, found.logprobs, found.alone_proven) == (False, False, False)
    assert len(found.unsaid) == len(set(found.unsaid)) == 3


# --- what is chosen and timed ----------------------------------------------------------------------------------------


async def test_the_prompts_with_the_closest_choices_are_asked() -> None:
    """Of all that were looked at, those whose answers came nearest to ties, most of them first."""
    close = {"ten": 5, "four five": 3, "eleven twelve": 2, "one two three": 1, "six seven eight nine": 0}
    lengths = {tuple(1 + sum(map(ord, word)) for word in text.split()): count for text, count in close.items()}

    def change(asked: Asked, document: dict[str, Any]) -> None:
        (prompt,) = asked.prompts
        if asked.path == TEXT_PATH and tuple(prompt) in lengths:
            tops = document["choices"][0]["logprobs"]["top_logprobs"]
            for place, top in enumerate(tops):
                first, second = top
                top[second] = top[first] - (0.05 if place < lengths[tuple(prompt)] else 2.0)

    found = await look(Server(change=change))

    assert found.deployment.prompts == tuple(sorted(close, key=lambda text: -close[text])[:PROMPTS_USED])
    ids = [next(ids for ids, count in lengths.items() if count == close[text]) for text in found.deployment.prompts]
    assert list(found.material.probes) == ids


async def test_fewer_prompts_than_are_used_are_all_asked() -> None:
    """One prompt is enough."""
    found = await look(Server(), replace(ASKED, prompts=("only this",)))

    assert found.deployment.prompts == ("only this",)
    assert len(found.material.longs) == len(LONG_PROMPTS)


async def test_the_first_request_is_not_timed() -> None:
    """What a server prepares at its first request, however long, is no part of how long a token takes."""
    slow, quick = Server(), Server()

    async def prepare(number: int, _asked: Asked) -> None:
        if number == 1:
            slow.engine.now += 1000.0

    slow.hold = prepare
    seconds = [(await look(server)).deployment.token_seconds for server in (slow, quick)]

    assert seconds[0] == pytest.approx(seconds[1])
    assert 0 < seconds[0] < 1


@pytest.mark.parametrize(
    ("temperature", "seed", "sent"), [(0.0, None, None), (0.8, None, SEED), (0.8, 7, 7), (0.0, 7, 7)]
)
async def test_a_seed_is_pinned_where_something_is_sampled(
    temperature: float, seed: int | None, sent: int | None
) -> None:
    """The caller's, else one of ours; without sampling only the caller's."""
    server = Server()
    await look(server, replace(ASKED, temperature=temperature, seed=seed))

    assert {asked.body.get("seed") for asked in server.asked} == {sent}
    assert {asked.body["temperature"] for asked in server.asked} == {temperature}


async def test_the_key_goes_to_the_server() -> None:
    """With the list of models and with every request."""
    keys: list[str | None] = []
    server = Server()

    async def handle(request: httpx.Request) -> httpx.Response:
        keys.append(request.headers.get("authorization"))
        return await server.handle(request)

    asked = replace(ASKED, api_key="secret")
    async with connect(asked, URL, httpx.MockTransport(handle)) as client:
        await discover(client, asked, server.clock)

    assert set(keys) == {"Bearer secret"}
    assert "secret" not in json.dumps([sent.body for sent in server.asked])
