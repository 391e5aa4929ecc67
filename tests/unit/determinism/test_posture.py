"""Posture: what is known round-trips, what is unknown is never taken for held."""

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.determinism.mode import POSTURE_MITIGATIONS, Mitigation
from app.determinism.posture import Posture, Provision
from app.engine.observer import merge_workers

CPU = Posture(
    device="cpu",
    architecture="x86_64 avx2",
    eager=True,
    kv_split="fixed",
    batch_invariance=False,
    torch_determinism="on",
    cudnn_deterministic=True,
    cudnn_benchmark=False,
    cublas_workspace=":4096:8",
    api_servers=1,
    guard_key=True,
    threads=2,
    logprobs_mode="raw_logprobs",
    speculation="none",
    kv_connector="none",
)
GPU = dataclasses.replace(CPU, device="cuda", architecture="9.0", batch_invariance=True, cublas_workspace=":16:8")
EXAMPLES: dict[object, object] = {str | None: "x", int | None: 7, bool | None: True}
FIELDS = {field.name for field in dataclasses.fields(Posture)}


def changed(posture: Posture, changes: dict[str, object]) -> Posture:
    """The posture with other facts."""
    return Posture.from_mapping(posture.to_mapping() | changes)


def held(posture: Posture, mitigation: str) -> bool | None:
    """Whether the posture holds the mitigation of that name."""
    return posture.provides(Mitigation(mitigation)).held


postures = st.builds(
    Posture,
    engine_version=st.none() | st.text(max_size=8),
    model=st.none() | st.text(max_size=8),
    eager=st.none() | st.booleans(),
    threads=st.none() | st.integers(0, 512),
    guard_key=st.none() | st.booleans(),
)


@settings(deadline=None)
@given(postures)
def test_a_mapping_gives_the_posture_back(posture: Posture) -> None:
    """from_mapping undoes to_mapping, and the digest survives."""
    again = Posture.from_mapping(posture.to_mapping())
    assert again == posture
    assert again.digest == posture.digest


def test_another_version_of_the_guard_is_understood() -> None:
    """Unknown names are ignored, absent ones are unknown."""
    posture = Posture.from_mapping({"threads": 2, "a_field_of_the_future": [1]})
    assert posture == Posture(threads=2)
    assert set(posture.unknown) == FIELDS - {"threads"}


@pytest.mark.parametrize("value", ["2", True, 2.0, [2]])
def test_a_value_of_another_type_is_refused(value: object) -> None:
    """A count that is no number names its field."""
    with pytest.raises(ValueError, match="'threads' must be int"):
        Posture.from_mapping({"threads": value})


def test_the_digest_is_short_stable_and_of_what_runs() -> None:
    """Sixteen hex digits that change with every fact, and not with facts of the moment."""
    assert Posture().digest == "p-9338656e49448cbf"
    assert changed(CPU, {"guard_key": False}).digest == CPU.digest
    for field in dataclasses.fields(Posture):
        if field.name == "guard_key":
            continue
        other = EXAMPLES[field.type] if getattr(CPU, field.name) is None else None
        assert changed(CPU, {field.name: other}).digest != CPU.digest, field.name


def test_what_nobody_observed_is_never_held() -> None:
    """An empty posture holds only what a request itself carries; the rest is unknown, and says so."""
    for mitigation in Mitigation:
        provision = Posture().provides(mitigation)
        if mitigation in POSTURE_MITIGATIONS | {Mitigation.BATCH_ISOLATION, Mitigation.VERIFICATION}:
            assert provision.held is None
            assert provision.reason
        else:
            assert provision == Provision(held=True)


def test_the_deterministic_profile_on_a_cpu() -> None:
    """Everything but batch invariance, which no CPU has in vLLM."""
    provided = {mitigation.value: CPU.provides(mitigation) for mitigation in Mitigation}
    assert {name for name, provision in provided.items() if not provision.held} == {"batch_invariance"}
    assert provided["batch_invariance"] == Provision(held=False, reason="vLLM has no batch-invariant kernels for cpu")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, True),
        ({"architecture": "8.0"}, True),
        ({"architecture": "10.0"}, True),
        ({"architecture": "7.5"}, False),
        ({"architecture": None}, None),
        ({"architecture": "sm_90"}, None),
        ({"architecture": "²3.0"}, None),
        ({"architecture": "8.6 | 9.0"}, False),
        ({"device": "cpu | cuda"}, False),
        ({"device": "rocm", "architecture": "gfx90a | gfx942"}, False),
        ({"batch_invariance": False}, False),
        ({"batch_invariance": None}, None),
        ({"device": None}, None),
        ({"device": "rocm", "architecture": "gfx942"}, True),
        ({"device": "rocm", "architecture": "gfx1100"}, False),
        ({"device": "xpu", "architecture": None}, True),
        ({"device": "tpu"}, False),
    ],
)
def test_batch_invariance_needs_the_flag_and_the_hardware(changes: dict[str, object], *, expected: bool | None) -> None:
    """The worker's flag counts only on hardware for which vLLM documents it."""
    posture = changed(GPU, changes)
    provision = posture.provides(Mitigation.BATCH_INVARIANCE)
    assert provision.held is expected
    assert bool(provision.reason) is (expected is not True)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, True),
        ({"torch_determinism": "warn_only"}, True),
        ({"torch_determinism": "off"}, False),
        ({"torch_determinism": None}, None),
        ({"torch_determinism": "off | on"}, False),
        ({"torch_determinism": "on | warn_only"}, False),
        ({"torch_determinism": "On"}, False),
        ({"cudnn_benchmark": True}, False),
        ({"cudnn_benchmark": None}, None),
        ({"cudnn_deterministic": False}, False),
        ({"cudnn_deterministic": None}, None),
        ({"cudnn_deterministic": None, "cublas_workspace": "none"}, False),
        ({"cublas_workspace": "none"}, False),
        ({"cublas_workspace": None}, None),
        ({"cublas_workspace": ":16:8 | :4096:8"}, False),
        ({"cublas_workspace": "none", "device": "cpu"}, True),
        ({"cudnn_benchmark": None, "cudnn_deterministic": None, "cublas_workspace": None, "device": "cpu"}, True),
        ({"torch_determinism": "off | on", "device": "cpu"}, False),
        ({"torch_determinism": None, "device": "cpu"}, None),
        ({"cublas_workspace": "none", "device": "rocm"}, True),
        ({"cudnn_benchmark": None, "device": "rocm"}, None),
        ({"device": None}, None),
        ({"device": None, "torch_determinism": "off"}, False),
        ({"device": "tpu"}, None),
        ({"device": "cpu | cuda"}, False),
    ],
)
def test_framework_determinism_needs_every_switch(changes: dict[str, object], *, expected: bool | None) -> None:
    """Torch, and what the device adds: cuDNN's flags on GPUs, cuBLAS on CUDA. warn_only counts; mixed never does."""
    provision = changed(GPU, changes).provides(Mitigation.FRAMEWORK_DETERMINISM)
    assert provision.held is expected
    assert provision.reason or expected


def test_a_switch_without_a_device_holds_nothing() -> None:
    """What torch's mode alone covers depends on a device that nobody has seen."""
    provision = Posture(torch_determinism="on").provides(Mitigation.FRAMEWORK_DETERMINISM)
    assert provision == Provision(held=None, reason="the device was not observed, or differs between the workers")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"torch_determinism": "off | on"}, "the workers differ in torch's deterministic mode (off | on)"),
        ({"torch_determinism": "off"}, "torch's deterministic mode is off"),
        ({"cudnn_benchmark": True}, "cuDNN's benchmark mode is on"),
        ({"cudnn_deterministic": False}, "cuDNN's deterministic mode is off"),
        ({"cublas_workspace": "none"}, "CUBLAS_WORKSPACE_CONFIG is none"),
        (
            {"cublas_workspace": "none", "cudnn_benchmark": True},
            "cuDNN's benchmark mode is on; CUBLAS_WORKSPACE_CONFIG is none",
        ),
        ({"cudnn_benchmark": None}, "cuDNN's benchmark mode was not observed, or differs between the workers"),
        ({"device": "cpu | cuda"}, "the workers differ in the device (cpu | cuda)"),
        ({"device": "tpu"}, "what it needs on tpu is not known"),
    ],
)
def test_framework_determinism_says_which_switch(changes: dict[str, object], reason: str) -> None:
    """Every switch that is wrong is named, or else every one that nobody knows."""
    assert changed(GPU, changes).provides(Mitigation.FRAMEWORK_DETERMINISM).reason == reason


@given(st.sampled_from(sorted(Mitigation)), st.data())
def test_a_replica_whose_workers_differ_in_a_fact_does_not_gain_by_it(
    mitigation: Mitigation, data: st.DataObject
) -> None:
    """Whatever text two workers differ in, no mitigation is held that both would not have held alone."""
    texts = {
        "device": ["cpu", "cuda", "rocm", "xpu", "tpu"],
        "architecture": ["7.5", "9.0", "gfx942", "gfx1100"],
        "kv_split": ["fixed", "by_threads", "heuristic"],
        "torch_determinism": ["on", "off", "warn_only"],
        "cublas_workspace": [":16:8", ":4096:8", "none"],
    }
    name = data.draw(st.sampled_from(sorted(texts)))
    first, second = data.draw(st.lists(st.sampled_from(texts[name]), min_size=2, max_size=2, unique=True))
    apart = [changed(GPU, {name: value}).provides(mitigation).held for value in (first, second)]
    merged = changed(GPU, dict(merge_workers([{name: first}, {name: second}]))).provides(mitigation)
    assert merged.held is not True or apart == [True, True]


def test_warn_only_says_so() -> None:
    """Held, with the reservation in the reason."""
    provision = dataclasses.replace(CPU, torch_determinism="warn_only").provides(Mitigation.FRAMEWORK_DETERMINISM)
    assert provision == Provision(held=True, reason="operations without a deterministic form only warn")


@pytest.mark.parametrize(
    ("changes", "expected", "reason"),
    [
        ({}, True, ""),
        ({"guard_key": False}, False, "REPRISE_GUARD_KEY"),
        ({"api_servers": 4}, False, "4 API servers"),
        ({"api_servers": 0}, False, "0 API servers"),
        ({"guard_key": None}, None, "no guard"),
        ({"api_servers": None}, None, "no guard"),
    ],
)
def test_isolation_needs_one_gate_and_a_key(changes: dict[str, object], reason: str, *, expected: bool | None) -> None:
    """With several API servers there are several gates, and without a key nobody may ask."""
    provision = changed(CPU, changes).provides(Mitigation.BATCH_ISOLATION)
    assert provision.held is expected
    assert reason in provision.reason


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"kv_split": "by_threads"}, "VLLM_CPU_ATTN_SPLIT_KV is on"),
        ({"kv_split": "heuristic", "device": "cuda"}, "batch invariance is off"),
        ({"kv_split": "heuristic", "device": None}, "the KV split is heuristic"),
        ({"kv_split": "by_threads | fixed"}, "the workers differ in the KV split (by_threads | fixed)"),
        ({"kv_split": "fixed | heuristic", "device": "cuda"}, "the workers differ in the KV split"),
        ({"kv_split": None}, "not observed"),
    ],
)
def test_a_split_that_is_not_fixed_says_why(changes: dict[str, object], reason: str) -> None:
    """The reason names the switch of that device."""
    provision = changed(CPU, changes).provides(Mitigation.FIXED_KV_SPLIT)
    assert not provision.held
    assert reason in provision.reason


@pytest.mark.parametrize(
    ("changes", "expected", "reason"),
    [
        ({}, True, ""),
        ({"logprobs_mode": "processed_logprobs", "data_parallel": 1, "kv_connector": None}, True, ""),
        ({"logprobs_mode": "raw_logits"}, False, "--logprobs-mode is raw_logits"),
        ({"logprobs_mode": None}, None, "the logprobs mode was not observed"),
        ({"speculation": "method=ngram"}, False, "speculatively (method=ngram)"),
        ({"speculation": None}, None, "speculative decoding was not observed"),
        ({"data_parallel": 2}, False, "2 data-parallel ranks"),
        ({"kv_connector": "kv_connector=LMCache"}, False, "KV from elsewhere (kv_connector=LMCache)"),
        ({"guard_key": False}, False, "REPRISE_GUARD_KEY"),
        ({"guard_key": None}, None, "no guard reported"),
        ({"guard_key": False, "max_sequences": 1}, True, ""),
        ({"guard_key": False, "logprobs_mode": "raw_logits"}, False, "; --logprobs-mode is raw_logits"),
        ({"guard_key": None, "logprobs_mode": "raw_logits"}, False, "--logprobs-mode is raw_logits"),
    ],
)
def test_verification_needs_passes_that_repeat(
    changes: dict[str, object], reason: str, *, expected: bool | None
) -> None:
    """Alone on the engine, in log-probabilities, and by nothing but the model itself."""
    provision = changed(CPU, changes).provides(Mitigation.VERIFICATION)
    assert provision.held is expected
    assert reason in provision.reason
    assert bool(provision.reason) is (expected is not True)


def test_verification_beside_others_needs_batch_invariance() -> None:
    """Where rows do not depend on their company, nobody has to be alone."""
    shared = changed(GPU, {"guard_key": False})
    assert held(shared, "verification") is True
    assert held(changed(shared, {"batch_invariance": False}), "verification") is False
    assert held(changed(shared, {"batch_invariance": None}), "verification") is None


def test_eager_is_what_the_engine_says() -> None:
    """enforce_eager, off, and unobserved are three answers."""
    for eager in (True, False, None):
        assert held(changed(CPU, {"eager": eager}), "eager") is eager
