"""What does a device hold beside tensors?

Each item runs in a process of its own, so that the context it sees is fresh. ``device`` is the
total less what is free, so it counts other processes, too: the first number tells them.
"""

from __future__ import annotations

from typing import Any

import torch

_SIZES = (1, 513, 2**20, 2**20 + 1, 10 * 2**20 - 1, 10 * 2**20 + 1, 25 * 2**20 + 1)
"""Around the thresholds of torch's allocator: 512 B, 1 MiB, 10 MiB, and 2 MiB beyond."""


def device_bytes(device: torch.device) -> int:
    """Memory of the device that is taken, whoever took it [B]."""
    if device.type != "cuda":
        return 0
    free, total = torch.cuda.mem_get_info(device)
    return int(total - free)


def context_item(device: torch.device, width: int) -> dict[str, Any]:
    """Device memory after the context, the first product, its gradient and attention [B]."""
    held = {"before": device_bytes(device)}
    one = torch.ones(1, device=device)
    held["first tensor"] = device_bytes(device)
    matrix = torch.randn(width, width, device=device, dtype=torch.bfloat16)
    held["matrix"] = device_bytes(device)
    del one
    result = matrix @ matrix
    wait(device)
    held["cuBLAS product"] = device_bytes(device)
    heads = result.view(1, -1, 16, width // 16).transpose(1, 2)
    torch.nn.functional.scaled_dot_product_attention(heads, heads, heads, is_causal=True)
    wait(device)
    held["attention"] = device_bytes(device)
    allocated = torch.cuda.memory_allocated(device) if device.type == "cuda" else 0
    reserved = torch.cuda.memory_reserved(device) if device.type == "cuda" else 0
    return {"device_bytes": held, "allocated_bytes": allocated, "reserved_bytes": reserved}


def rounding_item(device: torch.device, width: int) -> dict[str, Any]:
    """What tensors of some sizes take of the allocator, and what it takes of the device [B]."""
    del width
    rows = []
    for size in _SIZES:
        if device.type == "cuda":
            torch.cuda.empty_cache()
        before = _counted(device)
        held = torch.empty(size, dtype=torch.uint8, device=device)
        after = _counted(device)
        del held
        rows.append([size, after[0] - before[0], after[1] - before[1]])
    return {"columns": ["bytes", "allocated_bytes", "reserved_bytes"], "rows": rows}


def workspace_item(device: torch.device, width: int) -> dict[str, Any]:
    """What products of each format leave allocated: cuBLAS's and cuBLASLt's workspaces [B]."""
    held = {}
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        matrix = torch.randn(width, width, device=device).to(dtype)
        before = _counted(device)[0]
        result = matrix @ matrix
        wait(device)
        own = result.nbytes
        del result
        held[str(dtype)] = {"left": _counted(device)[0] - before, "result": own}
    return {"allocated_bytes": held}


def _counted(device: torch.device) -> tuple[int, int]:
    if device.type != "cuda":
        return 0, 0
    return torch.cuda.memory_allocated(device), torch.cuda.memory_reserved(device)


def wait(device: torch.device) -> None:
    """Return when the device has done all that was queued."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


MEMORY_ITEMS = {
    "context": context_item,
    "allocator rounding": rounding_item,
    "workspaces": workspace_item,
}
"""By name; each takes the device and a width, a multiple of 16."""
