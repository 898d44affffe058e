"""What does a kernel, a copy or an operator do, by its name?

Libraries name their kernels after what they compute, but agree on no scheme; what no word gives
away counts as :attr:`KernelKind.OTHER`. Attention that is not fused shows as the products and the
softmax that it is made of.

Source:
    Names as they stand in profiles of torch (operators ``aten::``, symmetric memory), cuBLAS,
    CUTLASS and its Python DSL, cuDNN, Triton, Inductor, FlashAttention, FlashInfer, DeepGEMM,
    DeepEP, NVSHMEM, Transformer Engine (userbuffers), NCCL, RCCL, MSCCL, Tensile (hipBLASLt),
    Composable Kernel, Liger, Unsloth, bitsandbytes and gloo.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from simulator.program.ir import Kind
from simulator.program.price.roofline import KernelKind


class Wait(StrEnum):
    """Why no kernel runs."""

    HOST = "host"
    """The host has not launched the next kernel."""
    DATA_LOADER = "data_loader"
    """The host has not, for it waits for the next batch."""


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

_COPIES = {"dtoh": Kind.COPY_TO_HOST, "htod": Kind.COPY_TO_DEVICE}

_NCCL = re.compile(r"^(void )?(nccl|rccl|mscclkernel)")
_EXPERT_EXCHANGE = re.compile(
    r"\b(deep_ep|dpsk::ep)::(?!.*get_dispatch_layout)|\bnvshmem.*alltoall|\balltoallv"
)
"""DeepEP and NVSHMEM send tokens to experts; how they are laid out is worked out without them."""
_DIRECT_REDUCTION = re.compile(
    r"(one|two)_shot_all_reduce|multimem_(one_shot_)?all_reduce|cross_device_reduce"
    r"|all_?reduce_fusion_kernel"
)
"""Kernels that reduce over peers' memory themselves: torch's symmetric memory, vLLM, TensorRT."""
_USERBUFFERS = (
    (re.compile(r"userbuffers.*(_ag\b|_ag<|allgather)"), Kind.ALL_GATHER),
    (re.compile(r"userbuffers.*(_rs\b|_rs<|_rs_|reduce_?scatter)"), Kind.REDUCE_SCATTER),
    (re.compile(r"userbuffers.*(push|pull|send|recv)"), Kind.SEND_RECV),
    (re.compile(r"userbuffers.*sum_inplace"), Kind.ALL_REDUCE),
)
"""Transformer Engine's exchanges of tensor parallelism beside products."""
_GENERATED = re.compile(r"^triton_(?!tem_|mm)[a-z]+_fused")
"""What Inductor writes from pointwise operations and reductions; it names the operators around
them, products and attention among them, but computes none. Its templates, ``tem``, do."""
_MEMORY_BOUND = re.compile(
    r"(rms_?|layer_?|group_?)norm|norm::|softmax|activation|sampling|cross_?entropy|rotary|rope"
)
_SEVERAL_USES = re.compile(r"flashinfer::|^kernel_cutlass|quack")
"""Libraries that have kernels of every kind: their own name says nothing."""
_ATTENTION = re.compile(
    r"flash|fmha|flex_attention|(efficient|cudnn|fused|paged|unified)_attention|fused_attn|sdpa"
    r"|attn?_?(fwd|bwd)|attention_?(fwd|bwd|forward|backward)"
)
_PRODUCT_KERNEL = re.compile(
    r"gemm|gemv|^bmm_|cutlass|cublas|xmma|nvjet|^(custom_)?cijk_|matmul|splitk|fused_moe_kernel"
    r"|triton_tem_fused.*mm|triton_mm|_cce_(lse_forward|backward)|convolve|winograd"
    r"|(fprop|dgrad|wgrad)"
)
_PRODUCT_OPERATOR = re.compile(
    r"::_?(add|b|badd|grouped_|scaled_|scaled_grouped_|int_)?(mm|mv)(_|$)|_linear(_|$)"
)
_WRAPPER = re.compile(r"^aten::(_?scaled_dot_product_attention|_?linear|matmul)")
"""Operators that only call others, which are counted themselves."""
_WAIT = re.compile(r"^(_?c10d(_functional)?|gloo|nccl)::")
"""Operators of collectives: what they take is waiting, or the launch of what is counted."""
_DATA_LOADER = "enumerate(DataLoader)"
"""Range in which torch's loader is asked for the next batch."""


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
    if _NCCL.match(lower):
        # An exchange between all is sends and receives to NCCL.
        stated = collective_kind(str(args.get("Collective name", "")))
        return stated or collective_kind(name) or KernelKind.OTHER
    if lower.startswith("memcpy"):
        return next((kind for word, kind in _COPIES.items() if word in lower), KernelKind.OTHER)
    return _exchange_kind(lower) or _computing_kind(lower)


def _exchange_kind(lower: str) -> Kind | None:
    """What a kernel exchanges that is not NCCL's; None where it computes."""
    if _EXPERT_EXCHANGE.search(lower):
        return Kind.ALL_TO_ALL
    if _DIRECT_REDUCTION.search(lower):
        return Kind.ALL_REDUCE
    if "userbuffers" in lower:
        return next((kind for word, kind in _USERBUFFERS if word.search(lower)), None)
    return None


def _computing_kind(lower: str) -> KernelKind:
    if _GENERATED.match(lower) or (_SEVERAL_USES.search(lower) and _MEMORY_BOUND.search(lower)):
        return KernelKind.OTHER
    if _ATTENTION.search(lower):
        return KernelKind.ATTENTION
    return KernelKind.GEMM if _PRODUCT_KERNEL.search(lower) else KernelKind.OTHER


def operator_kind(name: str) -> KernelKind | Wait | None:
    """What an operator on a CPU does; None is waiting for other ranks."""
    if _WAIT.match(name):
        return None
    if waits_for_data(name):
        return Wait.DATA_LOADER
    if _WRAPPER.match(name):
        return KernelKind.OTHER
    if _ATTENTION.search(name):
        return KernelKind.ATTENTION
    return KernelKind.GEMM if _PRODUCT_OPERATOR.search(name) else KernelKind.OTHER


def waits_for_data(name: str) -> bool:
    """Whether a range of the host is torch's loader, asked for the next batch."""
    return name.startswith(_DATA_LOADER)
