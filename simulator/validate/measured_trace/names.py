"""What does a kernel or an operator do, by its name?

Libraries name their kernels after what they compute, but agree on no scheme; what no word
gives away counts as :attr:`KernelKind.OTHER`. Attention that is not fused shows as the products
and the softmax that it is made of.

Source:
    Names as they stand in profiles of torch (operators ``aten::``), cuBLAS, CUTLASS, Triton,
    FlashAttention, cuDNN, DeepEP, NCCL, RCCL (Tensile, Composable Kernel) and gloo.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from simulator.program.ir import Kind
from simulator.program.price.roofline import KernelKind

SpanKind = KernelKind | Kind

_COLLECTIVES = {
    "all_reduce": Kind.ALL_REDUCE,
    "allreduce": Kind.ALL_REDUCE,
    "all_gather": Kind.ALL_GATHER,
    "allgather": Kind.ALL_GATHER,
    "reduce_scatter": Kind.REDUCE_SCATTER,
    "reducescatter": Kind.REDUCE_SCATTER,
    "all_to_all": Kind.ALL_TO_ALL,
    "alltoall": Kind.ALL_TO_ALL,
    "broadcast": Kind.BROADCAST,
    "sendrecv": Kind.SEND_RECV,
    "scatter": Kind.SCATTER,
    "gather": Kind.GATHER,
    "reduce": Kind.REDUCE,
    "send": Kind.SEND_RECV,
    "recv": Kind.SEND_RECV,
}
"""Words in the names of collectives; longer ones contain shorter ones and come first."""

_EXCHANGE = "deep_ep::"
"""DeepEP's kernels send and receive the tokens of experts themselves."""
_COPIES = {"dtoh": Kind.COPY_TO_HOST, "htod": Kind.COPY_TO_DEVICE}
_ATTENTION = re.compile(
    r"flash|fmha|flex_attention|(efficient|cudnn|fused)_attention|fused_attn|sdpa"
    r"|attn?_?(fwd|bwd)|attention_?(fwd|bwd|forward|backward)"
)
_PRODUCT_KERNEL = re.compile(
    r"gemm|gemv|^bmm_|cutlass|cublas|xmma|nvjet|^cijk_|matmul|splitk|triton_tem_fused.*mm|triton_mm"
)
_PRODUCT_OPERATOR = re.compile(
    r"::_?(add|b|badd|grouped_|scaled_|scaled_grouped_|int_)?(mm|mv)(_|$)|_linear(_|$)"
)
_WRAPPER = re.compile(r"^aten::(_?scaled_dot_product_attention|_?linear|matmul)")
"""Operators that only call others, which are counted themselves."""
_WAIT = re.compile(r"^(_?c10d(_functional)?|gloo|nccl)::")
"""Operators of collectives: what they take is waiting, or the launch of what is counted."""


def collective_kind(name: str) -> Kind | None:
    """What a collective does, by its name in any spelling; None where no word says."""
    lower = name.lower()
    return next((kind for word, kind in _COLLECTIVES.items() if word in lower), None)


def kernel_kind(name: str, args: Mapping[str, Any]) -> SpanKind:
    """What a kernel, copy or fill of a GPU does.

    Args:
        name: As the profiler gives it.
        args: What else it says; a kernel of NCCL names its collective there.
    """
    lower = name.lower()
    if lower.startswith(("nccl", "rccl", "mscclkernel")):
        # An exchange between all is sends and receives to NCCL.
        said = collective_kind(str(args.get("Collective name", "")))
        return said or collective_kind(name) or KernelKind.OTHER
    if _EXCHANGE in lower:
        return Kind.ALL_TO_ALL
    if lower.startswith("memcpy"):
        return next((kind for word, kind in _COPIES.items() if word in lower), KernelKind.OTHER)
    if _ATTENTION.search(lower):
        return KernelKind.ATTENTION
    return KernelKind.GEMM if _PRODUCT_KERNEL.search(lower) else KernelKind.OTHER


def operator_kind(name: str) -> KernelKind | None:
    """What an operator on a CPU does; None is waiting for other ranks."""
    if _WAIT.match(name):
        return None
    if _WRAPPER.match(name):
        return KernelKind.OTHER
    if _ATTENTION.search(name):
        return KernelKind.ATTENTION
    return KernelKind.GEMM if _PRODUCT_OPERATOR.search(name) else KernelKind.OTHER
