"""What do libraries keep for themselves in torch's allocator?

PyTorch takes a workspace for cuBLAS and cuBLASLt with the first matrix product of each of its
threads and keeps it: one thread runs forward, another one backward.

Source: PyTorch, CUDA semantics, cuBLAS workspaces: one for each combination of handle and stream,
``:4096:2:16:8`` (two buffers of 4 MiB and eight of 16 KiB); ``aten/src/ATen/cuda``,
``CublasHandlePool.cpp``: handles are those of a thread, 32 MiB on Hopper and, since 2.12, on
Blackwell, 128 MiB on AMD's gfx94 and gfx95 and 32 MiB on its older devices. Measured on an H100
(``reports/gpu``): a first bf16 product leaves 32 MiB, fp16 and fp32 ones no more, and 19 of 21
training steps allocate within 5 MiB of their tensors and two workspaces. Ignored: products on
further streams, and that what other libraries keep is not of PyTorch's size on every device
(Transformer Engine's is 4 MiB before Hopper, llm.c's 32 MiB on all).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from simulator.described.cluster.hardware import Device

_OF_AMPERE_BYTES = (2 * 4096 + 8 * 16) * 2.0**10
_OF_HOPPER_BYTES = 32 * 2.0**20
_OF_MI300_BYTES = 128 * 2.0**20
_BYTES_OF: Mapping[str, float] = MappingProxyType(
    {
        "pascal": _OF_AMPERE_BYTES,
        "volta": _OF_AMPERE_BYTES,
        "turing": _OF_AMPERE_BYTES,
        "ampere": _OF_AMPERE_BYTES,
        "ada": _OF_AMPERE_BYTES,
        "hopper": _OF_HOPPER_BYTES,
        "blackwell": _OF_HOPPER_BYTES,
        "cdna1": _OF_HOPPER_BYTES,
        "cdna2": _OF_HOPPER_BYTES,
        "cdna3": _OF_MI300_BYTES,
        "cdna4": _OF_MI300_BYTES,
    }
)
"""By the family of an architecture: its word up to a hyphen."""

THREADS_WITH_PRODUCTS = 2
"""Of a training process: forward's and backward's."""


def matrix_workspace_bytes(device: Device) -> float:
    """What matrix products of one thread keep [B]; none where PyTorch has no such library."""
    family, _, _ = (device.architecture or "").partition("-")
    return _BYTES_OF.get(family, 0.0)
