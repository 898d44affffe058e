"""Which numbers hold on every system, as far as is known, and where do they come from?

They stand in ``hardware_profiles/common``, each with its evidence. A profile or a job may say
otherwise under ``common``.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated, Any

from pydantic import Field

from simulator.described.base import (
    Bytes,
    PositiveFraction,
    Ratio,
    Seconds,
    Spec,
)
from simulator.described.documents import data_folder, read_yaml, validated


class Common(Spec):
    """What kernels and communicators do on every system alike."""

    flash_1_share: PositiveFraction
    """Rate of FlashAttention 1 over that of its successor."""
    efficient_attention_share: PositiveFraction
    """The same of memory-efficient attention, which PyTorch has from xFormers."""
    attention_power_share: Ratio
    """Power that attention draws over what products draw."""
    flash_1_power_share: Ratio
    """The same of FlashAttention 1 and of memory-efficient attention."""
    overlap_exponent: Annotated[Ratio, Field(ge=1)]
    """Exponent of the norm that joins computing and memory time of a product: the larger it is,
    the better each hides behind the other; at 1 they add."""
    unaligned_share: PositiveFraction
    """Rate of products whose rows do not start on multiples of 16 bytes, over that of others, on
    matrix units."""
    unaligned_vector_share: PositiveFraction
    """The same of fp32 products on vector units, whose kernels load single numbers."""
    strided_elements_per_cycle: Ratio
    """Elements per cycle and multiprocessor of PyTorch's elementwise kernel for operands that are
    not all contiguous, which divides every index to find where its operands lie
    (``launch_legacy_kernel`` of ``CUDALoops.cuh``)."""
    casting_elements_per_cycle: Ratio
    """The same where operands have several formats as well, each of which it looks up (``invoke``
    with ``fetch_and_cast`` of ``CUDALoops.cuh``)."""
    widening_elements_per_cycle: Ratio
    """The same of its kernel that copies 16-bit elements as fp32, which loads them one by one
    (``unrolled_elementwise_kernel`` of ``CUDALoops.cuh``)."""
    block_softmax_elements_per_cycle: Ratio
    """Elements per cycle and multiprocessor of PyTorch's softmax of rows that a block holds, whose
    threads wait for each other twice (``cunn_SoftMaxForwardReg`` and ``Smem`` of ``SoftMax.cu``).
    """
    column_sum_start_s: Seconds
    """Time that PyTorch's sum over the rows of a matrix takes beside that of its bytes: few columns
    keep few multiprocessors busy, and parts of the rows are added up at last (``Reduce.cuh``)."""
    permute_efficiency: PositiveFraction
    """Share of the memory bandwidth at which rows are picked up at indices."""
    fused_permute_efficiency: PositiveFraction
    """The same of fused kernels that sort tokens by expert, or add them up again."""
    atomic_sum_elements_per_cycle: Ratio
    """Elements per cycle and multiprocessor of PyTorch's kernels that add rows to those at indices,
    each element by an atomic addition (``indexFuncLargeIndex`` of ``Indexing.cu``)."""
    sorted_sum_elements_per_cycle: Ratio
    """The same where indices are sorted first (``indexing_backward_kernel`` of ``Indexing.cu``)."""
    quantise_share: Ratio
    """Rate of kernels that scale an input to fp8, which load single elements (TensorRT-LLM's
    ``computeFP8QuantizeScale`` and ``scaleMatrix``), over that of streaming ones."""
    four_bit_cast_share: Ratio
    """Rate of kernels that find maxima for 4-bit operands, or scale, round and cast to them, over
    that of streaming ones."""
    memory_accesses_per_link_byte: Ratio
    """Bytes of device memory that a collective's kernel reads and writes for each byte that passes
    the links of its rank: they are missing to what computes beside it."""
    least_rate: PositiveFraction
    """Share of full speed that computing keeps at the least."""
    rate_beside_collectives: PositiveFraction | None = None
    """Share of full speed that computing keeps beside a collective of any kind, where that was
    measured as one number; None where it follows from what the collective holds."""
    pair_communicator_bytes: Bytes
    """Device memory that a communicator of two ranks takes."""
    communicator_bytes: Bytes
    """The same, of more ranks."""


def common_document() -> dict[str, Any]:
    """The numbers that are shipped, with their sources."""
    document = read_yaml(data_folder("hardware_profiles") / "common" / "numbers.yaml")
    return {key: value for key, value in document.items() if key != "description"}


@lru_cache
def shipped_common() -> Common:
    """The numbers that are shipped."""
    values = {name: number["value"] for name, number in common_document().items()}
    return validated(Common, values, "common")
