"""Observation: what the engine says becomes facts, files become digests, and the workers have the last word."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from app.determinism.posture import Fact, Posture
from app.engine.observer import engine_facts, generation_digest, merge_workers, model_digests
from tests.unit.engine.fake_passes import model_state
from tests.unit.engine.fakes import FakeEngine, Started, observed, quiet

pytestmark = pytest.mark.anyio


def test_workers_are_one_view() -> None:
    """What they agree on; texts that differ side by side; other differences unknown."""
    first: dict[str, Fact] = {"hardware": "A100", "threads": 2, "eager": True, "driver": "1"}
    second: dict[str, Fact] = {"hardware": "H100", "threads": 4, "eager": True, "driver": None}
    assert merge_workers([first, second]) == {"hardware": "A100 | H100", "threads": None, "eager": True, "driver": None}
    assert merge_workers([first]) == first
    assert merge_workers([]) == {}


class DType:
    """A torch.dtype."""

    def __str__(self) -> str:
        return "torch.bfloat16"


def state_of(**parts: object) -> SimpleNamespace:
    """VLLM's app.state with these parts of its configuration."""
    return SimpleNamespace(vllm_config=SimpleNamespace(**parts))


def test_the_live_configuration_becomes_facts(tmp_path: Path) -> None:
    """Types become names, an absent option is none, a missing attribute unknown; a folder loses its place."""
    model = SimpleNamespace(
        model=str(tmp_path / "smollm2"), dtype=DType(), quantization=None, enforce_eager=True, seed=0
    )
    (tmp_path / "smollm2").mkdir()
    speculative = SimpleNamespace(method="eagle", model=str(tmp_path), num_speculative_tokens=3)
    state = state_of(model_config=model, lora_config=None, speculative_config=speculative)
    facts = engine_facts(state)
    assert (facts["model"], facts["dtype"], facts["quantization"], facts["eager"]) == (
        "smollm2",
        "bfloat16",
        "none",
        True,
    )
    assert (facts["lora"], facts["speculation"]) == (
        "none",
        f"method=eagle model={tmp_path.name} num_speculative_tokens=3",
    )
    assert (facts["max_sequences"], facts["chat_template_digest"], facts["seed"]) == (None, None, 0)
    Posture.from_mapping(facts)


GENERATION: dict[str, Any] = {
    "defaults": {"temperature": 0.6},
    "eos": 2,
    "stops": [5],
    "max_tokens_default": 100,
    "max_tokens_cap": None,
    "length": 4096,
}


def test_what_ends_an_answer_belongs_to_the_posture() -> None:
    """Defaults, end tokens and the numbers of tokens each change the digest; what another fact tells does not."""
    changes: dict[str, object] = {
        "defaults": {},
        "eos": None,
        "stops": [5, 7],
        "max_tokens_default": None,
        "max_tokens_cap": 100,
    }
    digests = {generation_digest(GENERATION | {name: value}) for name, value in changes.items()}
    assert len(digests | {generation_digest(GENERATION)}) == 1 + len(changes)
    assert generation_digest(GENERATION | {"length": 1}) == generation_digest(GENERATION)


def test_what_ends_an_answer_is_unknown_where_a_part_is() -> None:
    """No end token beside the first, and not knowing of one, must not look alike."""
    assert generation_digest(GENERATION | {"stops": []}) is not None
    assert generation_digest(GENERATION | {"stops": None}) is None
    assert generation_digest(GENERATION | {"defaults": None}) is None
    assert generation_digest(None) is None


def test_what_verification_asks_is_observed() -> None:
    """Logprobs, who else writes KV, and the bound of a step, which is another option's if it is not set."""
    scheduler = SimpleNamespace(max_num_scheduled_tokens=None, max_num_batched_tokens=2048)
    state = state_of(
        model_config=SimpleNamespace(logprobs_mode="raw_logprobs", max_logprobs=5),
        scheduler_config=scheduler,
        kv_transfer_config=None,
    )
    facts = engine_facts(state)
    names = ("logprobs_mode", "max_logprobs", "kv_connector", "max_scheduled_tokens")
    assert [facts[name] for name in names] == ["raw_logprobs", 5, "none", 2048]
    scheduler.max_num_scheduled_tokens = 1024
    state.vllm_config.kv_transfer_config = SimpleNamespace(kv_connector="LMCache", kv_role="kv_both")
    facts = engine_facts(state)
    assert [facts[name] for name in names[2:]] == ["kv_connector=LMCache kv_role=kv_both", 1024]
    Posture.from_mapping(facts)


def test_an_unknown_engine_is_unknown() -> None:
    """Nothing is invented for a vLLM that has none of it."""
    assert set(engine_facts(SimpleNamespace()).values()) == {None}


def test_the_chat_template_is_the_one_that_renders() -> None:
    """The server's own template wins over the tokenizer's, and its arguments belong to it."""
    state = SimpleNamespace(
        online_renderer=SimpleNamespace(chat_template=None, default_chat_template_kwargs={}),
        engine_client=SimpleNamespace(renderer=SimpleNamespace(tokenizer=SimpleNamespace(chat_template="T"))),
    )
    digests = [engine_facts(state)["chat_template_digest"]]
    state.online_renderer.chat_template = "T"
    assert engine_facts(state)["chat_template_digest"] == digests[0]
    state.online_renderer.chat_template = "U"
    digests.append(engine_facts(state)["chat_template_digest"])
    state.online_renderer.default_chat_template_kwargs = {"enable_thinking": False}
    digests.append(engine_facts(state)["chat_template_digest"])
    assert len(set(digests)) == 3


@pytest.fixture
def model_folder(tmp_path: Path) -> Path:
    """A model of two shards with a tokenizer."""
    folder = tmp_path / "model"
    folder.mkdir()
    for name, content in {
        "b.safetensors": "22",
        "a.safetensors": "1",
        "tokenizer.json": "{}",
        "notes.txt": "x",
    }.items():
        (folder / name).write_text(content)
    return folder


def digests_of(folder: Path | str, limit: int = 100, **more: str) -> dict[str, Any]:
    """The digests of a model."""
    config = SimpleNamespace(**{"model": str(folder), "tokenizer": str(folder), "revision": None, **more})
    return model_digests(state_of(model_config=config), limit)


def test_digests_follow_the_content_and_nothing_else(model_folder: Path) -> None:
    """One byte of a shard or of the architecture changes the weights' digest; another place or file does not."""
    first = digests_of(model_folder)
    assert set(first) == {"weights_digest", "tokenizer_digest", "revision"}
    assert first["revision"] == "none"
    moved = model_folder.rename(model_folder.with_name("elsewhere"))
    (moved / "notes.txt").write_text("y")
    assert digests_of(moved) == first
    (moved / "a.safetensors").write_text("2")
    changed = digests_of(moved)
    assert changed["weights_digest"] != first["weights_digest"]
    assert changed["tokenizer_digest"] == first["tokenizer_digest"]
    (moved / "config.json").write_text("{}")
    assert digests_of(moved)["weights_digest"] not in {changed["weights_digest"], first["weights_digest"]}
    (moved / "tokenizer.json").write_text("[]")
    assert digests_of(moved)["tokenizer_digest"] != first["tokenizer_digest"]


def test_weights_beyond_the_limit_are_unknown(model_folder: Path) -> None:
    """A digest of a part would be no digest of the weights."""
    assert digests_of(model_folder, limit=3)["weights_digest"] is not None
    assert digests_of(model_folder, limit=2)["weights_digest"] is None


def test_a_hubs_snapshot_is_a_revision(tmp_path: Path) -> None:
    """The commit that the cache holds, also where a branch was asked for."""
    folder = tmp_path / "models--a--b" / "snapshots" / "0123abcd"
    folder.mkdir(parents=True)
    assert digests_of(folder, revision="main") == {
        "revision": "0123abcd",
        "weights_digest": None,
        "tokenizer_digest": None,
    }


def test_a_model_that_is_not_here_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its files there is nothing to digest; the hub is asked for what it holds locally, never to load."""
    asked: list[dict[str, object]] = []

    def snapshot_download(name: str, **options: object) -> str:
        asked.append({"name": name, **options})
        raise FileNotFoundError(name)

    monkeypatch.setitem(sys.modules, "huggingface_hub", SimpleNamespace(snapshot_download=snapshot_download))
    assert set(digests_of("nobody/nothing").values()) == {None}
    assert asked[0] == {"name": "nobody/nothing", "revision": None, "local_files_only": True}


def test_a_tokenizer_of_its_own_is_read_where_it_is(model_folder: Path, tmp_path: Path) -> None:
    """--tokenizer may name another folder."""
    other = tmp_path / "tokenizer"
    other.mkdir()
    (other / "tokenizer.json").write_text("{}")
    assert digests_of(model_folder, tokenizer=str(other)) == digests_of(model_folder)
    (other / "vocab.json").write_text("{}")
    assert digests_of(model_folder, tokenizer=str(other)) != digests_of(model_folder)


async def test_workers_that_fail_are_unknown_and_asked_again() -> None:
    """The posture says unknown meanwhile; the next question asks them again, and the digest follows."""
    engine = FakeEngine(None)

    async def test(started: Started) -> None:
        page = await observed(started)
        assert page["posture"]["device"] is None
        assert page["provides"]["fixed_kv_split"]["held"] is None
        engine.workers = [{"device": "cpu", "kv_split": "fixed"}]
        with anyio.fail_after(5):
            while (again := await observed(started))["posture"]["device"] is None:
                await quiet()
        assert again["provides"]["fixed_kv_split"]["held"] is True
        assert started.serving.system_fingerprint == again["digest"] != page["digest"]

    await Started(engine).run(test)


async def test_workers_without_the_extension_are_not_asked() -> None:
    """Asking would only fill vLLM's log with errors."""
    engine = FakeEngine(None)

    async def test(started: Started) -> None:
        await observed(started)
        assert (await observed(started))["posture"]["threads"] is None
        assert engine.calls == []

    started = Started(engine)
    started.replica.state.vllm_config.parallel_config.worker_extension_cls = ""
    await started.run(test)


@pytest.mark.parametrize(("mode", "published"), [("full", True), ("hash", True), ("custom", False), ("none", False)])
async def test_an_operators_own_fingerprint_stays(mode: str, *, published: bool) -> None:
    """--fingerprint-mode custom and none are choices; vLLM's own hashes give way to the digest."""

    async def test(started: Started) -> None:
        page = await observed(started)
        assert (started.serving.system_fingerprint == page["digest"]) is published

    started = Started(FakeEngine([{}]))
    started.replica.state.args.fingerprint_mode = mode
    await started.run(test)


async def test_a_vllm_without_fingerprints_says_so_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """Posture works on; the log tells where the digest is."""

    async def test(started: Started) -> None:
        assert (await observed(started))["digest"].startswith("p-")

    started = Started(FakeEngine([{}]))
    del started.replica.state.openai_serving_chat
    await started.run(test)
    assert "no system_fingerprint" in caplog.text


async def test_a_posture_that_cannot_be_read_is_not_ready(caplog: pytest.LogCaptureFixture) -> None:
    """A worker's answer of the wrong type is an error in the log, not a posture and not a crash."""

    async def test(started: Started) -> None:
        with anyio.fail_after(5):
            while "posture could not be observed" not in caplog.text:
                await quiet()
        assert (await started.posture()).status == 503

    await Started(FakeEngine([{"threads": "two"}])).run(test)


async def test_a_server_that_ends_early_ends_the_observation() -> None:
    """Workers that never answer do not keep the server from ending."""

    class Silent(FakeEngine):
        async def collective_rpc(self, method: str, timeout: float | None = None) -> list[dict[str, Any]]:  # noqa: ASYNC109, ARG002 - vLLM's signature
            await anyio.sleep_forever()
            raise AssertionError

    async def test(started: Started) -> None:
        assert (await started.posture()).status == 503

    with anyio.fail_after(5):
        await Started(Silent()).run(test)


def telling(entries: object, most_logprobs: int = 20) -> Started:
    """An engine that tells all of its model, with these end tokens in the generation config."""
    started = Started(FakeEngine([{}]))
    state = model_state(started.replica.engine)
    state.args = SimpleNamespace(api_key=None, reasoning_parser="", tool_call_parser=None)
    state.vllm_config.model_config.__dict__.update(
        generation_config="vllm",
        override_generation_config={},
        get_diff_sampling_param=dict,
        max_logprobs=most_logprobs,
    )
    engine: Any = started.replica.engine
    engine.renderer = SimpleNamespace(get_eos_token_id=lambda: 2)
    engine.input_processor = SimpleNamespace(generation_config_fields={"eos_token_id": entries})
    started.replica.state.__dict__.update(state.__dict__)
    return started


async def test_engines_that_end_answers_differently_have_different_postures() -> None:
    """By another end token, or by fewer logprobs, with which other ties are seen."""
    pages: list[dict[str, Any]] = []

    async def test(started: Started) -> None:
        pages.append(await observed(started))

    for entries, most in (([2], 20), ([2, 7], 20), ([2], 5), ([2], 20)):
        await telling(entries, most).run(test)
    assert [page["posture"]["max_logprobs"] for page in pages] == [20, 20, 5, 20]
    assert pages[0]["digest"] == pages[3]["digest"]
    assert len({page["digest"] for page in pages}) == 3


async def test_an_odd_end_token_leaves_the_posture_observed() -> None:
    """What ends an answer is unknown then, and nothing else."""

    async def test(started: Started) -> None:
        page = await observed(started)
        assert (page["posture"]["generation_config_digest"], page["model"]["stops"]) == (None, None)
        assert (page["posture"]["max_logprobs"], page["model"]["eos"]) == (20, 2)

    await telling({"a": 1}).run(test)
