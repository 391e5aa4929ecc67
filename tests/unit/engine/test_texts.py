"""Text of given tokens: the detokenizer is vLLM's; what is fed to it, and what is told of it, is checked here."""

import json
import sys
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from tokenizers import Tokenizer, decoders, models

from app.engine.texts import TEXT_PATH
from tests.unit.engine.fake_passes import VOCABULARY, FakeCache, Params, model_state
from tests.unit.engine.fakes import DISCONNECT, SHARED, Replica, body, quiet

pytestmark = pytest.mark.anyio

ASKED: dict[str, Any] = {
    "prompt": [1, 2],
    "ids": [ord("a"), ord("b"), ord("c")],
    "skip_special_tokens": True,
    "spaces_between_special_tokens": False,
    "stop": [],
    "include_stop_str_in_output": False,
    "min_tokens": 3,
    "ended": False,
    "decode": [],
}


class Detokenizer:
    """VLLM's IncrementalDetokenizer over single letters: the same way to be called, and one way to stop."""

    made: list["Detokenizer"]

    def __init__(self, tokenizer: str, request: Any) -> None:
        self.tokenizer, self.request = tokenizer, request
        self.output_text = ""
        self.fed: list[tuple[list[int], bool]] = []

    @classmethod
    def from_new_request(cls, tokenizer: str, request: Any) -> "Detokenizer":
        """As vLLM's."""
        cls.made.append(cls(tokenizer, request))
        return cls.made[-1]

    def update(self, ids: list[int], stopped: bool) -> str | None:
        """As vLLM's."""
        self.fed.append((ids, stopped))
        self.output_text += "" if stopped else chr(ids[0])
        for stop in self.request.sampling_params.stop:
            if stop in self.output_text:
                self.output_text = self.output_text[: self.output_text.index(stop)]
                return str(stop)
        return None


@pytest.fixture(autouse=True)
def vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    """VLLM's modules."""
    Detokenizer.made = []
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(SamplingParams=Params))
    for name in ("vllm.v1", "vllm.v1.engine"):
        monkeypatch.setitem(sys.modules, name, SimpleNamespace())
    detokenizer = SimpleNamespace(IncrementalDetokenizer=Detokenizer)
    monkeypatch.setitem(sys.modules, "vllm.v1.engine.detokenizer", detokenizer)


@pytest.fixture
def replica() -> Replica:
    """An engine with a tokenizer."""
    replica = Replica(body_timeout=0.05)
    replica.state.__dict__.update(model_state(FakeCache()).__dict__)
    replica.state.engine_client = SimpleNamespace(renderer=SimpleNamespace(tokenizer="the tokenizer"))
    return replica


async def ask(replica: Replica, headers: dict[str, str] = SHARED, **changes: Any) -> tuple[int | None, Any]:
    call = replica.call(headers, TEXT_PATH, data=json.dumps({**ASKED, **changes}).encode())
    await replica.serve(call)
    return call.status, json.loads(call.content)


async def test_tokens_are_fed_one_at_a_time_as_the_engine_would(replica: Replica) -> None:
    """With the prompt before them and what the caller said; the answer says where each token ended."""
    assert await ask(replica) == (200, {"text": "abc", "ends": [1, 2, 3], "stop": None, "decoded": []})
    (made,) = Detokenizer.made
    assert made.tokenizer == "the tokenizer"
    assert made.request.prompt_token_ids == [1, 2]
    assert made.request.sampling_params == Params(
        max_tokens=None,
        stop=[],
        min_tokens=3,
        include_stop_str_in_output=False,
        skip_special_tokens=True,
        spaces_between_special_tokens=False,
    )
    assert made.fed == [([97], False), ([98], False), ([99], False)]


async def test_all_of_a_long_prompt_comes_before_the_answer(replica: Replica, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a character may be three tokens, a detokenizer that starts inside one goes wrong for good.

    Over the stream of the tokenizers package that vLLM's own detokenizer is made of.
    """
    vocabulary = {f"<0x{byte:02X}>": byte for byte in range(256)} | {"a": 256}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], byte_fallback=True))
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])

    class Stream(Detokenizer):
        def __init__(self, tokenizer: str, request: Any) -> None:
            super().__init__(tokenizer, request)
            self.stream = decoders.DecodeStream(ids=request.prompt_token_ids)

        def update(self, ids: list[int], stopped: bool) -> str | None:
            assert not stopped
            self.output_text += self.stream.step(tokenizer, ids[0]) or ""
            return None

    monkeypatch.setattr(sys.modules["vllm.v1.engine.detokenizer"], "IncrementalDetokenizer", Stream)
    prompt, answer = [256, *"\u1781".encode() * 50], "\u1797\u17b6a\u179f".encode()
    ids = [256 if byte == ord("a") else byte for byte in answer]
    status, told = await ask(replica, prompt=prompt, ids=ids)
    assert (status, told["text"]) == (200, answer.decode())
    assert told["ends"] == [0, 0, 1, 1, 1, 2, 3, 3, 3, 4]
    assert (await ask(replica, prompt=prompt[-64:], ids=ids))[1]["text"] != answer.decode()


async def test_a_stop_string_ends_the_text(replica: Replica) -> None:
    """The token that completed it, and a text that is cut also where an earlier token had begun it."""
    expected = {"text": "a", "ends": [1, 1, 1], "stop": {"index": 2, "string": "bc"}, "decoded": []}
    assert await ask(replica, ids=[*ASKED["ids"], ord("d")], stop=["bc"]) == (200, expected)


async def test_an_end_token_is_fed_as_one(replica: Replica) -> None:
    """Only the last one, and it counts as a token without text."""
    assert await ask(replica, ended=True) == (200, {"text": "ab", "ends": [1, 2, 2], "stop": None, "decoded": []})
    assert [stopped for _, stopped in Detokenizer.made[0].fed] == [False, False, True]


async def test_alternatives_are_decoded_by_vllms_own_logprobs(
    replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One list for each of the last places, with the tokens before that place; a vLLM without it is unavailable."""

    class Logprobs:
        """VLLM's LogprobsProcessor: a text is corrected by the context."""

        tokenizer: str

        def _verify_tokens(self, texts: list[str], tokens: list[int], context: list[int]) -> list[str]:
            return [
                text + self._correct_decoded_token(token, context) for text, token in zip(texts, tokens, strict=True)
            ]

        def _correct_decoded_token(self, token: int, context: list[int]) -> str:
            return f"/{self.tokenizer}/{token}/{len(context)}"

    asked: dict[str, Any] = {"decode": [[1, 2], [3]]}
    for name in ("vllm.tokenizers", "vllm.tokenizers.detokenizer_utils", "vllm.v1.engine.logprobs"):
        monkeypatch.setitem(sys.modules, name, SimpleNamespace())
    assert (await ask(replica, **asked))[0] == 503
    utils = SimpleNamespace(convert_ids_list_to_tokens=lambda tokenizer, ids: [f"{tokenizer[:3]} {n}" for n in ids])
    monkeypatch.setitem(sys.modules, "vllm.tokenizers.detokenizer_utils", utils)
    monkeypatch.setitem(sys.modules, "vllm.v1.engine.logprobs", SimpleNamespace(LogprobsProcessor=Logprobs))
    status, answer = await ask(replica, **asked)
    assert status == 200
    assert answer["decoded"] == [
        ["the 1/the tokenizer/1/1", "the 2/the tokenizer/2/1"],
        ["the 3/the tokenizer/3/2"],
    ]


async def test_no_tokens_are_no_text(replica: Replica) -> None:
    """Before the first window."""
    assert await ask(replica, ids=[]) == (200, {"text": "", "ends": [], "stop": None, "decoded": []})


async def test_long_answers_let_others_in_between(replica: Replica) -> None:
    """The event loop of the API server is everybody's."""
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            await anyio.lowlevel.checkpoint()
            turns += 1

    async with anyio.create_task_group() as group:
        group.start_soon(count)
        await anyio.lowlevel.checkpoint()
        before = turns
        await ask(replica, ids=[97] * 3000)
        assert turns - before >= 3000 // 256
        group.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("member", "changes"),
    [
        ("prompt", {"prompt": [VOCABULARY]}),
        ("ids", {"ids": ["a"]}),
        ("stop", {"stop": [""]}),
        ("skip_special_tokens", {"skip_special_tokens": 1}),
        ("spaces_between_special_tokens", {"spaces_between_special_tokens": None}),
        ("include_stop_str_in_output", {"include_stop_str_in_output": "no"}),
        ("min_tokens", {"min_tokens": -1}),
        ("ended", {"ended": True, "ids": []}),
        ("decode", {"decode": [[1]] * 4}),
        ("decode", {"decode": [[VOCABULARY]]}),
        ("n", {"n": 1}),
    ],
)
async def test_what_cannot_be_read_is_refused_by_name(replica: Replica, member: str, changes: dict[str, Any]) -> None:
    """The member that is to blame."""
    status, answer = await ask(replica, **changes)
    assert (status, answer["error"]["code"], answer["error"]["param"]) == (400, "invalid_request", member)


async def test_it_runs_beside_an_exclusive_request_and_needs_the_key(replica: Replica) -> None:
    """It is outside the gate, and tells what only gateways may ask."""
    replica.state.engine_client.get_num_unfinished_requests = lambda: 0
    running = replica.call({**SHARED, "x-determinism-admission": "exclusive"})
    async with anyio.create_task_group() as group:
        group.start_soon(replica.serve, running)
        await quiet()
        assert replica.server.started == [running]
        assert (await ask(replica))[0] == 200
        assert (await ask(replica, {}))[0] == 403
        running.finish.set()


async def test_a_vllm_without_it_is_unavailable(replica: Replica, monkeypatch: pytest.MonkeyPatch) -> None:
    """503 with what is missing: another module layout, or no tokenizer."""
    replica.state.engine_client.renderer.tokenizer = None
    status, answer = await ask(replica)
    assert (status, answer["error"]["message"]) == (503, "this engine has no tokenizer")
    del replica.state.engine_client.renderer
    assert (await ask(replica))[0] == 503
    monkeypatch.setitem(sys.modules, "vllm.v1.engine.detokenizer", SimpleNamespace())
    status, answer = await ask(replica)
    assert (status, answer["error"]["code"]) == (503, "determinism_unavailable")


async def test_a_client_that_falls_silent_or_leaves_is_given_up(replica: Replica) -> None:
    """408 for half a body; nothing for nobody."""
    silent = replica.call(SHARED, TEXT_PATH, data=None)
    silent.wire.put_nowait(body(b"{", more=True))
    await replica.serve(silent)
    assert silent.status == 408
    gone = replica.call(SHARED, TEXT_PATH, data=None)
    gone.wire.put_nowait(DISCONNECT)
    await replica.serve(gone)
    assert gone.sent == []
