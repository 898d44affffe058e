"""Which kernels tell how fast a device trains transformers?

A list of shapes, dearest information first, so that a run that is cut short still knows
something of every family. Products are those of shipped models, whole and cut by tensor
parallelism, in the three directions of training.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, zip_longest

from simulator.calibrate.gpu.kernel_case import Direction, KernelCase
from simulator.described.load import load_model
from simulator.described.model import Model


@dataclass(frozen=True, slots=True)
class Extent:
    """How large a list of cases is.

    Attributes:
        models: Shipped models whose products are measured.
        splits: Degrees of tensor parallelism that cut them.
        tokens: Rows of the products.
        lengths: Tokens of an attention call and of its sequences, longest last.
        elements: Sizes of memory-bound tensors.
        shrink: Divides the widths of the models, for devices that are no GPU.
    """

    models: Sequence[str]
    splits: Sequence[int]
    tokens: Sequence[int]
    lengths: Sequence[int]
    elements: Sequence[int]
    shrink: int = 1


GPU_EXTENT = Extent(
    models=("llama3.2-1b", "llama3.1-8b", "gpt3-13b", "llama3.1-70b"),
    splits=(1, 8),
    tokens=(256, 1024, 4096, 16384),
    lengths=(1024, 2048, 4096, 8192, 16384),
    elements=(2**20, 2**23, 2**25, 2**27),
)
"""About 700 cases: a few minutes of an H100."""

CPU_EXTENT = Extent(
    models=("llama3.2-1b", "llama3.1-8b"),
    splits=(1,),
    tokens=(64, 256, 512),
    lengths=(128, 256, 512),
    elements=(2**18, 2**20, 2**22, 2**23),
    shrink=16,
)
"""Seconds of two cores."""

_FULLY_MEASURED = 2
"""Number formats that are measured on all models."""

_GROUPED_ATTENTION = 4
"""Query heads per key and value head in the grouped-query cases, as in Llama 3 8B."""

_ATTENTION_WIDTH = 4096
"""Heads times head size of attention cases."""


def kernel_cases(
    extent: Extent, formats: Sequence[str], attention: Sequence[str]
) -> list[KernelCase]:
    """All cases, families in turn.

    Args:
        extent: How many and how large.
        formats: Number formats of products, the most important first; the first two are
            measured on all models, the others on the first. Everything but products is
            measured in the first.
        attention: Operations that compute attention on the device.
    """
    families = [
        [KernelCase(op, "", direction="") for op in ("host_operator", "host_launch")],
        *(
            list(_products(extent if rank < _FULLY_MEASURED else _first_model(extent), dtype))
            for rank, dtype in enumerate(formats)
        ),
        list(_attention(extent, attention, formats[0])),
        list(_memory_bound(extent, formats[0])),
        list(_grouped_products(extent, formats[0])),
        list(_copies(extent)),
        list(_under_load(extent, formats[0])),
    ]
    in_turn = chain.from_iterable(zip_longest(*(_spread_out(family) for family in families)))
    return list(dict.fromkeys(case for case in in_turn if case is not None))


def _spread_out(cases: Sequence[KernelCase]) -> list[KernelCase]:
    """The same cases in an order whose every beginning covers the whole range."""
    stride = 7
    return [case for first in range(stride) for case in cases[first::stride]]


def product_shapes(model: Model, split: int, shrink: int = 1) -> list[tuple[int, int]]:
    """Input and output width of the products of a model, cut ``split`` ways.

    Source: Megatron-LM (arXiv 1909.08053, section 3): columns of the first product of a
    block, rows of the second, columns of the head.
    """
    gate = 2 if model.gated_mlp else 1
    qkv = (model.heads + 2 * model.kv_heads) * model.head_dim
    widths = [
        (model.hidden, qkv // split),
        (model.heads * model.head_dim // split, model.hidden),
        (model.hidden, gate * model.ffn_hidden // split),
        (model.ffn_hidden // split, model.hidden),
        (model.hidden, model.vocab // split),
    ]
    return [(_rounded(k // shrink), _rounded(n // shrink)) for k, n in widths]


def _first_model(extent: Extent) -> Extent:
    return replace(extent, models=extent.models[:1], splits=extent.splits[:1])


def _rounded(width: int) -> int:
    """A multiple of 16, which all matrix units and formats take."""
    return max(16, width // 16 * 16)


def _products(extent: Extent, dtype: str) -> Iterator[KernelCase]:
    # Scaled fp8 products of other layouts than the forward one need transposed copies.
    is_scaled = dtype == "fp8"
    for name in extent.models:
        for split in extent.splits:
            for k, n in product_shapes(load_model(name), split, extent.shrink):
                for tokens in extent.tokens:
                    yield KernelCase("gemm", dtype, tokens, n, k, direction="fwd")
                    if not is_scaled:
                        yield KernelCase("gemm", dtype, tokens, k, n, direction="dgrad")
                        yield KernelCase("gemm", dtype, n, k, tokens, direction="wgrad")


def _attention(extent: Extent, operations: Sequence[str], dtype: str) -> Iterator[KernelCase]:
    width = _ATTENTION_WIDTH // extent.shrink
    for operation in operations:
        for head_dim in (64, 128):
            heads = max(1, width // head_dim)
            grouped = max(1, heads // _GROUPED_ATTENTION)
            masks = ((True, heads), (False, heads), (True, grouped))
            for seq in extent.lengths:
                for causal, kv_heads in masks[:1] if operation.startswith("unfused") else masks:
                    direction: Direction
                    for direction in ("fwd", "bwd"):
                        yield KernelCase(
                            operation,
                            dtype,
                            batch=max(1, extent.lengths[-2] // seq),
                            seq=seq,
                            heads=heads,
                            kv_heads=kv_heads,
                            head_dim=head_dim,
                            causal=causal,
                            direction=direction,
                        )


def _memory_bound(extent: Extent, dtype: str) -> Iterator[KernelCase]:
    columns = _ATTENTION_WIDTH // extent.shrink
    for elements in extent.elements:
        rows = max(1, elements // columns)
        yield KernelCase("stream_copy", dtype, m=elements)
        yield KernelCase("stream_add", dtype, m=elements)
        direction: Direction
        for direction in ("fwd", "bwd"):
            yield KernelCase("rms_norm", dtype, rows, columns, direction=direction)
            yield KernelCase("layernorm", dtype, rows, columns, direction=direction)
        yield KernelCase("softmax", dtype, rows, columns)
        yield KernelCase("activation_gelu", dtype, m=elements)
        yield KernelCase("activation_silu", dtype, m=elements)
        yield KernelCase("cast_fp32", "bf16", m=elements)
        yield KernelCase("eager_cross_entropy", "fp32", rows, columns, direction="fwd+bwd")
        yield KernelCase("optimizer_adamw", "fp32", m=elements)


def _grouped_products(extent: Extent, dtype: str) -> Iterator[KernelCase]:
    model = load_model("qwen3-30b-a3b")
    experts = model.experts
    assert experts is not None
    hidden = _rounded(model.hidden // extent.shrink)
    width = _rounded(experts.ffn_hidden // extent.shrink)
    for groups in (8, 32):
        for tokens in extent.tokens:
            rows = max(16, tokens // 4)
            yield KernelCase("grouped_gemm", dtype, rows, 2 * width, hidden, batch=groups)
            yield KernelCase("grouped_gemm", dtype, rows, hidden, width, batch=groups)


def _copies(extent: Extent) -> Iterator[KernelCase]:
    for elements in extent.elements:
        for op in (
            "copy_to_device_pinned",
            "copy_from_device_pinned",
            "copy_to_device_pageable",
            "copy_from_device_pageable",
            "copy_both_ways_pinned",
        ):
            yield KernelCase(op, "", m=2 * elements, direction="")


def _under_load(extent: Extent, dtype: str) -> Iterator[KernelCase]:
    width = _rounded(8192 // extent.shrink)
    yield KernelCase("sustained_gemm", dtype, width, width, width)
    yield KernelCase("beside_copy_gemm", dtype, width, width, width)
