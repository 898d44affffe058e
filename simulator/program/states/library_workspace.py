"""What do libraries keep for themselves in torch's allocator?

PyTorch takes one workspace for cuBLAS and cuBLASLt with the first matrix product, and keeps it.

Source: PyTorch, CUDA semantics, cuBLAS workspaces (``CUBLAS_WORKSPACE_CONFIG``, ``:4096:2:16:8``:
two buffers of 4 MiB and eight of 16 KiB); on an H100 a first bf16 product leaves 32 MiB, and fp16
and fp32 ones no more (``reports/gpu/raw.jsonl.gz``, ``memory: workspaces``), as its source has it
from compute capability 9.0 on. Ignored: AMD's libraries, and a second workspace where products run
on a second stream.
"""

from __future__ import annotations

from simulator.described.cluster.hardware import Device

_OF_NVIDIA = ("pascal", "volta", "turing", "ampere", "ada", "hopper", "blackwell")
_SINCE_HOPPER = ("hopper", "blackwell")
_WORKSPACE_BYTES = (2 * 4096 + 8 * 16) * 2.0**10
_LATER_WORKSPACE_BYTES = 32 * 2.0**20


def matrix_workspace_bytes(device: Device) -> float:
    """What matrix products on the device keep [B]; none on devices that cuBLAS is not for."""
    family = device.architecture or ""
    if not family.startswith(_OF_NVIDIA):
        return 0.0
    return _LATER_WORKSPACE_BYTES if family.startswith(_SINCE_HOPPER) else _WORKSPACE_BYTES
