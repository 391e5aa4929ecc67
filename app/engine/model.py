"""What a gateway must know of the model to say what vLLM would have said; no endpoint of vLLM tells it.

Every fact is read from the live objects that vLLM itself goes by, and is None where this vLLM does not have them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any, Final, TypeVar

from app.errors import DeterminismUnavailable

_HARMONY: Final = "gpt_oss"
_PROCESSORS: Final = "vllm.logits_processors"
"""The entry points that vLLM loads as custom logits processors without being asked."""

_ENTRIES: Final = "eos_token_id"

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Limits:
    """What a pass must keep to. ``length`` is the context limit and ``block`` the size of a KV block, in tokens.

    ``logprobs`` is how many the engine gives for each position at the most, ``caches`` whether it has a prefix cache.
    """

    length: int
    vocabulary: int
    block: int
    caches: bool
    logprobs: int

    @classmethod
    def of(cls, state: Any) -> "Limits":  # noqa: ANN401 - vLLM's app.state has no type
        """Those of the engine; raises DeterminismUnavailable where it does not tell one of them."""
        config: Any = getattr(state, "vllm_config", None)
        known = {
            "length": _told(lambda: config.model_config.max_model_len, int),
            "vocabulary": _told(lambda: int(config.model_config.get_vocab_size()), int),
            "block": _told(lambda: config.cache_config.block_size, int),
            "caches": _told(lambda: config.cache_config.enable_prefix_caching, bool),
            "logprobs": _told(lambda: config.model_config.max_logprobs, int),
        }
        missing = [name for name, value in known.items() if value is None]
        if missing:
            raise DeterminismUnavailable(f"this engine does not tell its {', '.join(missing)}")
        vocabulary, most = known["vocabulary"], known["logprobs"]
        known["logprobs"] = vocabulary if most == -1 else most
        return cls(**known)  # type: ignore[arg-type]  # none of them is None


def model_facts(state: Any) -> dict[str, Any] | None:  # noqa: ANN401 - vLLM's app.state has no type
    """The facts by name, as JSON has them; None where one that may be null of itself could not be found out.

    ``eos``, ``max_tokens_default``, ``reasoning_parser`` and ``tool_parser`` are null where there is none; every other
    null means unknown. ``max_tokens_default`` is what counts where a chat request names no ``max_tokens``, and
    ``max_tokens_cap`` is what holds even where one does; null is no cap. May read the model's generation config from
    disk: to be run in a thread.
    """
    model, args = _get(state, "vllm_config.model_config"), _get(state, "args")
    generation = _generation_config(state)
    defaults = _told(lambda: dict(model.get_diff_sampling_param()), dict)
    try:
        eos = state.engine_client.renderer.get_eos_token_id()
        parsers = {"reasoning_parser": args.reasoning_parser or None, "tool_parser": args.tool_call_parser or None}
        cap = _cap(model, defaults or {})
    except Exception:  # noqa: BLE001 - whatever another vLLM lacks or does here, the fact is unknown
        return None
    default = None if defaults is None else defaults.pop("max_tokens", None)
    if not all(value is None or type(value) is int for value in (eos, default, cap)):
        return None
    return {
        "length": _told(lambda: model.max_model_len, int),
        "vocabulary": _told(lambda: int(model.get_vocab_size()), int),
        "eos": eos,
        "stops": None if generation is None else _told(lambda: _stops(generation, eos), list),
        "defaults": defaults,
        "max_tokens_default": default,
        "max_tokens_cap": cap,
        **parsers,
        "harmony": _told(lambda: model.hf_config.model_type == _HARMONY, bool),
        "multimodal": _told(lambda: model.is_multimodal_model, bool),
        "logits_processors": _told(lambda: _processes_logits(state.vllm_config), bool),
        "logprobs_mode": _told(lambda: str(model.logprobs_mode), str),
        "speculation": _told(lambda: state.vllm_config.speculative_config is not None, bool),
        "block_size": _told(lambda: state.vllm_config.cache_config.block_size, int),
        "prefix_caching": _told(lambda: state.vllm_config.cache_config.enable_prefix_caching, bool),
    }


def _generation_config(state: Any) -> Mapping[str, Any] | None:  # noqa: ANN401 - as above
    """The model's own generation config, which gives end tokens also under ``--generation-config vllm``."""
    processor = _get(state, "engine_client.input_processor")
    known = _told(lambda: dict(processor.generation_config_fields), dict)
    return known if known is not None else _told(lambda: dict(_configured(state)), dict)


def _configured(state: Any) -> Mapping[str, Any]:  # noqa: ANN401 - as above
    config: Mapping[str, Any] = state.vllm_config.model_config.try_get_generation_config()
    return config


def _stops(generation: Mapping[str, Any], eos: int | None) -> list[int]:
    """The further end tokens, as `SamplingParams.update_from_generation_config` takes them.

    Raises TypeError where they are no token ids.
    """
    entries = generation.get(_ENTRIES)
    found = list([entries] if isinstance(entries, int) else entries or [])
    if not all(type(token) is int for token in found):
        raise TypeError(_ENTRIES)
    return sorted({token for token in found if token != eos})


def _cap(model: Any, defaults: Mapping[str, Any]) -> int | None:  # noqa: ANN401 - as above
    """VLLM's ``override_max_tokens`` (0.32, entrypoints/openai/chat_completion/serving.py)."""
    if model.generation_config not in {"auto", "vllm"}:
        return defaults.get("max_tokens")
    cap: int | None = model.override_generation_config.get("max_new_tokens")
    return cap


def _processes_logits(config: Any) -> bool:  # noqa: ANN401 - as above
    """Whether sampled rows pass through what prompt rows do not: custom processors, or a watermark."""
    plugged = any(True for _ in entry_points(group=_PROCESSORS))
    return (
        bool(config.model_config.logits_processors) or plugged or getattr(config, "watermark_config", None) is not None
    )


def _get(root: object, path: str) -> Any:  # noqa: ANN401 - as above
    for name in path.split("."):
        root = getattr(root, name, None)
    return root


def _told(fact: Callable[[], object], kind: type[_T]) -> _T | None:
    """What ``fact`` gives if it is of that kind, else None."""
    try:
        value = fact()
    except Exception:  # noqa: BLE001 - whatever another vLLM lacks or does here, the fact is unknown
        return None
    return value if isinstance(value, kind) else None
