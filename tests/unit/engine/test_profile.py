"""Profiles as data: what each sets on which device, and above all what it must never set."""

import pytest

from app.engine.profile import DETERMINISTIC, PROFILES, THROUGHPUT, VERIFIER, Rendering, Target

GUARD = (
    "--middleware",
    "app.engine.guard.Guard",
    "--worker-extension-cls",
    "app.engine.plugin.Extension",
    "--api-server-count",
    "1",
    "--enable-prompt-tokens-details",
)


@pytest.mark.parametrize("target", Target)
def test_throughput_is_vllms_defaults_and_the_guard(target: Target) -> None:
    """No argument but the guard's, and nothing that an operator's environment could not override."""
    rendering = THROUGHPUT.render(target)
    assert rendering.argv == GUARD
    assert rendering.environment == {}
    assert "REPRISE_TORCH_DETERMINISTIC" not in rendering.defaults


@pytest.mark.parametrize("target", Target)
def test_deterministic_pins_what_a_launch_can_pin(target: Target) -> None:
    """Eager, no prefix cache, a seed, vLLM's own sampling defaults, torch's switch and cuBLAS's workspace."""
    rendering = DETERMINISTIC.render(target)
    assert rendering.argv == (
        *GUARD,
        *("--no-enable-prefix-caching", "--enforce-eager", "--seed", "0", "--generation-config", "vllm"),
    )
    assert rendering.defaults["REPRISE_TORCH_DETERMINISTIC"] == "on"
    assert rendering.environment["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"


@pytest.mark.parametrize("target", Target)
def test_a_verifier_differs_in_its_prefix_cache_alone(target: Target) -> None:
    """Everything that makes an engine repeat is that of the deterministic profile; the default window fits a block."""
    one, other = VERIFIER.render(target), DETERMINISTIC.render(target)
    assert (one.environment, one.defaults) == (other.environment, other.defaults)
    assert set(one.argv) ^ set(other.argv) == {
        "--no-enable-prefix-caching",
        *("--enable-prefix-caching", "--block-size", "128"),
    }


def test_on_a_cpu_the_split_is_fixed_by_its_own_switch() -> None:
    """And batch invariance, which kills that engine, is never set."""
    environment = DETERMINISTIC.render(Target.CPU).environment
    assert environment["VLLM_CPU_ATTN_SPLIT_KV"] == "0"
    assert "VLLM_BATCH_INVARIANT" not in environment
    assert "VLLM_BATCH_INVARIANT" not in DETERMINISTIC.render(Target.CPU, (9, 0)).environment


@pytest.mark.parametrize(
    ("capability", "invariant"), [(None, True), ((7, 5), False), ((8, 0), True), ((8, 9), True), ((10, 0), True)]
)
def test_on_cuda_the_split_is_fixed_by_batch_invariance(capability: tuple[int, int] | None, *, invariant: bool) -> None:
    """From compute capability 8.0 on; where it cannot be asked, posture will tell what the worker has."""
    environment = DETERMINISTIC.render(Target.CUDA, capability).environment
    assert (environment.get("VLLM_BATCH_INVARIANT") == "1") is invariant
    assert "VLLM_CPU_ATTN_SPLIT_KV" not in environment


def test_profiles_are_found_by_name_and_cannot_be_changed() -> None:
    """A rendering that somebody edits would change every later launch."""
    names = ["throughput", "deterministic", "verifier"]
    assert [PROFILES[name].name for name in names] == names
    rendering: Rendering = DETERMINISTIC.render(Target.CPU)
    with pytest.raises(TypeError):
        rendering.environment["SEED"] = "1"  # type: ignore[index]  # that it cannot is the point
