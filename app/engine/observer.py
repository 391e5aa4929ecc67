"""What finds out the posture: it runs beside the guard, in vLLM's API server.

A posture is put together from what the API server's live objects say, the digests of the files that the model is made
of, and what the workers answer over vLLM's ``collective_rpc`` (`app.engine.plugin.Extension`).
"""

import asyncio
import hashlib
import logging
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from app.determinism.posture import DIFFERING, Fact, Posture, digest_of
from app.engine.model import model_facts
from app.engine.plugin import EXTENSION, WORKER_METHOD

HASH_LIMIT: Final = "REPRISE_WEIGHTS_HASH_LIMIT_BYTES"
"""Environment variable: weights of more bytes than this are not hashed, and their digest is unknown."""

DEFAULT_HASH_LIMIT: Final = 2 * 1024**3

UNKNOWN_POSTURE: Final = "unknown"
"""`Observer.digest` while no posture has been observed."""

WORKER_DEADLINE: Final = 60.0
"""Seconds in which the workers must tell their posture."""

_SERVING_OBJECTS: Final = (
    *("openai_serving_chat", "openai_serving_chat_batch", "openai_serving_completion", "openai_serving_responses"),
    *("anthropic_serving_messages", "cohere_serving_chat_v2"),
)

_GENERATION: Final = ("defaults", "eos", "stops", "max_tokens_default", "max_tokens_cap")

_WEIGHT_PATTERNS: Final = ("*.safetensors", "*.bin", "*.pt", "*.gguf")
_TOKENIZER_FILES: Final = (
    *("added_tokens.json", "merges.txt", "special_tokens_map.json", "tekken.json", "tokenizer.json"),
    *("tokenizer.model", "tokenizer_config.json", "vocab.json", "vocab.txt"),
)
_CONFIG_FACTS: Final = {
    "dtype": "model_config.dtype",
    "quantization": "model_config.quantization",
    "max_model_len": "model_config.max_model_len",
    "eager": "model_config.enforce_eager",
    "seed": "model_config.seed",
    "kv_cache_dtype": "cache_config.cache_dtype",
    "block_size": "cache_config.block_size",
    "prefix_caching": "cache_config.enable_prefix_caching",
    "tensor_parallel": "parallel_config.tensor_parallel_size",
    "pipeline_parallel": "parallel_config.pipeline_parallel_size",
    "data_parallel": "parallel_config.data_parallel_size",
    "api_servers": "parallel_config._api_process_count",
    "chunked_prefill": "scheduler_config.enable_chunked_prefill",
    "max_batched_tokens": "scheduler_config.max_num_batched_tokens",
    "max_scheduled_tokens": "scheduler_config.max_num_scheduled_tokens",
    "max_sequences": "scheduler_config.max_num_seqs",
    "scheduling_policy": "scheduler_config.policy",
    "async_scheduling": "scheduler_config.async_scheduling",
    "logprobs_mode": "model_config.logprobs_mode",
    "max_logprobs": "model_config.max_logprobs",
}
"""Posture field -> where vLLM 0.32 keeps it in its live configuration."""

# Under vLLM's own logger, since its logging configuration has no handler for others.
logger = logging.getLogger("vllm.reprise.posture")


def merge_workers(answers: Sequence[Mapping[str, Fact]]) -> dict[str, Fact]:
    """One view of all workers: what they agree on; texts that differ joined by `DIFFERING`; else unknown."""
    merged: dict[str, Fact] = {}
    for name in answers[0] if answers else ():
        values = [answer.get(name) for answer in answers]
        texts = sorted({value for value in values if isinstance(value, str)})
        if all(value == values[0] for value in values):
            merged[name] = values[0]
        else:
            merged[name] = DIFFERING.join(texts) if all(isinstance(value, str) for value in values) else None
    return merged


def engine_facts(state: object) -> dict[str, Fact]:
    """What the API server's live objects say: ``state`` is vLLM's ``app.state``. What another vLLM lacks is unknown."""
    config = getattr(state, "vllm_config", None)
    facts = {field: _fact(config, path) for field, path in _CONFIG_FACTS.items()}
    model_config = getattr(config, "model_config", None)
    facts["model"] = _model_name(getattr(model_config, "model", None))
    facts["lora"] = _described(config, "lora_config", ("max_lora_rank", "max_loras"))
    facts["speculation"] = _described(config, "speculative_config", ("method", "model", "num_speculative_tokens"))
    facts["kv_connector"] = _described(config, "kv_transfer_config", ("kv_connector", "kv_role"))
    if facts["max_scheduled_tokens"] == "none":  # vLLM's scheduler then takes the other bound
        facts["max_scheduled_tokens"] = facts["max_batched_tokens"]
    facts["chat_template_digest"] = _chat_template_digest(state)
    return facts


def generation_digest(model: Mapping[str, Any] | None) -> str | None:
    """The digest of what the generation config and the tokenizer say of sampling and of an answer's end.

    ``model`` is as `model_facts` tells it. What is unknown of it makes the digest unknown.
    """
    if model is None or model["defaults"] is None or model["stops"] is None:
        return None
    return digest_of([model[name] for name in _GENERATION])


def api_servers(state: object) -> Fact:
    """How many API-server processes the engine has; None is unknown."""
    return _fact(getattr(state, "vllm_config", None), _CONFIG_FACTS["api_servers"])


def sequences_at_once(state: object) -> Fact:
    """How many sequences the engine runs in one batch at the most (``--max-num-seqs``); None is unknown."""
    return _fact(getattr(state, "vllm_config", None), _CONFIG_FACTS["max_sequences"])


def most_logprobs(state: object) -> int:
    """How many logprobs a request may ask for at each token; 0 where the engine does not tell.

    Without a bound (-1) it is the vocabulary, which is more than anybody asks for.
    """
    limit = _fact(getattr(state, "vllm_config", None), "model_config.max_logprobs")
    if not isinstance(limit, int):
        return 0
    return limit if limit >= 0 else 2**31


_MISSING: Final = object()


def _fact(root: object, path: str) -> Fact:
    value = root
    for name in path.split("."):
        value = getattr(value, name, _MISSING)
        if value is _MISSING:
            return None
    if value is None:
        return "none"
    if isinstance(value, Enum):
        value = value.value
    return value if isinstance(value, str | int | bool) else str(value).removeprefix("torch.")


def _described(config: object, name: str, members: Iterable[str]) -> str | None:
    part = getattr(config, name, _MISSING)
    if part is _MISSING:
        return None
    values = ((member, getattr(part, member, None)) for member in members)
    shown = (f"{member}={_model_name(value) if member == 'model' else value}" for member, value in values)
    return "none" if part is None else " ".join(shown)


def _model_name(model: object) -> str | None:
    # Where a folder lies is no property of what runs in it; its digests identify the content.
    return None if model is None else Path(str(model)).name if Path(str(model)).is_dir() else str(model)


def _chat_template_digest(state: object) -> str | None:
    renderer = getattr(state, "online_renderer", None)
    tokenizer = getattr(getattr(getattr(state, "engine_client", None), "renderer", None), "tokenizer", None)
    if renderer is None or tokenizer is None:
        return None
    template = getattr(renderer, "chat_template", None) or getattr(tokenizer, "chat_template", None)
    return digest_of([template, getattr(renderer, "default_chat_template_kwargs", None)])


def model_digests(state: object, limit: int) -> dict[str, Fact]:
    """Digests of weights (with config.json) and tokenizer, and the revision. Weights of up to ``limit`` bytes are read.

    Blocking; run it in a thread. hashlib lets other threads run while it digests.
    """
    model_config = getattr(getattr(state, "vllm_config", None), "model_config", None)
    model, tokenizer = getattr(model_config, "model", None), getattr(model_config, "tokenizer", None)
    revision = getattr(model_config, "revision", None)
    folder = None if model is None else _folder(str(model), revision)
    if folder is not None and folder.parent.name == "snapshots":
        revision = folder.name  # the commit that the hub's cache holds, also where a branch was asked for
    texts = folder if tokenizer in {None, model} else _folder(str(tokenizer), None)
    return {
        "revision": revision or (None if folder is None else "none"),
        "weights_digest": None if folder is None else _weights_digest(folder, limit),
        "tokenizer_digest": None
        if texts is None
        else _files_digest(path for name in _TOKENIZER_FILES if (path := texts / name).is_file()),
    }


def _folder(model: str, revision: object) -> Path | None:
    if Path(model).is_dir():
        return Path(model)
    try:
        return Path(import_module("huggingface_hub").snapshot_download(model, revision=revision, local_files_only=True))
    except Exception:  # noqa: BLE001 - whatever the hub's client cannot find or do, the files are unknown to us
        return None


def _weights_digest(folder: Path, limit: int) -> str | None:
    files = next((found for pattern in _WEIGHT_PATTERNS if (found := sorted(folder.glob(pattern)))), [])
    if sum(path.stat().st_size for path in files) > limit:
        return None
    return _files_digest([*files, *folder.glob("config.json")]) if files else None


def _files_digest(paths: Iterable[Path]) -> str | None:
    entries: list[list[str]] = []
    for path in paths:
        with path.open("rb") as stream:
            entries.append([path.name, hashlib.file_digest(stream, "sha256").hexdigest()])
    return digest_of(entries) if entries else None


class Observer:
    """Finds out the posture once, in the background, and publishes its digest as the engine's system_fingerprint."""

    def __init__(self, environ: Mapping[str, str], *, guard_key: bool) -> None:
        self._environ = environ
        self._guard_key = guard_key
        self._task: asyncio.Task[None] | None = None
        self._workers_told = False
        self.posture: Posture | None = None
        self.model: dict[str, Any] | None = None
        self.digest = UNKNOWN_POSTURE

    def start(self, state: object) -> None:
        """Observe, unless that is done or under way. ``state`` is vLLM's ``app.state``."""
        if not self._workers_told and (self._task is None or self._task.done()):
            self._task = asyncio.create_task(self._observe(state))  # noqa: TID251 - `stop` cancels it

    async def stop(self) -> None:
        """End an observation that is under way."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    async def _observe(self, state: object) -> None:
        try:
            self.model = await asyncio.to_thread(model_facts, state)
            limit = int(self._environ.get(HASH_LIMIT, DEFAULT_HASH_LIMIT))
            facts = engine_facts(state) | await asyncio.to_thread(model_digests, state, limit)
            facts |= {"generation_config_digest": generation_digest(self.model)}
            facts |= {"epoch": self._environ.get("REPRISE_EPOCH") or "none", "guard_key": self._guard_key}
            posture = Posture.from_mapping(facts | await self._ask_workers(state))
        except Exception:
            # Posture must never take the engine down; without it the replica is not ready, and the log says why.
            logger.exception("posture could not be observed; the next request for it tries again")
            return
        # Kept, because every answer to a gateway carries it and it costs a SHA-256 over all facts.
        self.posture, self.digest = posture, posture.digest
        logger.info("posture %s; unknown: %s", self.digest, ", ".join(posture.unknown) or "nothing")
        self._publish(state, self.digest)

    async def _ask_workers(self, state: Any) -> dict[str, Any]:  # noqa: ANN401 - vLLM's app.state has no type
        if _fact(state, "vllm_config.parallel_config.worker_extension_cls") != EXTENSION:
            self._workers_told = True  # they never will
            logger.warning("what the workers have is unknown: --worker-extension-cls %s was not given", EXTENSION)
            return {}
        try:
            answers = await state.engine_client.collective_rpc(WORKER_METHOD, timeout=WORKER_DEADLINE)
        except Exception:
            # Whatever vLLM raises here (a dead worker, a timeout), it means: unknown.
            logger.exception("the workers did not tell their posture; the next request for it asks again")
            return {}
        self._workers_told = True
        return merge_workers(answers)

    def _publish(self, state: object, digest: str) -> None:
        # --fingerprint-value cannot carry it: the digest holds the workers' word, which exists only once vLLM has
        # built the objects that copy that value. An operator's own choice of fingerprint stays.
        if getattr(getattr(state, "args", None), "fingerprint_mode", "full") in {"custom", "none"}:
            logger.info("system_fingerprint is left as --fingerprint-mode has set it")
            return
        objects = [getattr(state, name, None) for name in _SERVING_OBJECTS]
        known = [item for item in objects if hasattr(item, "system_fingerprint")]
        for item in known:
            item.system_fingerprint = digest  # type: ignore[union-attr]  # hasattr looked
        if not known:
            logger.warning("this vLLM has no system_fingerprint; the posture digest is in /reprise/posture only")
