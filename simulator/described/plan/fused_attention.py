"""Does one kernel compute core attention of the heads that it is given?"""

from __future__ import annotations

from simulator.described.plan.plan import Plan


def fuses_heads(plan: Plan, heads: int, kv_heads: int) -> bool:
    """Whether one kernel computes core attention of so many heads, as it is given them.

    Memory-efficient attention, the only fused kernel of PyTorch's that reads 32-bit numbers,
    takes no grouped heads, so that they are computed in separate kernels.

    Source: PyTorch, ``scaled_dot_product_attention``: ``enable_gqa`` "currently works only for
    Flash_attention and math kernel on CUDA tensor"; two runs on an H200 (``reports/gpu/h200``).
    """
    if plan.attention_kernel != "flash":
        return False
    is_wide = plan.precision in ("fp32", "tf32")
    return not (is_wide and kv_heads < heads)
