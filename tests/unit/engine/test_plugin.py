"""The plugin's two jobs: switch torch, and tell what a worker has, on machines with a GPU too."""

import os
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from app.determinism.mode import Mitigation
from app.determinism.posture import Posture
from app.engine import plugin
from app.engine.plugin import Extension, cpu_facts, register

CPUINFO = """processor\t: 0
model name\t: Some Processor 9
flags\t\t: fpu avx2 fma avx512f sse

processor\t: 1
model name\t: Another
flags\t\t: fpu
"""


class FakeTorch(ModuleType):
    """The parts of torch that the plugin touches, on a CPU or with a GPU."""

    def __init__(self, capability: tuple[int, int] | None = None) -> None:
        super().__init__("torch")
        self.__version__ = "2.13.0"
        self.deterministic, self.warn_only = False, False
        self.backends = SimpleNamespace(
            cudnn=SimpleNamespace(deterministic=False, benchmark=True, version=lambda: 91002),
            cuda=SimpleNamespace(matmul=SimpleNamespace(fp32_precision="ieee")),
        )
        self.utils = SimpleNamespace(deterministic=SimpleNamespace(fill_uninitialized_memory=True))
        self.version = SimpleNamespace(cuda="12.9", hip=None)
        major, minor = capability or (0, 0)
        card = SimpleNamespace(name="NVIDIA H200", gcnArchName="gfx942:sramecc+", major=major, minor=minor)
        self.cuda = SimpleNamespace(get_device_properties=lambda _: card, current_device=lambda: 0)

    def use_deterministic_algorithms(self, mode: bool, *, warn_only: bool = False) -> None:
        """As torch's."""
        self.deterministic, self.warn_only = mode, warn_only

    def are_deterministic_algorithms_enabled(self) -> bool:
        """As torch's."""
        return self.deterministic

    def is_deterministic_algorithms_warn_only_enabled(self) -> bool:
        """As torch's."""
        return self.warn_only

    def get_num_threads(self) -> int:
        """As torch's."""
        return 3

    def get_float32_matmul_precision(self) -> str:
        """As torch's."""
        return "highest"


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> FakeTorch:
    """A torch to import, and an environment without our switches."""
    fake = FakeTorch()
    monkeypatch.setitem(sys.modules, "torch", fake)
    for name in (plugin.TORCH_DETERMINISTIC, "CUBLAS_WORKSPACE_CONFIG"):
        monkeypatch.setenv(name, "")  # so that the fixture restores what register() sets
        monkeypatch.delenv(name)
    return fake


@pytest.mark.parametrize("switch", ["on", "warn_only"])
def test_register_switches_torch_once_and_for_all(
    torch: FakeTorch, monkeypatch: pytest.MonkeyPatch, switch: str
) -> None:
    """Deterministic algorithms, cuDNN pinned, cuBLAS given a workspace; a second call changes nothing."""
    monkeypatch.setenv(plugin.TORCH_DETERMINISTIC, switch)
    for _ in range(2):
        register()
        assert (torch.deterministic, torch.warn_only) == (True, switch == "warn_only")
        assert (torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark) == (True, False)
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"


def test_a_workspace_that_is_set_stays(torch: FakeTorch, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batch invariance needs its own."""
    monkeypatch.setenv(plugin.TORCH_DETERMINISTIC, "on")
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    register()
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":16:8"
    assert torch.deterministic


@pytest.mark.parametrize("switch", [None, "", "off"])
def test_off_leaves_torch_alone(torch: FakeTorch, monkeypatch: pytest.MonkeyPatch, switch: str | None) -> None:
    """VLLM's defaults stay vLLM's defaults."""
    if switch is not None:
        monkeypatch.setenv(plugin.TORCH_DETERMINISTIC, switch)
    register()
    assert not torch.deterministic
    assert torch.backends.cudnn.benchmark
    assert "CUBLAS_WORKSPACE_CONFIG" not in os.environ


def test_another_word_stops_the_engine(torch: FakeTorch, monkeypatch: pytest.MonkeyPatch) -> None:
    """It must not start with less than it was asked for."""
    monkeypatch.setenv(plugin.TORCH_DETERMINISTIC, "yes")
    with pytest.raises(ValueError, match="REPRISE_TORCH_DETERMINISTIC must be on, warn_only or off, not 'yes'"):
        register()
    assert not torch.deterministic


def worker_facts(
    monkeypatch: pytest.MonkeyPatch, device: str, *, invariant: bool, split: bool = True
) -> dict[str, Any]:
    """What a worker on ``device`` tells."""
    envs = SimpleNamespace(VLLM_BATCH_INVARIANT=invariant, VLLM_CPU_ATTN_SPLIT_KV=split)
    platform = SimpleNamespace(
        is_cpu=lambda: device == "cpu",
        is_rocm=lambda: device == "rocm",
        device_type="cuda" if device == "rocm" else device,
    )
    vllm = ModuleType("vllm")
    vllm.__version__ = "0.32.0"  # type: ignore[attr-defined]  # a stand-in
    vllm.envs = envs  # type: ignore[attr-defined]  # a stand-in gets what the real one has
    monkeypatch.setitem(sys.modules, "vllm", vllm)
    monkeypatch.setitem(sys.modules, "vllm.platforms", SimpleNamespace(current_platform=platform))
    backend = SimpleNamespace(get_name=lambda: "CPU_ATTN")
    layers = {"a": SimpleNamespace(attn_backend=backend, isa="amx"), "b": SimpleNamespace(attn_backend=backend), "c": 1}
    worker = Extension()
    worker.vllm_config = SimpleNamespace(  # type: ignore[attr-defined]  # vLLM's worker has it
        compilation_config=SimpleNamespace(static_forward_context=layers)
    )
    worker.use_v2_model_runner = False  # type: ignore[attr-defined]  # a stand-in gets what the real one has
    return worker.reprise_worker_posture()


@pytest.mark.parametrize(("split", "expected"), [(True, "by_threads"), (False, "fixed")])
def test_a_cpu_worker_tells_what_it_has(
    torch: FakeTorch, monkeypatch: pytest.MonkeyPatch, *, split: bool, expected: str
) -> None:
    """Threads, split, backend with its instruction set, and torch as it is in that process."""
    torch.use_deterministic_algorithms(True)  # noqa: FBT003 - torch's own signature
    facts = worker_facts(monkeypatch, "cpu", invariant=False, split=split)
    posture = Posture.from_mapping(facts)
    assert (posture.device, posture.kv_split, posture.threads, posture.driver) == ("cpu", expected, 3, "none")
    assert (posture.torch_determinism, posture.cudnn_benchmark, posture.cublas_workspace) == ("on", True, "none")
    assert (posture.attention_backend, posture.model_runner) == ("CPU_ATTN | CPU_ATTN/amx", "v1")
    assert posture.matmul_precision == "highest/ieee"
    assert set(facts) <= set(posture.to_mapping())


@pytest.mark.parametrize(
    ("device", "invariant", "architecture", "split"),
    [
        ("cuda", True, "9.0", "fixed"),
        ("cuda", False, "9.0", "heuristic"),
        ("rocm", True, "gfx942", "fixed"),
        ("xpu", True, None, "fixed"),
    ],
)
def test_a_gpu_worker_has_its_split_from_batch_invariance(
    torch: FakeTorch,
    monkeypatch: pytest.MonkeyPatch,
    device: str,
    architecture: str | None,
    split: str,
    *,
    invariant: bool,
) -> None:
    """The flag in the worker decides, whatever the environment of the API server says."""
    fake = FakeTorch((9, 0))
    monkeypatch.setitem(sys.modules, "torch", fake)
    assert torch is not fake
    posture = Posture.from_mapping(worker_facts(monkeypatch, device, invariant=invariant))
    assert (posture.device, posture.architecture, posture.kv_split) == (device, architecture, split)
    assert posture.batch_invariance is invariant
    assert posture.provides(Mitigation.BATCH_INVARIANCE).held is invariant
    if device == "cuda":
        assert (posture.hardware, posture.driver) == ("NVIDIA H200", "cuda=12.9 cudnn=91002")


def test_a_precision_that_torch_refuses_to_tell_is_read_from_the_other_switch(
    torch: FakeTorch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Torch raises when its older switch is read after the newer one was set."""

    def refuse() -> str:
        raise RuntimeError("mix of the legacy and the new API")

    monkeypatch.setattr(torch, "get_float32_matmul_precision", refuse)
    assert worker_facts(monkeypatch, "cpu", invariant=False)["matmul_precision"] == "ieee"


def test_cpu_facts_are_of_the_first_processor() -> None:
    """Model name, and the instruction sets that choose kernels, in a fixed order."""
    name, architecture = cpu_facts(CPUINFO)
    assert name == "Some Processor 9"
    assert architecture.split()[1:] == ["avx2", "fma", "avx512f"]
    assert cpu_facts("Features\t: sve asimd\n")[1].split()[1:] == ["asimd", "sve"]
    assert cpu_facts("")[0] is None


def test_the_extensions_name_is_its_place() -> None:
    """What --worker-extension-cls is given exists, and the guard calls a method that it has."""
    assert f"{Extension.__module__}.{Extension.__qualname__}" == plugin.EXTENSION
    assert hasattr(Extension, plugin.WORKER_METHOD)
