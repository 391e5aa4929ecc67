"""Posture: what one replica really runs, and which mitigations that provides.

Every field may be None, which means *unknown*: nobody observed it. Nothing here comes from configuration of ours; the
guard fills it from the live engine (its configuration object in the API server, and the word of the worker processes),
and a gateway reads it back from the guard. Values are what they are, never a default that stands in for ignorance.

Why `provides` is strict: a request that names a mitigation is routed by its answer, so unknown must not pass for held,
and neither must a fact in which the workers of one replica differ.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from types import NoneType
from typing import Final, TypeAlias, get_args

from app.determinism.mode import Mitigation

Fact: TypeAlias = str | int | bool | None
"""One observed value; None is unknown."""

KV_SPLIT_FIXED: Final = "fixed"
"""`Posture.kv_split`: attention reduces over the keys in an order that depends on the request alone."""

DETERMINISTIC_CUBLAS: Final = frozenset({":4096:8", ":16:8"})
"""The two values of CUBLAS_WORKSPACE_CONFIG under which cuBLAS repeats from run to run (NVIDIA, cuBLAS manual, section
"Results Reproducibility"); with another one PyTorch's deterministic mode refuses matrix products."""

DIFFERING: Final = " | "
"""What joins the texts of a fact in which the workers differ; flags and counts in which they differ are unknown."""

INVARIANT_CUDA: Final = (8, 0)
"""The least CUDA compute capability for which vLLM documents batch invariance (v0.32, features/batch_invariance)."""

INVARIANT_ROCM: Final = frozenset({"gfx90a", "gfx942", "gfx950"})
"""The AMD architectures for which vLLM documents batch invariance (the same page)."""

LOGPROBS_MODES: Final = frozenset({"raw_logprobs", "processed_logprobs"})
"""The values of ``--logprobs-mode`` under which an engine reports log-probabilities; the others are logits. In a pass
that asks for no processing at temperature 0 the two are the same numbers."""

_RUNTIME_ONLY: Final = frozenset({"guard_key"})


@dataclass(frozen=True, slots=True)
class Provision:
    """Whether a replica holds a mitigation; ``held`` None is unknown, ``reason`` a clause that says why, or ""."""

    held: bool | None
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Posture:
    """What a replica really runs. Digests are 16 hex digits of SHA-256; counts are plain numbers."""

    # The engine, the model, and the text around it.
    engine_version: str | None = None
    torch_version: str | None = None
    model: str | None = None
    revision: str | None = None
    weights_digest: str | None = None
    tokenizer_digest: str | None = None
    chat_template_digest: str | None = None
    generation_config_digest: str | None = None
    dtype: str | None = None
    quantization: str | None = None
    kv_cache_dtype: str | None = None
    lora: str | None = None
    speculation: str | None = None

    # How it computes.
    tensor_parallel: int | None = None
    pipeline_parallel: int | None = None
    data_parallel: int | None = None
    attention_backend: str | None = None
    kv_split: str | None = None
    eager: bool | None = None
    batch_invariance: bool | None = None
    torch_determinism: str | None = None
    torch_fills_memory: bool | None = None
    cudnn_deterministic: bool | None = None
    cudnn_benchmark: bool | None = None
    cublas_workspace: str | None = None
    matmul_precision: str | None = None

    # How it schedules and samples.
    max_model_len: int | None = None
    block_size: int | None = None
    prefix_caching: bool | None = None
    chunked_prefill: bool | None = None
    max_batched_tokens: int | None = None
    max_scheduled_tokens: int | None = None
    max_sequences: int | None = None
    scheduling_policy: str | None = None
    async_scheduling: bool | None = None
    model_runner: str | None = None
    kv_connector: str | None = None
    logprobs_mode: str | None = None
    max_logprobs: int | None = None
    seed: int | None = None
    api_servers: int | None = None

    # What it runs on.
    device: str | None = None
    hardware: str | None = None
    architecture: str | None = None
    driver: str | None = None
    threads: int | None = None

    # An operator's word that something changed which none of the above shows.
    epoch: str | None = None

    # Of the moment, not of what is computed: never part of the digest.
    guard_key: bool | None = None

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, object]) -> "Posture":
        """The posture that `to_mapping` wrote, also of another version: unknown names are ignored, absent ones None.

        Raises ValueError, naming the field, for a value of another type.
        """
        known: dict[str, Fact] = {}
        for name, kind in _KINDS.items():
            value = mapping.get(name)
            if value is None:
                continue
            # bool is a subclass of int in Python, and true is not a count.
            if type(value) is not kind:
                raise ValueError(f"posture field {name!r} must be {kind.__name__}, not {type(value).__name__}")
            known[name] = value
        return cls(**known)  # type: ignore[arg-type]  # each value was just checked against its own field's type

    def to_mapping(self) -> dict[str, Fact]:
        """Every field by name, unknown ones as None; JSON can carry it."""
        return asdict(self)

    @property
    def unknown(self) -> tuple[str, ...]:
        """The names of the fields that nobody observed."""
        return tuple(name for name, value in self.to_mapping().items() if value is None)

    @property
    def digest(self) -> str:
        """``p-`` and 16 hex digits of SHA-256 over the canonical JSON of what runs, facts of the moment excluded."""
        facts = {name: value for name, value in self.to_mapping().items() if name not in _RUNTIME_ONLY}
        return "p-" + digest_of(facts)

    def provides(self, mitigation: Mitigation) -> Provision:
        """Whether a request that asks for ``mitigation`` gets it here."""
        return _RULES[mitigation](self)


def digest_of(value: object) -> str:
    """16 hex digits of SHA-256 over the canonical JSON (sorted keys, no spaces, UTF-8) of ``value``."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _field_kinds() -> dict[str, type[str | int | bool]]:
    return {
        field.name: next(kind for kind in get_args(field.type) if kind is not NoneType) for field in fields(Posture)
    }


_KINDS: Final = _field_kinds()


def _not_observed(name: str) -> str:
    return f"{name} was not observed, or differs between the workers"


def _differing(name: str, value: Fact) -> str | None:
    """The reason if the workers differ in this text, else None."""
    return f"the workers differ in {name} ({value})" if isinstance(value, str) and DIFFERING in value else None


def _by_request(_: Posture) -> Provision:
    return Provision(held=True)


def _isolation(posture: Posture) -> Provision:
    if posture.max_sequences == 1 and posture.data_parallel in {None, 1}:
        return Provision(held=True, reason="by construction: the engine runs one sequence at a time")
    if posture.guard_key is False:
        return Provision(held=False, reason="the guard has no key (REPRISE_GUARD_KEY is not set)")
    if posture.api_servers not in {None, 1}:
        return Provision(held=False, reason=f"the engine has {posture.api_servers} API servers, each with its own gate")
    if posture.guard_key is None or posture.api_servers is None:
        return Provision(held=None, reason="no guard reported on this replica")
    return Provision(held=True)


def _eager(posture: Posture) -> Provision:
    if posture.eager is None:
        return Provision(held=None, reason=_not_observed("enforce_eager"))
    return Provision(held=posture.eager, reason="" if posture.eager else "enforce_eager is off")


def _fixed_kv_split(posture: Posture) -> Provision:
    if posture.kv_split is None:
        return Provision(held=None, reason=_not_observed("the KV split"))
    if posture.kv_split == KV_SPLIT_FIXED:
        return Provision(held=True)
    if differing := _differing("the KV split", posture.kv_split):
        return Provision(held=False, reason=differing)
    if posture.device is None:
        return Provision(held=False, reason=f"the KV split is {posture.kv_split}")
    if posture.device == "cpu":
        return Provision(held=False, reason="VLLM_CPU_ATTN_SPLIT_KV is on: attention splits the KV over threads")
    return Provision(held=False, reason="batch invariance is off, and nothing else pins the KV split on this device")


def _compute_capability(architecture: str) -> tuple[int, int] | None:
    major, _, minor = architecture.partition(".")
    return (int(major), int(minor)) if major.isdecimal() and minor.isdecimal() else None


def _invariance_supported(posture: Posture) -> bool | None:
    if posture.device == "xpu":
        return True
    if posture.device is None or (posture.device in {"cuda", "rocm"} and posture.architecture is None):
        return None
    if posture.device == "rocm":
        return posture.architecture in INVARIANT_ROCM
    if posture.device == "cuda" and posture.architecture is not None:
        capability = _compute_capability(posture.architecture)
        return None if capability is None else capability >= INVARIANT_CUDA
    return False


def _batch_invariance(posture: Posture) -> Provision:
    if differing := _differing("the device", posture.device) or _differing("the architecture", posture.architecture):
        return Provision(held=False, reason=differing)
    supported = _invariance_supported(posture)
    if supported is False:
        where = f"{posture.device} {posture.architecture}" if posture.device in {"cuda", "rocm"} else posture.device
        return Provision(held=False, reason=f"vLLM has no batch-invariant kernels for {where}")
    if posture.batch_invariance is False:
        return Provision(held=False, reason="VLLM_BATCH_INVARIANT is off in the worker")
    if posture.batch_invariance is None or supported is None:
        return Provision(held=None, reason=_not_observed("batch invariance on this hardware"))
    return Provision(held=True)


_Switch: TypeAlias = tuple[str, str, frozenset[Fact]]
"""A field, its name in a reason, and its right values."""

_FRAMEWORK: Final[tuple[_Switch, ...]] = (
    ("torch_determinism", "torch's deterministic mode", frozenset({"on", "warn_only"})),
)
_CUDNN: Final[tuple[_Switch, ...]] = (
    ("cudnn_deterministic", "cuDNN's deterministic mode", frozenset({True})),
    ("cudnn_benchmark", "cuDNN's benchmark mode", frozenset({False})),
)
_FRAMEWORK_BY_DEVICE: Final[dict[str, tuple[_Switch, ...]]] = {
    "cpu": (),
    "cuda": (*_CUDNN, ("cublas_workspace", "CUBLAS_WORKSPACE_CONFIG", DETERMINISTIC_CUBLAS)),
    "rocm": _CUDNN,  # PyTorch hands cuDNN's flags to MIOpen
}
"""What a device needs beyond torch's own mode; on a device that is not here that is not known."""

_SPELLED: Final[dict[Fact, str]] = {True: "on", False: "off"}


def _framework(posture: Posture) -> Provision:
    wrong: list[str] = []
    unknown: list[str] = []
    for field, name, right in (*_FRAMEWORK, *_FRAMEWORK_BY_DEVICE.get(posture.device or "", ())):
        value = getattr(posture, field)
        if value is None:
            unknown.append(_not_observed(name))
        elif value not in right:
            wrong.append(_differing(name, value) or f"{name} is {_SPELLED.get(value, value)}")
    if posture.device is None:
        unknown.append(_not_observed("the device"))
    elif differing := _differing("the device", posture.device):
        wrong.append(differing)
    elif posture.device not in _FRAMEWORK_BY_DEVICE:
        unknown.append(f"what it needs on {posture.device} is not known")
    if wrong or unknown:
        return Provision(held=False if wrong else None, reason="; ".join(wrong or unknown))
    warns = posture.torch_determinism == "warn_only"
    return Provision(held=True, reason="operations without a deterministic form only warn" if warns else "")


def _verification(posture: Posture) -> Provision:
    """Passes repeat where each is alone, or no row depends on its company; and their rows must be log-probabilities."""
    wrong: list[str] = []
    unknown: list[str] = []
    alone, invariant = _isolation(posture), _batch_invariance(posture)
    if not (alone.held or invariant.held):
        (wrong if alone.held is False and invariant.held is False else unknown).append(alone.reason)
    if posture.data_parallel not in {None, 1}:
        wrong.append(f"the engine has {posture.data_parallel} data-parallel ranks, whose steps wait for each other")
    if posture.logprobs_mode is None:
        unknown.append(_not_observed("the logprobs mode"))
    elif posture.logprobs_mode not in LOGPROBS_MODES:
        wrong.append(f"--logprobs-mode is {posture.logprobs_mode}, so the engine reports no log-probabilities")
    if posture.speculation is None:
        unknown.append(_not_observed("speculative decoding"))
    elif posture.speculation != "none":
        wrong.append(f"the engine decodes speculatively ({posture.speculation})")
    if posture.kv_connector not in {None, "none"}:
        wrong.append(f"the engine takes KV from elsewhere ({posture.kv_connector})")
    if wrong or unknown:
        return Provision(held=False if wrong else None, reason="; ".join(wrong or unknown))
    return Provision(held=True)


_RULES: Final[dict[Mitigation, Callable[[Posture], Provision]]] = {
    Mitigation.BATCH_ISOLATION: _isolation,
    Mitigation.CACHE_BYPASS: _by_request,
    Mitigation.EAGER: _eager,
    Mitigation.FIXED_KV_SPLIT: _fixed_kv_split,
    Mitigation.BATCH_INVARIANCE: _batch_invariance,
    Mitigation.FRAMEWORK_DETERMINISM: _framework,
    Mitigation.TINY_TEMPERATURE: _by_request,
    Mitigation.PINNED_SEED: _by_request,
    Mitigation.VERIFICATION: _verification,
}
