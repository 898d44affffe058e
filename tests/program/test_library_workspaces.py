"""Is what PyTorch keeps for its matrix library counted, per thread and by device and release?

Sizes: PyTorch, ``parseChosenWorkspaceSize`` of ``CublasHandlePool.cpp``; 8,519,680 B are what
pytorch/pytorch#95668 finds on an A10G, 32 MiB what ``reports/gpu`` finds on an H100.
"""

from __future__ import annotations

import pytest

from simulator.described.load import job_from_document
from simulator.program.ir import Owner
from simulator.results.simulation import run_step

MIB = 2**20
AMPERE_BYTES = 8_519_680


def memory_of(profile: str, stack: str | dict[str, object]):
    """Memory of one GPU that trains a small model."""
    document = {
        "model": {"layers": 2, "hidden": 1024, "heads": 8, "ffn_hidden": 4096, "vocab": 4096},
        "cluster": {"profile": profile, "gpus": 1},
        "batch": {"global": 1, "micro": 1, "seq_len": 1024},
        "plan": {"stack": stack, "precision": "bf16"},
    }
    (memory,) = run_step(job_from_document(document)).memory
    return memory


@pytest.mark.parametrize(
    ("profile", "stack", "num_bytes"),
    [
        ("h100-sxm-80gb", "torch", 2 * 32 * MIB),
        ("a100-sxm-80gb", "torch", 2 * AMPERE_BYTES),
        ("l40s", "trl", 2 * AMPERE_BYTES),
        ("mi300x", "torch", 2 * 128 * MIB),
        ("mi250x", "torch", 2 * 32 * MIB),
        ("h100-sxm-80gb", "megatron-core", 3 * 32 * MIB),
        ("h100-sxm-80gb", "jax", 0),
        ("tpu-v5p", "jax", 0),
        ("a100-sxm-80gb", "megatron-lm-2021", 0),
        ("a100-sxm-80gb", "torch@1.13", 0),
        ("a100-sxm-80gb", "torch@2.0", 2 * AMPERE_BYTES),
    ],
)
def test_each_thread_keeps_a_workspace_of_its_device_since_pytorch_2(profile, stack, num_bytes):
    assert memory_of(profile, stack).by_owner.get(Owner.WORKSPACES, 0) == num_bytes


def test_workspaces_are_allocated_and_reserved_and_no_part_of_the_context():
    with_them, without = (
        memory_of("h100-sxm-80gb", {"base": "torch", "matrix_workspaces": count})
        for count in (2, 0)
    )
    more = with_them.peak_allocated_bytes - without.peak_allocated_bytes
    assert more == 64 * MIB
    assert with_them.peak_reserved_bytes - without.peak_reserved_bytes >= 64 * MIB
    assert with_them.outside == without.outside
