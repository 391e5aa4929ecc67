"""What a fixed KV split does, on vLLM's own CPU attention kernel.

One query over some thousand cached keys: with the split on, the kernel cuts the keys into parts, one for each idle
thread, and adds the partial sums; the parts depend on the number of threads and on how many requests keep them busy.
"""

import json
import os
import subprocess

import pytest

pytestmark = pytest.mark.engine

KERNEL = """
import hashlib, json, sys

import torch
from vllm import _custom_ops as ops
from vllm.platforms import current_platform
from vllm.v1.attention.backends.cpu_attn import _get_attn_isa

current_platform.import_kernels()
heads, kv_heads, size, block, kind = 9, 3, 64, 128, torch.bfloat16
isa = _get_attn_isa(kind, block, size)


def attend(length, requests, split):
    # The same query and the same keys in every request, so that any difference is the kernel's.
    noise = torch.Generator().manual_seed(length)
    keys, values = (torch.randn(length, kv_heads, size, generator=noise).to(kind) for _ in range(2))
    query = torch.randn(1, heads, size, generator=noise).to(kind).repeat(requests, 1, 1)
    blocks = (length + block - 1) // block
    cache = torch.zeros(blocks * requests, kv_heads, block * 2, size, dtype=kind)
    key_cache, value_cache = cache.chunk(2, dim=2)
    for request in range(requests):
        slots = torch.arange(length) + request * blocks * block
        ops.cpu_attn_reshape_and_cache(keys, values, key_cache, value_cache, slots, isa)
    starts = torch.arange(requests + 1, dtype=torch.int32)
    lengths = torch.full((requests,), length, dtype=torch.int32)
    table = torch.arange(blocks * requests, dtype=torch.int32).view(requests, blocks)
    plan = ops.cpu_attn_get_scheduler_metadata(
        num_reqs=requests, num_heads=heads, num_kv_heads=kv_heads, head_dim=size, seq_lens=lengths, dtype=kind,
        query_start_loc=starts, causal=True, sliding_window_size=-1, isa=isa, enable_kv_split=split,
    )
    output = torch.zeros_like(query)
    ops.cpu_attention_with_kv_cache(
        query, key_cache, value_cache, output, starts, lengths, size**-0.5, True, None, -1, table, 0.0, plan, None
    )
    return hashlib.sha256(output[0].float().numpy().tobytes()).hexdigest()


lengths = (1154, 1536, 2500)
print(json.dumps({
    "threads": torch.get_num_threads(),
    "digests": {f"{name}{requests}": [attend(length, requests, split) for length in lengths]
                for name, split in (("split", True), ("fixed", False)) for requests in (1, 8)},
}))
"""


@pytest.fixture(scope="module")
def sums(engine_python: str) -> dict[int, dict[str, list[str]]]:
    """Digests of the kernel's output by number of threads, then by split and number of requests."""
    return {threads: run_kernel(engine_python, threads) for threads in (1, 2)}


def run_kernel(engine_python: str, threads: int) -> dict[str, list[str]]:
    """Run the kernel in a process of its own: the number of OpenMP threads is settled when a process starts."""
    environ = {**os.environ, "OMP_NUM_THREADS": str(threads), "VLLM_LOGGING_LEVEL": "ERROR"}
    done = subprocess.run(
        [engine_python, "-c", KERNEL], env=environ, capture_output=True, text=True, timeout=180, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    answer = json.loads(done.stdout.splitlines()[-1])
    assert answer["threads"] == threads
    digests: dict[str, list[str]] = answer["digests"]
    return digests


def test_with_the_split_the_sum_depends_on_the_thread_count(sums: dict[int, dict[str, list[str]]]) -> None:
    """VLLM_CPU_ATTN_SPLIT_KV=1, one request: another number of threads, another result."""
    assert sums[1]["split1"] != sums[2]["split1"]


def test_with_the_split_the_sum_depends_on_the_batch(sums: dict[int, dict[str, list[str]]]) -> None:
    """VLLM_CPU_ATTN_SPLIT_KV=1, two threads: the same request alone and among eight gets different results."""
    assert sums[2]["split1"] != sums[2]["split8"]


def test_fixed_the_sum_depends_on_neither(sums: dict[int, dict[str, list[str]]]) -> None:
    """VLLM_CPU_ATTN_SPLIT_KV=0: one result, whatever the threads and whoever else is in the batch."""
    assert sums[1]["fixed1"] == sums[2]["fixed1"] == sums[1]["fixed8"] == sums[2]["fixed8"]


def test_one_thread_has_nothing_to_split(sums: dict[int, dict[str, list[str]]]) -> None:
    """The fixed result is the one that a single thread computes with the split on: fixing it changes no arithmetic."""
    assert sums[1]["split1"] == sums[1]["fixed1"]
