"""How long does attention take whose scores are written to memory, as the sum of its kernels?"""

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

    Forward, a causal mask is added by a kernel of its own, which finds it under other strides than
    the scores. Backward, each product has two gradients; the softmax reads its result and its
    gradient.
    """
    many, scores = batch * heads, batch * heads * seq * seq
    score_bytes = ELEMENT_BYTES[precision] * scores

    def product_s(m: int, n: int, k: int) -> float:
        return gemm_s(profile, m, n, k, batch=many, precision=precision)

    to_scores_s, from_scores_s = product_s(seq, seq, head_dim), product_s(seq, head_dim, seq)
    if backward:
        softmax_s = memory_bound_s(profile, 3 * score_bytes, over_rows=True)
        return to_scores_s + 3 * from_scores_s + softmax_s
    softmax_s = memory_bound_s(profile, 2 * score_bytes, over_rows=True)
    mask_s = (
        max(memory_bound_s(profile, 2 * score_bytes), strided_s(profile, scores)) if causal else 0.0
    )
    return to_scores_s + mask_s + softmax_s + from_scores_s
