"""What is told about verified answers: refusals, headers, comments, receipts, metrics, cohorts and plans."""

import asyncio
import json
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from pydantic import ValidationError

from app import __version__
from app.main import Application, create_app
from app.settings import Settings
from tests.support.running import RunningGateway
from tests.support.scripted import ScriptedVllm, guarded
from tests.support.verifying import (
    BLOCK,
    GUARD_KEY,
    LENGTH,
    MOST,
    VOCABULARY,
    WINDOW,
    Verifying,
    ask,
    chat,
    comment,
    path_of,
    reference,
    said,
    text,
    verified_site,
    verifying_gateway,
)

pytestmark = pytest.mark.anyio


REFUSED: tuple[tuple[dict[str, Any], str], ...] = (
    (chat(temperature=0.7), "temperature"),
    (chat(temperature="0"), "temperature"),
    (chat(n=2), "n"),
    (chat(repetition_penalty=1.1), "repetition_penalty"),
    (chat(presence_penalty=0.5), "presence_penalty"),
    (chat(frequency_penalty=0.5), "frequency_penalty"),
    (chat(logit_bias={"1": 5}), "logit_bias"),
    (chat(bad_words=["x"]), "bad_words"),
    (chat(tools=[{"type": "function", "function": {"name": "f"}}]), "tools"),
    (chat(response_format={"type": "json_object"}), "response_format"),
    (chat(structured_outputs={"regex": "a"}), "structured_outputs"),
    (chat(echo=True), "echo"),
    (chat(prompt_logprobs=1), "prompt_logprobs"),
    (chat(logprobs=True, top_logprobs=MOST + 1), "top_logprobs"),
    (chat(top_logprobs=2), "top_logprobs"),
    (chat(stream_options={"include_usage": True}), "stream_options"),
    (chat(max_tokens=LENGTH + 1), "max_tokens"),
    (chat(max_tokens=4, min_tokens=5), "min_tokens"),
    (chat(stop=["a", "b", "c", "d", "e"]), "stop"),
    (chat(stop_token_ids=[VOCABULARY]), "stop_token_ids"),
    (chat(stop_token_ids=list(range(MOST)), min_tokens=1), "stop_token_ids"),
    (chat("x" * LENGTH), "input_tokens"),
    (chat(cache_salt=5), "cache_salt"),
    (chat(messages=[]), "messages"),
    (text() | {"prompt": ["a", "b"]}, "prompt"),
    (text([1, VOCABULARY]), "prompt"),
    (text(""), "prompt"),
    (text([3] * LENGTH), "input_tokens"),
    (text(logprobs=MOST + 1), "logprobs"),
    (text(suffix="x"), "suffix"),
    (chat(determinism={"mode": "verified", "window": 0}), "determinism.window"),
    (chat(determinism={"mode": "verified", "window": 1025}), "determinism.window"),
    (chat(determinism={"mode": "isolated", "window": 8}), "determinism.window"),
)


@pytest.mark.parametrize(("members", "param"), REFUSED, ids=lambda one: one if isinstance(one, str) else "")
@pytest.mark.parametrize("stream", [False, True])
async def test_what_cannot_be_honoured_is_refused_by_name(
    verifier: Verifying, site: RunningGateway, members: dict[str, Any], param: str, stream: bool
) -> None:
    """A clear 400 before anything is drafted or scored."""
    answer = await site.post(
        members | ({"stream": True} if stream and param != "stream_options" else {}), path_of(members)
    )
    assert (answer.status, answer.error["type"], answer.error["param"]) == (400, "invalid_request_error", param)
    assert not verifier.of("draft")
    assert not verifier.of("pass")


@pytest.mark.parametrize(
    ("facts", "members", "status", "param", "words"),
    [
        ({"defaults": {"repetition_penalty": 1.1}}, chat(), 400, "repetition_penalty", "generation config"),
        ({"defaults": {"temperature": 0.6}}, chat(temperature=None), 400, "temperature", "generation config"),
        ({}, chat(temperature=None), 400, "temperature", "vLLM's default"),
        ({"reasoning_parser": "qwen3"}, chat(), 400, "determinism", "reasoning parser"),
        ({"tool_parser": "hermes"}, chat(), 400, "determinism", "tool parser"),
        ({"harmony": True}, chat(), 400, "determinism", "Harmony"),
        ({"logits_processors": True}, text(), 503, "determinism", "custom logits processors"),
        ({"multimodal": True}, text(), 503, "determinism", "multimodal"),
        ({"speculation": True}, text(), 503, "determinism", "speculates"),
        ({"logprobs_mode": "raw_logits"}, text(), 503, "determinism", "raw_logits"),
        ({"vocabulary": None}, text(), 503, "determinism", "vocabulary"),
    ],
)
async def test_what_the_model_brings_is_refused_too(
    tmp_path: Path, facts: dict[str, Any], members: dict[str, Any], status: int, param: str, words: str
) -> None:
    """Its own sampling defaults and parsers name the member that mends it; what is wrong or unknown is a 503."""
    async with verified_site(tmp_path, **facts) as (server, gateway):
        answer = await gateway.post(members, path_of(members))
        assert (answer.status, answer.error["param"]) == (status, param)
        assert words in answer.error["message"]
        if status == 503:
            assert answer.error["code"] == "determinism_unavailable"
        assert not server.of("pass")


async def test_a_model_default_of_zero_needs_no_temperature(tmp_path: Path) -> None:
    """Greedy by the generation config, or by the tiny temperature of the request's mitigations."""
    async with verified_site(tmp_path, defaults={"temperature": 0.0}) as (_, gateway):
        assert said(await ask(gateway, chat(temperature=None, max_tokens=9))).text
    async with verified_site(tmp_path) as (_, gateway):
        wish = {"mode": "verified", "mitigations": ["tiny_temperature"]}
        answer = await ask(gateway, chat(temperature=None, max_tokens=9, determinism=wish))
        assert "tiny_temperature" in answer.headers["x-determinism-applied"]


@pytest.mark.parametrize("most", [0, 1])
async def test_a_verifier_that_shows_one_logprob_decides_nothing(tmp_path: Path, most: int) -> None:
    """503: with a single entry no tie can be seen."""
    async with Verifying().serve() as server:
        assert server.guard_answer is not None
        server.guard_answer[1]["max_logprobs"] = most
        async with verifying_gateway(tmp_path, server) as gateway:
            answer = await gateway.post(chat())
    assert (answer.status, answer.error["code"]) == (503, "determinism_unavailable")
    assert "--max-logprobs" in answer.error["message"]


@pytest.mark.parametrize("model", [None, "alias"])
async def test_an_answer_names_the_model_as_vllm_does(verifier: Verifying, tmp_path: Path, model: str | None) -> None:
    """By its first name, also where none was asked for and an adapter's sorts before it."""
    verifier.models.append({"id": "a-tuned-one", "object": "model", "root": "x", "parent": "m"})
    verifier.models.append({"id": "alias", "object": "model", "root": "m", "parent": None})
    async with verifying_gateway(tmp_path, verifier) as gateway:
        members = {name: value for name, value in chat(max_tokens=5).items() if name != "model"}
        assert (await ask(gateway, members | ({} if model is None else {"model": model}))).json()["model"] == "m"


async def test_the_operator_bounds_windows(verifier: Verifying, tmp_path: Path) -> None:
    """A pass over a long window holds everybody else up, however short the answer; the plan says so too."""
    async with verifying_gateway(tmp_path, verifier, max_window=16) as gateway:
        for window, status in ((16, 200), (17, 400)):
            members = chat(max_tokens=1, determinism={"mode": "verified", "window": window})
            for path in (path_of(members), "/v1/determinism/plan"):
                answer = await gateway.post(members, path)
                assert answer.status == status
                if status == 400:
                    assert answer.error["param"] == "determinism.window"
                    assert "from 1 to 16" in answer.error["message"]


def test_the_operators_own_window_is_within_his_bound() -> None:
    """Else every request that names none would be refused."""
    assert (Settings().window, Settings().max_window) == (128, 1024)
    with pytest.raises(ValidationError, match="window is 64, and max_window 32"):
        Settings(window=64, max_window=32)


async def test_a_replica_with_an_odd_fact_serves_on(tmp_path: Path) -> None:
    """Nothing can be verified there; other modes can be served."""
    async with Verifying(eos="</s>").serve() as server, verifying_gateway(tmp_path, server) as gateway:
        answer = await gateway.post(chat())
        assert (answer.status, answer.error["code"]) == (503, "determinism_unavailable")
        plain = await gateway.post({"model": "m", "messages": [{"role": "user", "content": "x"}]})
        assert plain.status == 200


async def test_an_adapters_answers_are_refused(verifier: Verifying, tmp_path: Path) -> None:
    """A pass would run the model below it."""
    verifier.models.append({"id": "tuned", "object": "model", "root": "x", "parent": "m"})
    async with verifying_gateway(tmp_path, verifier) as gateway:
        answer = await gateway.post(chat(model="tuned"))
    assert (answer.status, answer.error["param"], answer.error["code"]) == (400, "model", "not_verifiable")


async def test_a_stock_engine_verifies_nothing(upstream: ScriptedVllm, gateway: RunningGateway) -> None:
    """503 determinism_unavailable, also where a report would do for other mitigations: nobody could answer."""
    for wish in ("verified", {"mode": "verified", "on_unavailable": "report"}):
        answer = await gateway.post({"model": "m", "messages": [], "determinism": wish})
        assert (answer.status, answer.error["code"]) == (503, "determinism_unavailable")
        assert "'verification' is unavailable" in answer.error["message"]
    assert upstream.received == []


async def test_what_the_engine_refuses_of_a_prompt_is_the_callers(verifier: Verifying, site: RunningGateway) -> None:
    """Words, member and status of a refused rendering reach the caller; a fault of the engine's is none of his."""
    for fault, status, code, param in (
        ("400", 400, "invalid_request", "prompt"),
        ("404", 404, "not_found", "prompt"),
        ("422", 422, "invalid_request", "prompt"),
        ("500", 502, "upstream_error", None),
        ("403", 502, "upstream_error", None),
    ):
        verifier.fail("render", fault)
        answer = await site.post(chat())
        assert (answer.status, answer.error["code"], answer.error["param"]) == (status, code, param)
        assert f"scripted {fault}" in answer.error["message"]
    verifier.fail("render", "unavailable")
    answer = await site.post(chat())
    assert (answer.status, answer.error["code"]) == (503, "determinism_unavailable")
    verifier.fail("render", "401")
    answer = await site.post(chat())
    assert (answer.status, answer.error["code"]) == (401, "invalid_api_key")


@pytest.mark.parametrize(
    "members",
    [
        chat("x", reasoning_effort="none", chat_template_kwargs={"a": 1}, documents=[{"b": 2}], max_tokens=3, seed=7),
        text([9] * 17, max_tokens=3, cache_salt="tenant", user="u"),
        text(max_tokens=3) | {"determinism": {"mode": "verified", "window": 8}},
    ],
)
async def test_the_engine_renders_what_the_caller_wrote(
    verifier: Verifying, site: RunningGateway, members: dict[str, Any]
) -> None:
    """Every member of it but ours, ids too, once for an answer; so the prompt is that of every other mode."""
    await ask(site, members)
    plain = {name: value for name, value in members.items() if name != "determinism"}
    (rendered,) = verifier.of("render")
    assert json.loads(rendered.body) == {"path": path_of(members), "request": plain}
    suffixed = plain | {"model": "m@verified"}
    await ask(site, suffixed)
    assert verifier.of("render")[1].body == rendered.body


async def test_a_callers_salt_keeps_his_prompt_apart(verifier: Verifying, site: RunningGateway) -> None:
    """Its drafts and its chain use the caches of that salt alone; without one nothing of it is sent."""
    salts = []
    for given in ({"cache_salt": "one"}, {"cache_salt": "two"}, {"cache_salt": "one"}, {}):
        sent = len(verifier.of("draft")), len(verifier.of("pass"))
        answer = await ask(site, text([3] * (BLOCK + 1), max_tokens=20, ignore_eos=True, **given))
        assert said(answer).text == reference(text([3] * (BLOCK + 1), max_tokens=20, ignore_eos=True)).text
        drafts = [json.loads(errand.body) for errand in verifier.of("draft")[sent[0] :]]
        assert {draft.get("cache_salt") for draft in drafts} == {given.get("cache_salt")}
        assert given or not any("cache_salt" in draft for draft in drafts)
        (salt,) = {json.loads(errand.body)["salt"] for errand in verifier.of("pass")[sent[1] :]}
        salts.append(salt)
    assert salts[0] == salts[2]
    assert len(set(salts)) == 3


async def test_who_may_read_it_what_was_done(verifier: Verifying, site: RunningGateway) -> None:
    """Headers of a whole answer and the comment of a stream tell mode, window, grid, passes, replica and posture."""
    members = chat(max_tokens=20, ignore_eos=True)
    answer = await ask(site, members)
    told = {name.removeprefix("x-determinism-"): value for name, value in answer.headers.items()}
    assert (told["mode"], told["applied"]) == ("verified", "cache_bypass,verification")
    assert (told["window"], told["grid"], told["posture"], told["gate"]) == (str(WINDOW), "chain", "p-1", "guard")
    assert (told["coresident-peak"], told["temperature-effective"]) == ("1", "0")
    passes = len(verifier.of("pass"))
    assert int(told["passes"]) == passes
    assert float(told["verifier-seconds"]) == pytest.approx(0.25 * passes)
    assert float(told["admission-wait"]) == pytest.approx(0.125 * passes)
    assert int(told["accepted"]) <= int(told["drafted"])

    streamed = await ask(site, members | {"stream": True})
    assert streamed.headers["x-determinism-window"] == str(WINDOW)
    assert streamed.headers["x-determinism-grid"] == "chain"
    found = comment(streamed)
    assert (found["window"], found["grid"], found["coresident_peak"]) == (WINDOW, "chain", 1)
    assert found["passes"] == len(verifier.of("pass")) - passes
    assert float(found["admission_wait"]) == pytest.approx(0.125 * found["passes"])
    assert found["output"] == told["output"]


async def test_a_stream_without_a_comment(verifier: Verifying, tmp_path: Path) -> None:
    """Where the operator wants none there is none, and it ends as any stream does."""
    async with verifying_gateway(tmp_path, verifier, stream_comment=False) as gateway:
        answer = await ask(gateway, chat(max_tokens=9, stream=True))
    assert b"\n: " not in answer.body
    assert answer.body.endswith(b"data: [DONE]\n\n")


async def test_errands_are_admitted_and_named(verifier: Verifying, site: RunningGateway) -> None:
    """Passes are exclusive, drafts shared; each has an id of its own under the request's, and the guard's key."""
    answer = await ask(site, chat(max_tokens=20, ignore_eos=True), authorization="Bearer caller", cookie="a=b")
    request = answer.headers["x-determinism-request"]
    kinds = {"render": ("p", None), "draft": ("d", "shared"), "pass": ("v", "exclusive"), "text": ("t", None)}
    for kind, (letter, admission) in kinds.items():
        assert verifier.of(kind)
        for errand in verifier.of(kind):
            assert errand.headers["x-request-id"].startswith(f"{request}.{letter}")
            assert errand.headers.get("x-determinism-admission") == admission
            assert errand.headers["x-determinism-guard-key"] == GUARD_KEY
            assert errand.headers["authorization"] == "Bearer caller"
            assert errand.headers["content-type"] == "application/json"
            assert "cookie" not in errand.headers
    assert len({errand.headers["x-request-id"] for errand in verifier.of("pass")}) == len(verifier.of("pass"))


async def test_passes_of_invariant_kernels_run_beside_anything(tmp_path: Path) -> None:
    """Where the posture is batch-invariant a pass is shared."""
    async with Verifying().serve() as server:
        facts = server.guard_answer[1]["model"] if server.guard_answer is not None else {}
        guarded(server, max_logprobs=MOST)
        assert server.guard_answer is not None
        server.guard_answer[1]["model"] = facts
        server.fail("pass", "company")
        async with verifying_gateway(tmp_path, server) as gateway:
            answer = await ask(gateway, chat(max_tokens=20, ignore_eos=True))
        assert {errand.headers["x-determinism-admission"] for errand in server.of("pass")} == {"shared"}
    assert said(answer).text == reference(chat(max_tokens=20, ignore_eos=True)).text
    assert answer.headers["x-determinism-coresident-peak"] == "2"


async def test_a_receipt_says_what_it_took(site: RunningGateway) -> None:
    """Window, grid, passes and tokens; of any other answer null."""
    answer = await ask(site, chat(max_tokens=20, ignore_eos=True))
    receipt = (await site.get(f"/v1/determinism/receipts/{answer.headers['x-determinism-request']}")).json()["receipt"]
    found = receipt["verification"]
    assert (found["window"], found["grid"], found["decided"]) == (WINDOW, "chain", 20)
    assert found["passes"] == int(answer.headers["x-determinism-passes"])
    assert found["verifier_us"] == 250_000 * found["passes"]
    assert found["first_window_us"] > 0
    assert receipt["waited_us"] == 125_000 * found["passes"]
    assert (receipt["mode"], receipt["admission"], receipt["gateway_version"]) == ("verified", "exclusive", __version__)
    assert {each["mitigation"]: each["status"] for each in receipt["mitigations"]} == {
        "cache_bypass": "applied",
        "verification": "applied",
    }
    assert "of a verified answer" in receipt["intervals_reason"]
    plain = await site.post({"model": "m", "messages": [{"role": "user", "content": "x"}]})
    other = (await site.get(f"/v1/determinism/receipts/{plain.headers['x-determinism-request']}")).json()["receipt"]
    assert other["verification"] is None


async def test_a_streams_receipt_is_whole_from_the_first_moment(verifier: Verifying, tmp_path: Path) -> None:
    """Whoever asks for it with the last byte in his hands reads what the answer took, and later the same."""
    settings = Settings(state_dir=tmp_path, upstreams=(verifier.url,), guard_key=GUARD_KEY, window=WINDOW, ledger=False)
    application = create_app(settings)
    found = []

    async def read_receipt(head: dict[bytes, bytes]) -> None:
        path = f"/v1/determinism/receipts/{head[b'x-determinism-request'].decode()}"
        found.append(json.loads((await by_hand(application, "GET", path)).body)["receipt"])

    operations = application._operations
    async with operations.router.lifespan_context(operations):
        with anyio.fail_after(30):
            while (await by_hand(application, "GET", "/readyz")).status != 200:
                await anyio.lowlevel.checkpoint()
        body = json.dumps(chat(max_tokens=20, ignore_eos=True, stream=True)).encode()
        answer = await by_hand(application, "POST", "/v1/chat/completions", body, read_receipt)
        await read_receipt(answer.head)
    assert answer.status == 200
    first, later = (each["verification"] for each in found)
    assert first is not None
    assert first == later
    assert (first["decided"], first["passes"]) == (20, len(verifier.of("pass")))


@dataclass
class ByHand:
    """An answer over ASGI."""

    status: int = 0
    head: dict[bytes, bytes] = field(default_factory=dict)
    body: bytes = b""


async def by_hand(
    application: Application,
    method: str,
    path: str,
    body: bytes = b"",
    at_the_end: Callable[[dict[bytes, bytes]], Awaitable[None]] | None = None,
) -> ByHand:
    """Ask an application; ``at_the_end`` is awaited with the head when the client has all of the answer."""
    answer, gone = ByHand(), asyncio.Event()
    messages = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Any:
        if messages:
            return messages.pop()
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            answer.status, answer.head = message["status"], dict(message["headers"])
            return
        answer.body += message.get("body", b"")
        if not message.get("more_body", False) and at_the_end is not None:
            await at_the_end(answer.head)

    scope: dict[str, Any] = {
        "type": "http",
        "http_version": "1.1",
        "scheme": "http",
        "method": method,
        "path": path,
        "query_string": b"",
        "headers": [(b"content-type", b"application/json")],
    }
    await application(scope, receive, send)
    gone.set()
    return answer


async def test_it_is_counted(verifier: Verifying, site: RunningGateway) -> None:
    """Requests by mode, passes, rollbacks, tokens by kind, the verifier's seconds and the time to the first window."""
    members = chat(max_tokens=40, ignore_eos=True)
    answer = await ask(site, members)
    streamed = comment(await ask(site, members | {"stream": True}))
    passes = len(verifier.of("pass"))

    def of_both(name: str) -> int:
        return int(answer.headers[f"x-determinism-{name}"]) + int(streamed[name])

    assert await site.metric('reprise_requests_total{mode="verified",model="m",outcome="ok"}') == 2
    assert await site.metric("reprise_verification_passes_total") == passes
    assert await site.metric("reprise_verification_rollbacks_total") == of_both("rollbacks")
    assert await site.metric('reprise_verification_tokens_total{kind="decided"}') == 80
    assert await site.metric('reprise_verification_tokens_total{kind="drafted"}') == of_both("drafted")
    assert math.isclose(await site.metric("reprise_verification_seconds_total"), 0.25 * passes)
    assert await site.metric("reprise_verification_first_window_seconds_count") == 2
    assert await site.metric('reprise_output_tokens_total{mode="verified",model="m"}') == 80


async def test_repeats_meet_and_windows_are_apart(site: RunningGateway) -> None:
    """The second answer to a request is a match, streamed or not; another window is another request."""

    async def cohort(**members: Any) -> tuple[str, str]:
        answer = await ask(site, chat(max_tokens=20, **members))
        told = comment(answer)["verdict"] if members.get("stream") else answer.headers["x-determinism-verdict"]
        receipt = (await site.get(f"/v1/determinism/receipts/{answer.headers['x-determinism-request']}")).json()
        return str(receipt["receipt"]["cohort_key"]), told

    first, _ = await cohort()
    repeats = [await cohort(stream=True), await cohort(determinism={"mode": "verified", "window": WINDOW})]
    other, _ = await cohort(determinism={"mode": "verified", "window": 2 * WINDOW})
    assert {key for key, _ in repeats} == {first} != {other}
    while (await cohort())[1] == "pending":
        pass
    assert await cohort() == (first, "match")
    name = 'reprise_comparisons_total{mode="verified",model="m",origin="client",verdict="diverged"}'
    assert await site.metric(name) == 0


@pytest.mark.parametrize("window", [WINDOW, 2 * BLOCK])
async def test_the_plan_of_a_verified_request(verifier: Verifying, site: RunningGateway, window: int) -> None:
    """Window, what its passes need, and the grid that would rule; nothing is sent."""
    wish = {"mode": "verified", "window": window}
    plan = (await site.post(chat(determinism=wish), "/v1/determinism/plan")).json()
    assert (plan["window"], plan["would_be_served"], plan["error"]) == (window, True, None)
    assert plan["passes"] == {"admission": "exclusive", "grid": "chain" if window == WINDOW else "prompt"}
    assert (plan["posture"], plan["admission"]) == ("p-1", "exclusive")
    assert {each["mitigation"]: each["available"] for each in plan["mitigations"]} == {
        "cache_bypass": True,
        "verification": True,
    }
    assert (plan["edits"]["changed"], plan["edits"]["temperature_effective"]) == ([], 0)
    refused = await site.post(chat(determinism=wish, n=2), "/v1/determinism/plan")
    assert (refused.status, refused.error["param"]) == (400, "n")
    plain = (await site.post({"model": "m", "prompt": "x"}, "/v1/determinism/plan")).json()
    assert (plain["window"], plain["passes"]) == (None, None)
    assert verifier.received == []


async def test_the_plan_where_the_verifiers_model_cannot(tmp_path: Path) -> None:
    """The error that the request would get, with the reason; grid and admission are not known."""
    async with verified_site(tmp_path, multimodal=True) as (_, gateway):
        plan = (await gateway.post(chat(), "/v1/determinism/plan")).json()
    assert (plan["would_be_served"], plan["error"]["code"]) == (False, "determinism_unavailable")
    assert "multimodal" in plan["error"]["message"]
    assert plan["passes"] == {"admission": None, "grid": "unknown"}


async def test_canaries_may_be_verified(verifier: Verifying, tmp_path: Path) -> None:
    """The gateway's own repeats are compared like any; they are in no figure of clients' requests."""
    prompts = tmp_path / "canaries.jsonl"
    prompts.write_text('{"prompt": "a canary"}\n')
    settings = {"canaries": prompts, "canary_interval": 0.05, "canary_modes": ("verified",)}
    async with verifying_gateway(tmp_path / "state", verifier, **settings) as gateway:
        name = 'reprise_comparisons_total{mode="verified",model="m",origin="canary",verdict="match"}'
        with anyio.fail_after(30):
            while await gateway.metric(name) < 1:
                pass
        assert await gateway.metric(name.replace('"match"', '"diverged"')) == 0
        assert await gateway.metric('reprise_requests_total{mode="verified",model="m",outcome="ok"}') == 0


async def test_it_may_be_the_default(verifier: Verifying, tmp_path: Path) -> None:
    """A request that names no mode is then verified, with the operator's window."""
    async with verifying_gateway(tmp_path, verifier, default_mode="verified", window=8) as gateway:
        members = {name: value for name, value in chat(max_tokens=12).items() if name != "determinism"}
        answer = await ask(gateway, members)
    assert (answer.headers["x-determinism-mode"], answer.headers["x-determinism-window"]) == ("verified", "8")
