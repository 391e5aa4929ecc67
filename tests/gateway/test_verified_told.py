"""What is told about verified answers: refusals, headers, comments, receipts, metrics, cohorts and plans."""

import math
from pathlib import Path
from typing import Any

import anyio
import pytest

from app import __version__
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
    (chat("x" * LENGTH), "messages"),
    (chat(messages=[]), "messages"),
    (text() | {"prompt": ["a", "b"]}, "prompt"),
    (text([1, VOCABULARY]), "prompt"),
    (text(""), "prompt"),
    (text([3] * LENGTH), "prompt"),
    (text(logprobs=MOST + 1), "logprobs"),
    (text(suffix="x"), "suffix"),
    (chat(determinism={"mode": "verified", "window": 0}), "determinism.window"),
    (chat(determinism={"mode": "verified", "window": 4097}), "determinism.window"),
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
    """The words of `/tokenize` reach the caller, with its status; a fault of its own is none of the caller's."""
    for fault, status, code in (
        ("400", 400, "invalid_request"),
        ("404", 404, "not_found"),
        ("500", 502, "upstream_error"),
    ):
        verifier.fail("tokenize", fault)
        answer = await site.post(chat())
        assert (answer.status, answer.error["code"]) == (status, code)
        assert f"scripted {fault}" in answer.error["message"]
    verifier.fail("tokenize", "401")
    answer = await site.post(chat())
    assert (answer.status, answer.error["code"]) == (401, "invalid_api_key")


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
    kinds = {"tokenize": ("p", None), "draft": ("d", "shared"), "pass": ("v", "exclusive"), "text": ("t", None)}
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
