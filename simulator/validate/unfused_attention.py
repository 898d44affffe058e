"""How long does attention take whose products and softmax are kernels of their own?"""

from __future__ import annotations

from simulator.cost.kernel_time import ELEMENT_BYTES, gemm_s, memory_bound_s, strided_s
from simulator.described.cluster.hardware import HardwareProfile
from simulator.described.cluster.kernel_parameters import Precision


def unfused_attention_s(
    profile: HardwareProfile,
    precision: Precision,
    *,
    batch: int,
    heads: int,
    seq: int,
    head_dim: int,
    causal: bool,
    backward: bool,
) -> float:
    """Seconds of attention as two batched products around a softmax, in one direction.

    Forward, queries, keys and values of one tensor are copied so that each head's lie together. A
    causal mask is added by a kernel of its own, which finds it under other strides than the scores.
    Backward, each product has two gradients. The softmax multiplies its result by its gradient
    before it sums; gradients of queries and keys are scaled, and three gradients joined. Ignores
    dropout.

    Source:
        Dao-AILab/flash-attention, benchmarks/benchmark_flash_attention.py, ``attention_pytorch``;
        PyTorch's derivatives of ``baddbmm`` and ``unbind``, and ``SoftMax.cu``.
    """
    many = batch * heads
    scores, elements = many * seq * seq, many * seq * head_dim
    score_bytes, tensor_bytes = (ELEMENT_BYTES[precision] * n for n in (scores, elements))

    def product_s(m: int, n: int, k: int) -> float:
        return gemm_s(profile, m, n, k, batch=many, precision=precision)

    def copied_s(num_bytes: float, moved: float) -> float:
        return max(memory_bound_s(profile, num_bytes), strided_s(profile, moved))

    to_scores_s, from_scores_s = product_s(seq, seq, head_dim), product_s(seq, head_dim, seq)
    if backward:
        softmax_s = memory_bound_s(profile, 3 * score_bytes)
        softmax_s += memory_bound_s(profile, 3 * score_bytes, over_rows=True)
        scaled_s = 2 * memory_bound_s(profile, 2 * tensor_bytes)
        joined_s = copied_s(6 * tensor_bytes, 3 * elements)
        return to_scores_s + 3 * from_scores_s + softmax_s + scaled_s + joined_s
    split_s = 3 * copied_s(2 * tensor_bytes, elements)
    mask_s = copied_s(2 * score_bytes, scores) if causal else 0.0
    softmax_s = memory_bound_s(profile, 2 * score_bytes, over_rows=True)
    return split_s + to_scores_s + mask_s + softmax_s + from_scores_s
