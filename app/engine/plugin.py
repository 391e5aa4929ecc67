"""vLLM's plugin: the torch switch in its processes, and what a worker tells of its posture.

`register` is the ``vllm.general_plugins`` entry point. vLLM calls it in every process that it starts (API server,
engine core, workers), in some more than once. `Extension` is mixed into vLLM's worker class by
``--worker-extension-cls``; `app.engine.observer` calls its one method over vLLM's ``collective_rpc``, because
environment and torch state of the API server say nothing about the process that computes: vLLM rewrites both in its
workers.

vllm and torch are imported inside functions: they exist in the engine's environment only.
"""

import os
import platform
from pathlib import Path
from typing import Any, Final

from app.determinism.posture import KV_SPLIT_FIXED, Fact

TORCH_DETERMINISTIC: Final = "REPRISE_TORCH_DETERMINISTIC"
"""Environment variable: ``on``, ``warn_only``, or ``off`` (the default)."""

EXTENSION: Final = "app.engine.plugin.Extension"
"""What ``--worker-extension-cls`` takes."""

WORKER_METHOD: Final = "reprise_worker_posture"

_ISA_FLAGS: Final = (
    *("avx2", "fma", "avx512f", "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_tile", "amx_bf16", "amx_int8"),
    *("asimd", "asimddp", "bf16", "i8mm", "sve", "sve2"),
)


def register() -> None:
    """Switch torch to deterministic algorithms if REPRISE_TORCH_DETERMINISTIC asks for it. Idempotent.

    Raises ValueError for another value than ``on``, ``warn_only``, ``off`` or "": an engine must not start with less
    than it was asked for.
    """
    wanted = os.environ.get(TORCH_DETERMINISTIC, "off") or "off"
    if wanted not in {"on", "warn_only", "off"}:
        raise ValueError(f"{TORCH_DETERMINISTIC} must be on, warn_only or off, not {wanted!r}")
    if wanted == "off":
        return
    # cuBLAS reads it when its handle is made, which is long after this. A value that is set already stays: vLLM's batch
    # invariance needs its own (:16:8 on compute capability 9.0 and newer), and posture reports the one that won.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    import torch  # noqa: PLC0415 - present in the engine's environment only

    torch.use_deterministic_algorithms(True, warn_only=wanted == "warn_only")  # noqa: FBT003 - torch's own signature
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False


class Extension:
    """Mixed into vLLM's worker class; vLLM refuses an attribute that the worker already has, hence the long name."""

    def reprise_worker_posture(self) -> dict[str, Fact]:
        """What this worker process really has, by posture field; None is unknown."""
        import torch  # noqa: PLC0415 - present in the engine's environment only
        from vllm import __version__ as engine_version  # noqa: PLC0415 - as torch
        from vllm import envs  # noqa: PLC0415 - as torch

        return {
            "engine_version": engine_version,
            "torch_version": str(torch.__version__),
            "batch_invariance": bool(envs.VLLM_BATCH_INVARIANT),
            "attention_backend": _attention_backend(self),
            "model_runner": _model_runner(self),
            "cublas_workspace": os.environ.get("CUBLAS_WORKSPACE_CONFIG", "none"),
            **_torch_facts(torch),
            **_device_facts(torch, envs),
        }


def _torch_facts(torch: Any) -> dict[str, Fact]:  # noqa: ANN401 - the module
    determinism = "off"
    if torch.are_deterministic_algorithms_enabled():
        determinism = "warn_only" if torch.is_deterministic_algorithms_warn_only_enabled() else "on"
    return {
        "torch_determinism": determinism,
        "torch_fills_memory": bool(determinism != "off" and torch.utils.deterministic.fill_uninitialized_memory),
        "cudnn_deterministic": bool(torch.backends.cudnn.deterministic),
        "cudnn_benchmark": bool(torch.backends.cudnn.benchmark),
        "matmul_precision": _matmul_precision(torch),
        "threads": int(torch.get_num_threads()),
    }


def _matmul_precision(torch: Any) -> str | None:  # noqa: ANN401 - the module
    try:
        return f"{torch.get_float32_matmul_precision()}/{torch.backends.cuda.matmul.fp32_precision}"
    except (AttributeError, RuntimeError):
        # torch refuses to read the older of its two switches once the newer one was set, as batch invariance does.
        value = getattr(torch.backends.cuda.matmul, "fp32_precision", None)
        return None if value is None else str(value)


def _device_facts(torch: Any, envs: Any) -> dict[str, Fact]:  # noqa: ANN401 - modules
    from vllm.platforms import current_platform  # noqa: PLC0415 - present in the engine's environment only

    invariant = bool(envs.VLLM_BATCH_INVARIANT)
    if current_platform.is_cpu():
        hardware, architecture = cpu_facts(_text_of(Path("/proc/cpuinfo")))
        return {
            "device": "cpu",
            "hardware": hardware,
            "architecture": architecture,
            "driver": "none",
            "kv_split": "by_threads" if envs.VLLM_CPU_ATTN_SPLIT_KV else KV_SPLIT_FIXED,
        }
    # Everywhere else only batch invariance pins the split: FlashAttention's own knob acts on captured graphs alone, and
    # prefill and large steps are not captured (vllm/v1/attention/backends/flash_attn.py in 0.32). Read in the source,
    # not yet proven on a GPU.
    facts: dict[str, Fact] = {
        "device": "rocm" if current_platform.is_rocm() else str(current_platform.device_type),
        "kv_split": KV_SPLIT_FIXED if invariant else "heuristic",
    }
    if facts["device"] in {"cuda", "rocm"}:
        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        rocm = facts["device"] == "rocm"
        facts["hardware"] = str(properties.name)
        facts["architecture"] = (
            str(properties.gcnArchName).split(":")[0] if rocm else f"{properties.major}.{properties.minor}"
        )
        facts["driver"] = _gpu_driver(torch)
    return facts


def _gpu_driver(torch: Any) -> str:  # noqa: ANN401 - the module
    kernel_module = _text_of(Path("/proc/driver/nvidia/version")).partition("\n")[0].split()
    numbers = [word for word in kernel_module if word[:1].isdigit() and "." in word]
    parts = {
        "driver": numbers[0] if numbers else None,
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        "cudnn": torch.backends.cudnn.version(),
    }
    return " ".join(f"{name}={value}" for name, value in parts.items() if value is not None)


def cpu_facts(cpuinfo: str) -> tuple[str | None, str]:
    """Model name, and machine with the instruction sets that choose kernels, from the text of /proc/cpuinfo."""
    values: dict[str, str] = {}
    for line in cpuinfo.splitlines():
        name, _, value = line.partition(":")
        values.setdefault(name.strip().lower(), value.strip())
    flags = set((values.get("flags") or values.get("features") or "").split())
    machine = " ".join([platform.machine(), *(flag for flag in _ISA_FLAGS if flag in flags)])
    return values.get("model name") or None, machine


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _attention_backend(worker: object) -> str | None:
    """The backends of the model's attention layers, and on CPU the kernel's instruction set; None if it has none."""
    compilation = getattr(getattr(worker, "vllm_config", None), "compilation_config", None)
    layers = getattr(compilation, "static_forward_context", {})
    names = set()
    for layer in layers.values():
        backend = getattr(layer, "attn_backend", None)
        if backend is not None:
            isa = getattr(layer, "isa", None)
            names.add(backend.get_name() + (f"/{isa}" if isa else ""))
    return " | ".join(sorted(names)) or None


def _model_runner(worker: object) -> str | None:
    second = getattr(worker, "use_v2_model_runner", None)
    return None if second is None else "v2" if second else "v1"
