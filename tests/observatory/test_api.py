"""The observatory over HTTP: who is let in, what is told, and how it is refused."""

import base64
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.api.observatory import told_outputs
from app.determinism.statistics import rate_text
from app.observation.store import Specimen
from app.observatory import read_assets
from tests.support.forking import FORK, GUARD_KEY, ForkingVllm, address, ask, words
from tests.support.running import RunningGateway, read_answer, running_gateway
from tests.support.scripted import ScriptedVllm

pytestmark = pytest.mark.anyio

KEY = "sesame"


def basic(password: str) -> str:
    return "Basic " + base64.b64encode(f"anybody:{password}".encode()).decode()


async def get(client: httpx.AsyncClient, gateway: RunningGateway, path: str = "", **headers: str) -> httpx.Response:
    return await client.get(address(gateway, path), headers=headers)


def refusal(answer: httpx.Response) -> dict[str, Any]:
    error = answer.json()["error"]
    assert {"message", "type", "param", "code"} == error.keys()
    return dict(error)


@pytest.mark.parametrize(
    "headers",
    [
        {"x-forwarded-for": "203.0.113.9"},
        {"X-Forwarded-Proto": "https"},
        {"x-real-ip": "203.0.113.9"},
        {"cf-connecting-ip": "203.0.113.9"},
        {"true-client-ip": "203.0.113.9"},
        {"forwarded": "for=203.0.113.9"},
        {"via": "1.1 proxy"},
        {"host": ""},
    ],
)
async def test_without_a_key_a_proxy_on_this_machine_is_refused(
    client: httpx.AsyncClient, gateway: RunningGateway, headers: dict[str, str]
) -> None:
    """It speaks for people elsewhere, whatever name it calls the gateway by."""
    assert (await get(client, gateway, "/api/state")).status_code == 200
    answer = await client.get(address(gateway, "/api/state"), headers=headers)
    assert (answer.status_code, refusal(answer)["code"]) == (403, "forbidden")


@pytest.mark.parametrize(("version", "status"), [("1.0", 403), ("1.1", 200)])
async def test_without_a_key_the_http_of_a_plain_nginx_is_refused(
    version: str, status: int, gateway: RunningGateway
) -> None:
    """It asks in HTTP/1.0, calls the gateway by its address, and adds no header that tells of it."""
    async with gateway.connection() as (reader, writer):
        host = f"Host: 127.0.0.1:{gateway.port}"
        writer.write(f"GET /observatory/api/state HTTP/{version}\r\n{host}\r\nConnection: close\r\n\r\n".encode())
        answer = await read_answer(reader)
    assert answer.status == status


@pytest.mark.parametrize("path", ["", "/main.js", "/api/state", "/api/cohorts", "/api/runs", "/api/timeline"])
async def test_everything_needs_the_key(
    path: str, client: httpx.AsyncClient, upstream: ScriptedVllm, tmp_path: Path
) -> None:
    """Without the key or with another one a browser is told to ask for it; bearer and basic both carry it."""
    async with running_gateway(tmp_path, upstream.url, ledger=True, observatory_key=KEY) as gateway:
        refused = [
            await get(client, gateway, path),
            await get(client, gateway, path, authorization="Bearer wrong"),
            await get(client, gateway, path, authorization=basic("wrong")),
            await get(client, gateway, path, authorization="Basic no base64"),
        ]
        allowed = [
            await get(client, gateway, path, authorization=f"Bearer {KEY}"),
            await get(client, gateway, path, authorization=basic(KEY)),
        ]

    assert {401} == {answer.status_code for answer in refused}
    assert all(answer.headers["www-authenticate"].startswith('Basic realm="') for answer in refused)
    assert all(KEY not in answer.text for answer in refused)
    assert {200} == {answer.status_code for answer in allowed}


async def test_a_key_in_any_script_is_the_key(
    client: httpx.AsyncClient, upstream: ScriptedVllm, tmp_path: Path
) -> None:
    """The bytes of a bearer token are compared, so a key outside ASCII works as it is sent."""
    key = "schlüssel-鍵"
    async with running_gateway(tmp_path, upstream.url, observatory_key=key) as gateway:
        allowed = await client.get(
            address(gateway, "/api/state"), headers=[(b"authorization", b"Bearer " + key.encode())]
        )
        refused = await client.get(address(gateway, "/api/state"), headers=[(b"authorization", b"Bearer \xfc")])
    assert (allowed.status_code, refused.status_code) == (200, 401)


def test_a_cohort_tells_the_texts_of_a_pair_and_of_few_others() -> None:
    """However long they are, and with a word where a text is kept and left out."""
    large = "x" * 60_000
    specimens = [(Specimen(f"o-{n}", "r", "r", float(n), text=None if n == 1 else large), n) for n in range(64)]

    def told(*arguments: str) -> set[str]:
        outputs = told_outputs(specimens, *arguments)
        assert [(each["digest"], each["seen"]) for each in outputs] == [(f"o-{n}", n) for n in range(64)]
        assert all((each["text"] is None) == (each["text_left_out"] or each["digest"] == "o-1") for each in outputs)
        return {each["digest"] for each in outputs if each["text"] is not None}

    assert told("o-0", "o-63") == {"o-0", "o-63", "o-2", "o-3", "o-4", "o-5"}
    assert told("o-7", "o-9") == {"o-7", "o-9", "o-0", "o-2", "o-3", "o-4"}
    assert told("o-2", "o-2") == told("o-2", "o-nowhere") == told("o-2") == {"o-0", "o-2", "o-3", "o-4", "o-5", "o-6"}
    assert told("o-gone", "o-40") == {"o-40", "o-0", "o-2", "o-3", "o-4"}
    giant = [(replace(each, text="x" * 2**20), seen) for each, seen in specimens[:3]]
    assert [each["text_left_out"] for each in told_outputs(giant, "o-0", "o-2")] == [False, True, False]
    assert told_outputs([], "o-0", "o-2") == []


async def test_without_a_key_a_public_gateway_shows_nothing(
    client: httpx.AsyncClient, upstream: ScriptedVllm, tmp_path: Path
) -> None:
    """Where others could reach it, the page is refused and says what to set."""
    async with running_gateway(tmp_path, upstream.url, host="0.0.0.0") as gateway:  # noqa: S104 - the setting under test
        answer = await get(client, gateway, "/api/state")

    assert answer.status_code == 403
    assert "REPRISE_OBSERVATORY_KEY" in refusal(answer)["message"]


async def test_without_a_key_a_foreign_name_is_refused(client: httpx.AsyncClient, gateway: RunningGateway) -> None:
    """A hostile page that points its own name at this machine reads nothing."""
    foreign = await get(client, gateway, "/api/state", host="evil.example")
    local = [await get(client, gateway, "/api/state", host=name) for name in ("localhost:1", "127.0.0.1", "[::1]:80")]

    assert foreign.status_code == 403
    assert [answer.status_code for answer in local] == [200, 200, 200]


@pytest.mark.parametrize("path", ["", "/main.js", "/observatory.css", "/icon.svg", "/api/state"])
async def test_answers_forbid_what_the_page_does_not_need(
    path: str, client: httpx.AsyncClient, gateway: RunningGateway
) -> None:
    """No inline script, no other host, no frame, no sniffing, nothing in a cache."""
    answer = await get(client, gateway, path)

    policy = answer.headers["content-security-policy"]
    assert answer.status_code == 200
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert not re.search(r"unsafe|http|\*", policy)
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["cache-control"] == "no-store"


@pytest.mark.parametrize("name", ["nothing.js", "__init__.py", "..%2f__init__.py", "%2e%2e/pyproject.toml"])
async def test_what_is_no_file_of_the_page_is_not_there(
    name: str, client: httpx.AsyncClient, gateway: RunningGateway
) -> None:
    """Only the page's own files are served, whatever the path tries."""
    answer = await get(client, gateway, f"/{name}")

    assert answer.status_code == 404
    assert "There is no path" in refusal(answer)["message"]


def test_the_page_is_whole_and_keeps_to_itself() -> None:
    """Every file that a file of the page names is served; none names another host, or holds script or style inline."""
    assets = {name: content.decode() for name, (_, content) in read_assets().items()}
    imported = {name for text in assets.values() for name in re.findall(r'from "\./([^"]+)"', text)}
    linked = set(re.findall(r'"observatory/([^"]+)"', assets["index.html"]))
    hosts = {url for text in assets.values() for url in re.findall(r"https?://[^\s\"')]+", text)}

    assert {"main.js", "observatory.css", "icon.svg"} <= linked
    assert imported | linked <= assets.keys()
    assert assets.keys() - imported - linked == {"index.html"}
    assert hosts == {"http://www.w3.org/2000/svg"}
    assert not re.search(r"<style|\sstyle=|\son\w+=|<script(?![^>]* src=)", assets["index.html"])
    assert not [
        name for name, text in assets.items() if re.search(r"innerHTML|outerHTML|insertAdjacentHTML|eval\(", text)
    ]


@pytest.mark.parametrize("name", sorted(name for name in read_assets() if name.endswith((".js", ".css"))))
def test_a_file_of_the_page_fits_into_a_reader(name: str) -> None:
    """No script or style sheet has more than 400 lines, as no module has."""
    assert len(read_assets()[name][1].splitlines()) <= 400


@pytest.mark.parametrize(
    ("query", "name"),
    [
        ("cohorts?limit=0", "limit"),
        ("cohorts?limit=501", "limit"),
        ("cohorts?before=yesterday", "before"),
        ("cohorts?diverged=perhaps", "diverged"),
        ("cohorts?origin=nobody", "origin"),
        ("timeline?since=x", "since"),
        ("runs/evening?after=-1", "after"),
        ("runs?limit=0", "limit"),
        ("runs?limit=501", "limit"),
        ("admissions/any?after=-1", "after"),
        ("runs/evening?after=99999999999999999999", "after"),
        ("cohorts?before=nan", "before"),
        ("timeline?since=inf", "since"),
    ],
)
async def test_a_bad_query_names_its_member(
    query: str, name: str, client: httpx.AsyncClient, gateway: RunningGateway
) -> None:
    """A value that cannot be is a 400 in OpenAI's shape."""
    answer = await get(client, gateway, f"/api/{query}")

    assert answer.status_code == 400
    assert refusal(answer)["param"] == name


@pytest.mark.parametrize("path", ["cohorts", "cohorts/k/standard/p", "runs", "runs/evening"])
async def test_a_ledger_that_is_away_is_said(path: str, client: httpx.AsyncClient, gateway: RunningGateway) -> None:
    """What would be read from it is a 503 with the reason, and everything else is answered."""
    answer = await get(client, gateway, f"/api/{path}")
    state = await get(client, gateway, "/api/state")

    assert answer.status_code == 503
    assert "The ledger cannot be read" in refusal(answer)["message"]
    assert state.status_code == 200


async def test_state_sums_over_origins_with_a_bound(client: httpx.AsyncClient, observed: RunningGateway) -> None:
    """Each mode has its figures by origin and over all, with the sentence, the suspects and the margins."""
    await get(client, observed, "/api/cohorts")  # the recorder has then seen everything before it
    state = (await get(client, observed, "/api/state")).json()

    by = {(each["origin"], each["mode"]): each for each in state["modes"]}
    standard, isolated = by["all", "standard"], by["all", "isolated"]
    assert {("client", "standard"), ("client", "isolated"), ("all", "standard"), ("all", "isolated")} == by.keys()
    assert {**by["client", "standard"], "origin": "all"} == standard
    assert (standard["matched"], standard["diverged"]) == (2, 2)
    assert {cause: count for cause, count in standard["causes"].items() if count} == {"co_batched": 2}
    assert {margin: count for margin, count in standard["margins"].items() if count} == {"tie": 1, "clear": 1}
    assert rate_text(0, 4) == isolated["sentence"]
    assert "isolated" in state["deterministic_modes"]
    assert state["ledger"]["written"] == 11
    assert state["ledger"]["dropped"] == {}


async def test_what_was_compared_lately_is_told_to_whoever_asks(
    client: httpx.AsyncClient, observed: RunningGateway
) -> None:
    """From the gateway's own memory, back to its start where that is not long ago."""
    await get(client, observed, "/api/cohorts")  # as above
    states = [(await get(client, observed, "/api/state")).json() for _ in range(2)]

    for state in states:
        by = {(each["origin"], each["mode"]): each for each in state["recent"]["modes"]}
        assert (by["all", "standard"]["compared"], by["all", "standard"]["diverged"]) == (4, 2)
        assert (by["client", "isolated"]["compared"], by["client", "isolated"]["diverged"]) == (4, 0)
        assert state["recent"]["since"] == state["started"] < state["recent"]["until"]
        assert state["deterministic"]["client"]["sentence"] == rate_text(0, 4)
        assert state["canaries"] is None


async def test_cohorts_are_listed_by_origin(client: httpx.AsyncClient, forking: ForkingVllm, tmp_path: Path) -> None:
    """Those with a distinct answer of it; and it is said among how many they were looked for."""
    async with running_gateway(tmp_path, forking.url, ledger=True, guard_key=GUARD_KEY, shadow_rate=1.0) as gateway:
        forking.script.extend([words("one"), words("two", peak=2)])
        forking.script.popleft()
        await ask(gateway, "once")
        while (await get(client, gateway, "/api/cohorts?diverged=true")).json()["cohorts"] == []:
            pass
        listed = {
            origin: (await get(client, gateway, f"/api/cohorts?origin={origin}")).json()
            for origin in ("client", "shadow", "canary")
        }

    assert {origin: len(told["cohorts"]) for origin, told in listed.items()} == {"client": 1, "shadow": 1, "canary": 0}
    assert listed["shadow"]["cohorts"][0]["origins"] == ["client", "shadow"]
    assert {told["searched"] for told in listed.values()} == {1}


async def test_whether_a_receipt_can_be_had_is_told(
    client: httpx.AsyncClient, forking: ForkingVllm, tmp_path: Path
) -> None:
    """Of an answer of this process it can while it is among the last; of one before it cannot, and the 404 says so."""
    options: dict[str, Any] = {"ledger": True, "guard_key": GUARD_KEY, "receipts": 1}
    async with running_gateway(tmp_path, forking.url, **options) as gateway:
        for _ in range(2):
            await ask(gateway, "be brief", x_determinism_run="short")
        fresh = (await get(client, gateway, "/api/runs/short")).json()["answers"]
    async with running_gateway(tmp_path, forking.url, **options) as gateway:
        stale = (await get(client, gateway, "/api/runs/short")).json()["answers"]
        id_ = stale[1]["request_id"]
        missing = await client.get(f"http://127.0.0.1:{gateway.port}/v1/determinism/receipts/{id_}")

    assert [each["receipt"] for each in fresh] == [False, True]
    assert [each["receipt"] for each in stale] == [False, False]
    assert missing.status_code == 404
    assert "was answered before this gateway started" in refusal(missing)["message"]


async def test_a_cohort_is_told_with_its_circumstances(client: httpx.AsyncClient, observed: RunningGateway) -> None:
    """Its outputs come with fork, margin, texts and what was so on each side."""
    listed = (await get(client, observed, "/api/cohorts?diverged=true&mode=standard")).json()["cohorts"]
    found = next(each for each in listed if each["observed"] == 4)["id"]
    cohort = (await get(client, observed, f"/api/cohorts/{found['key']}/{found['mode']}/{found['posture']}")).json()

    reference, other = cohort["outputs"]
    assert cohort["reference"] == reference["digest"]
    assert (reference["seen"], other["seen"]) == (3, 1)
    assert (reference["receipt"], other["receipt"]) == (True, True)
    assert (other["fork_tokens"], other["margin"], other["cause"]) == (FORK, 0.0625, "co_batched")
    assert (reference["coresident_peak"], reference["cached_tokens"]) == (1, 0)
    assert (other["coresident_peak"], other["cached_tokens"]) == (8, 48)


async def test_the_runs_that_were_answered_last_are_listed(
    client: httpx.AsyncClient, forking: ForkingVllm, observed: RunningGateway
) -> None:
    """At most 200 of them, or as many as are asked for."""
    del forking
    for number in range(205):
        await ask(observed, "name me", **{"x-determinism-run": f"run-{number}"})
    every = (await get(client, observed, "/api/runs")).json()["runs"]
    few = (await get(client, observed, "/api/runs?limit=2")).json()["runs"]

    assert [each["label"] for each in every] == [f"run-{number}" for number in range(204, 4, -1)]
    assert few == [{"label": "run-204", "answers": 1}, {"label": "run-203", "answers": 1}]


async def test_an_unknown_cohort_and_replica_are_not_found(client: httpx.AsyncClient, observed: RunningGateway) -> None:
    """A 404 says which part of the path it was."""
    cohort = await get(client, observed, "/api/cohorts/k/standard/p")
    replica = await get(client, observed, "/api/admissions/elsewhere:1")

    assert (cohort.status_code, refusal(cohort)["param"]) == (404, "key")
    assert (replica.status_code, refusal(replica)["param"]) == (404, "replica")


async def test_exclusive_admissions_can_be_asked_for_alone(
    client: httpx.AsyncClient, forking: ForkingVllm, observed: RunningGateway
) -> None:
    """A page that draws exclusive phases is not sent the thousands of shared ones between them."""
    for admission in ("shared", "exclusive", "shared"):
        forking.phase(10.0, 11.0, 12.0, admission=admission)
    name = forking.url.removeprefix("http://")
    every = (await get(client, observed, f"/api/admissions/{name}")).json()
    alone = (await get(client, observed, f"/api/admissions/{name}?exclusive=true")).json()

    assert len(every["admissions"]) == 3
    assert [every["admissions"][1]] == alone["admissions"]
    assert {row["receipt"] for row in every["admissions"]} == {False}
    assert every["next"] == alone["next"]


async def test_a_replica_without_guard_has_no_log(
    client: httpx.AsyncClient, gateway: RunningGateway, upstream: ScriptedVllm
) -> None:
    """What cannot be asked is said to be so, never shown as empty."""
    answer = await get(client, gateway, f"/api/admissions/{upstream.url.removeprefix('http://')}")

    assert answer.status_code == 503
    assert "cannot be asked" in refusal(answer)["message"]
