"""Engine profiles: how a vLLM is launched, as data that renders to environment and arguments.

* ``throughput``: vLLM's defaults, plus the guard and the posture extension. Nothing about numerics is touched.
* ``deterministic``: what a posture can hold at launch. Eager, a fixed KV split, no prefix cache, framework determinism,
  a fixed engine seed, vLLM's own sampling defaults, and where the hardware has them batch-invariant kernels.
* ``verifier``: the same with a prefix cache, so that a pass of a verified answer costs a block, however long the
  prompt.

How the KV split is fixed depends on the target:

* **cpu**: ``VLLM_CPU_ATTN_SPLIT_KV=0``. With vLLM's default (1) attention splits the keys of one request over the
  OpenMP threads, so the order of its sums depends on their number. Other parallel work may still depend on that number,
  so `app.engine.launch` pins the binding (``VLLM_CPU_OMP_THREADS_BIND``) too, and the thread count is posture.
  ``VLLM_BATCH_INVARIANT`` is never set: in 0.32 it kills the CPU engine at its first request.
* **cuda**: ``VLLM_BATCH_INVARIANT=1``, which makes FlashAttention use one split (vLLM 0.32,
  v1/attention/backends/flash_attn.py). With eager execution no other setting does. It needs compute capability 8.0.
  Rendered from vLLM's source and documentation; **this project has not run it on a GPU yet.** On compute capability 9.0
  and newer, batch invariance overwrites CUBLAS_WORKSPACE_CONFIG with ``:16:8``, which repeats too; posture shows it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from app.determinism.posture import INVARIANT_CUDA
from app.engine.plugin import EXTENSION, TORCH_DETERMINISTIC

NOTHING: Final[Mapping[str, str]] = MappingProxyType({})


class Target(StrEnum):
    """What the engine computes on."""

    CPU = "cpu"
    CUDA = "cuda"


@dataclass(frozen=True, slots=True)
class Rendering:
    """What a profile adds to a launch.

    ``environment`` belongs to the profile and replaces what the operator has set; ``defaults`` give way to it.
    """

    environment: Mapping[str, str]
    defaults: Mapping[str, str]
    argv: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class EngineProfile:
    """A named way to launch an engine."""

    name: str
    purpose: str
    argv: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    defaults: Mapping[str, str] = field(default_factory=dict)
    by_target: Mapping[Target, Mapping[str, str]] = field(default_factory=dict)
    batch_invariance: bool = False

    def render(self, target: Target, compute_capability: tuple[int, int] | None = None) -> Rendering:
        """Environment and vLLM arguments for ``target``.

        ``compute_capability`` is CUDA's, None where it is not known: batch invariance is then rendered, since every
        NVIDIA architecture since 2020 has it, and posture reports what the worker made of it.
        """
        environment = {**self.environment, **self.by_target.get(target, NOTHING)}
        if self.batch_invariance and target is Target.CUDA and (compute_capability or INVARIANT_CUDA) >= INVARIANT_CUDA:
            environment["VLLM_BATCH_INVARIANT"] = "1"
        return Rendering(
            environment=MappingProxyType(environment),
            defaults=MappingProxyType({**_DEFAULTS[target], **self.defaults}),
            argv=_GUARD_ARGV + self.argv,
        )


_GUARD_ARGV: Final = (
    "--middleware",
    "app.engine.guard.Guard",
    "--worker-extension-cls",
    EXTENSION,
    # The gate lives in one process. `python -m vllm...api_server` never starts more; `vllm serve` would, with
    # --data-parallel-size.
    "--api-server-count",
    "1",
    # The cached prompt tokens of an answer: the cheapest proof that a request bypassed the prefix cache.
    "--enable-prompt-tokens-details",
)

_DEFAULTS: Final[dict[Target, Mapping[str, str]]] = {
    Target.CPU: MappingProxyType(
        {
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            # Milliseconds that an idle OpenMP thread spins. vLLM sets its own value when libiomp is preloaded.
            "KMP_BLOCKTIME": "1",
        }
    ),
    Target.CUDA: MappingProxyType({"VLLM_NO_USAGE_STATS": "1"}),
}

THROUGHPUT: Final = EngineProfile(name="throughput", purpose="vLLM's defaults plus the guard")

_REPEATABLE: Final = (
    "--enforce-eager",
    *("--seed", "0"),
    # Without it a model's own generation_config.json fills in the sampling fields that a caller leaves out.
    *("--generation-config", "vllm"),
)

DETERMINISTIC: Final = EngineProfile(
    name="deterministic",
    purpose="eager, fixed KV split, no prefix cache, framework determinism, batch invariance where the hardware has it",
    argv=("--no-enable-prefix-caching", *_REPEATABLE),
    environment=MappingProxyType({"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}),
    # An operator may set warn_only: torch refuses an operation that has no deterministic form by raising, which ends
    # vLLM's engine. On a CPU none refuses for the bundled model, with every sampling option and endpoint tried.
    defaults=MappingProxyType({TORCH_DETERMINISTIC: "on"}),
    by_target=MappingProxyType({Target.CPU: MappingProxyType({"VLLM_CPU_ATTN_SPLIT_KV": "0"})}),
    batch_invariance=True,
)

VERIFIER: Final = replace(
    DETERMINISTIC,
    name="verifier",
    purpose="deterministic, with a prefix cache, in which long prompts of verified answers are read once",
    # The window of a chain divides the block; vLLM's own default is 16 on GPUs.
    argv=("--enable-prefix-caching", "--block-size", "128", *_REPEATABLE),
)

PROFILES: Final[Mapping[str, EngineProfile]] = MappingProxyType(
    {profile.name: profile for profile in (THROUGHPUT, DETERMINISTIC, VERIFIER)}
)
"""Every profile, by the name that ``--profile`` takes."""
