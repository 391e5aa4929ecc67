"""What the gateway asks for besides, on a real engine: it changes no answer, and the caller sees nothing of it."""

import re
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import pytest

from tests.engine.conftest import Engine, free_port, running, wait_for

pytestmark = pytest.mark.engine

PROMPTS = ("Explain why the sky is blue.", "Invent a name for a cat, a dog and a bird. ☂", "Count to ten in words.")

OWN = re.compile(rb'"(?:id|request_id)":"[^"]*"|"created":\d+')
"""What differs between two answers whoever asks."""


@pytest.fixture(scope="module", params=["logprobs", "tokens"])
def gateways(
    request: pytest.FixtureRequest, engine: Engine, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, str]]:
    """Two gateways before the engine: one that asks for evidence, and one that does not."""
    urls = {}
    with ExitStack() as stack:
        for name, evidence in (("with", str(request.param)), ("without", "none")):
            state, port = tmp_path_factory.mktemp(name), free_port()
            argv = [sys.executable, "-m", "app.cli", "serve", "--port", str(port), "--upstream", engine.url]
            environment = {"REPRISE_GUARD_KEY": engine.guard_key, "REPRISE_EVIDENCE": evidence}
            check = stack.enter_context(running([*argv, "--state-dir", str(state)], state / "log", **environment))
            urls[name] = f"http://127.0.0.1:{port}"
            wait_for(f"{urls[name]}/readyz", {}, check)
        yield urls


def answer(url: str, path: str, body: dict[str, Any]) -> bytes:
    """An isolated answer, without what is new in each and without our own comment."""
    full = {"model": "smollm2", "determinism": "isolated", "max_tokens": 24, "temperature": 0, **body}
    response = httpx.post(f"{url}{path}", json=full, timeout=120, trust_env=False)
    assert response.status_code == 200, response.text
    kept = [event for event in response.content.split(b"\n\n") if not event.startswith(b": determinism")]
    # Which of two choices has its turn first is chance, in each step anew.
    kept.sort(key=lambda event: b'"index":1' in event)
    return OWN.sub(b"", b"\n\n".join(kept))


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("prompt", PROMPTS)
def test_the_answer_is_the_same_byte_for_byte(gateways: dict[str, str], prompt: str, stream: bool) -> None:
    """A chat, a completion, and a completion of two choices, streamed and not."""
    chat = {"messages": [{"role": "user", "content": prompt}], "stream": stream}
    text = {"prompt": prompt, "stream": stream, "stream_options": {"include_usage": True} if stream else None}
    for path, body in (
        ("/v1/chat/completions", chat),
        ("/v1/completions", text),
        ("/v1/completions", {**text, "n": 2, "temperature": 0.8, "seed": 3}),
    ):
        with_evidence, without = (answer(gateways[name], path, body) for name in ("with", "without"))
        assert b'"choices"' in without
        assert with_evidence == without


def test_what_the_caller_asked_for_himself_he_gets(gateways: dict[str, str]) -> None:
    """His logprobs and his token ids come back, and are those that he would have got."""
    body = {"messages": [{"role": "user", "content": PROMPTS[0]}], "logprobs": True, "return_token_ids": True}
    got = [answer(gateways[name], "/v1/chat/completions", body) for name in ("with", "without")]
    assert got[0] == got[1]
    assert b'"logprobs":{"content":[{' in got[0]
    assert b'"token_ids":[' in got[0]
