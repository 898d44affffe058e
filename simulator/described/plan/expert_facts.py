"""What does each training framework do about routed experts?

Who scores and chooses them, how tokens reach them and come back, in which kernels and in which
number format their products run, and what the host asks meanwhile.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from simulator.described.base import Flag, Spec
from simulator.described.plan.stack_options import ExpertExchange, ExpertWaits, RowSummation


class ExpertFacts(Spec):
    """Facts of a stack that only count where a model has routed experts."""

    router_kernels: Annotated[int, Field(ge=1, le=1000, strict=True)] = 15
    """Kernels that scoring and choosing experts launches, per direction. Megatron-Core 0.15 without
    fusion: 19 forward and 10 backward with a softmax."""
    biased_router_kernels: Annotated[int, Field(ge=1, le=1000, strict=True)] | None = None
    """The same where scores are sigmoids and biases balance them; by default as many."""
    expert_count_kernels: Annotated[int, Field(ge=0, le=1000, strict=True)] = 0
    """Kernels and copies to the host by which a rank finds how many copies of tokens it sends and
    receives, forward, beside the exchange of these numbers (``ep_dispatch: all_to_all``)."""
    sends_router_weights: Flag = False
    """Copies of tokens travel with the router's weights, in an exchange of their own each way
    (``ep_dispatch: all_to_all``)."""
    grouped_experts: Flag = False
    """The products of all experts on a rank are one kernel; else each expert has its own, one
    after another."""
    calls_each_expert: Flag = False
    """With ``grouped_experts``, the host still calls a library once for each expert, on a few
    streams side by side (Transformer Engine's ``multi_stream_cublas_gemm``)."""
    grouped_by_torch: Flag = False
    """With ``grouped_experts``, that kernel is PyTorch's own in 16 bits (``torch._grouped_mm``);
    else it is as quick as the vendor's library is in products alone."""
    experts_as_weights: Flag = False
    """With ``grouped_experts``, their products have the format of their weights, whatever
    ``torch.autocast`` says: where these are fp32, products run in fp32, one expert after the other
    (``torch._grouped_mm``, no operator of autocast's)."""
    eager_experts: Flag = False
    """With ``grouped_experts`` and without ``fused_elementwise``, experts are eager code that
    weighs results, for which they stay, and joins the gradients of gate and up, which are one
    weight (transformers 5; :mod:`simulator.program.layer.grouped_experts`)."""
    gathers_in_products: Flag = False
    """With ``grouped_experts``, the first product picks the rows of its tokens itself, and the last
    one's backward makes the activation again: backward keeps what experts are handed and the first
    product's result, and no sorted copies on a rank that has all experts (SonicMoE, arXiv
    2512.14080)."""
    masks_copies: Flag = False
    """With ``eager_experts``, kernels set copies that belong to no expert of a rank to zero."""
    fused_permutation: Flag = False
    """Copies of tokens are sorted by expert, and added up again, by kernels made for that
    (Megatron-Core's ``moe_permute_fusion``); else rows are picked up at indices."""
    row_summation: RowSummation = "sorted"
    """How copies of tokens, and gradients of them, are added up without ``fused_permutation``."""
    sorts_gathered_copies: Flag = False
    """With ``ep_dispatch: all_gather``, copies are picked from all tokens in the order that these
    have, and sorted by expert after that; results go back the same way and are weighed between,
    so they stay for backward."""
    keeps_picked_copies: Flag = False
    """Where they are, backward keeps what they were picked from: gathered tokens and copies in
    the order of tokens, as ``torch.gather`` does."""
    weighs_copies_in_fp32: Flag = False
    """Copies of tokens are cast to fp32 and multiplied by the router's weights there, before their
    experts or after, and so kept in fp32 (torchtitan's ``MoE``); else experts weigh them."""
    one_hot_dispatch: Flag = False
    """Where experts have a capacity, products with one-hot masks over all slots of a sequence pick
    the tokens of each expert and add results up again, as in GShard (arXiv 2006.16668, algorithm
    1); else rows are copied."""
    fused_expert_extras: Flag = True
    """Clamped gates and the last bias of routed experts cost no kernels of their own; else gates
    are clamped by eager ones and the bias is added expert by expert, in fp32 (Megatron-Core)."""
    expert_waits: ExpertWaits = "none"
    """Where the host waits for counts of tokens per expert."""
    expert_exchange: ExpertExchange = "deepep"
    """Whose kernels a hierarchical dispatcher calls."""
    exposes_experts_on: tuple[str, ...] = ()
    """Architectures of devices, as in ``hardware_profiles/architectures``, on which collectives of
    the weights of experts without a capacity, and of their gradients, run beside no computation
    under ZeRO 3 where a plan does not say."""
