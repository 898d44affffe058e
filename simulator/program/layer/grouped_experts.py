"""What do grouped experts of eager code do besides their products?

Those of Hugging Face's transformers 5 have one weight for gate and up, so backward joins the
gradients of both. Results are multiplied by the router's weights, whose gradients read them. In
5.17, rows of copies that belong to no expert of a rank are set to zero: in place before the
products, and in a copy behind each of them; backward does so to a copy of each gradient.

Where PyTorch has no kernel for all products at once, it reads on the host where each expert's rows
end before it launches one product after another, forward and backward; backward is left out
(:mod:`simulator.program.price.expert_waits`).

Ignores: that results of 16-bit products are weighed in fp32.

Source: transformers 5.17, ``grouped_mm_experts_forward`` of integrations/moe.py; PyTorch,
derivatives.yaml (``masked_fill``, ``mul``).
"""

from __future__ import annotations

from collections.abc import Iterator

from simulator.program.layer.block import Block
from simulator.program.layer.pieces import MemoryBound, Region

_COPY_PASSES, _FILL_PASSES = 2, 2
"""Each element is read and written."""

_WEIGHING_PASSES = 2
"""Of results forward, and of their gradients backward: one weight for each row is broadcast."""

_WEIGHTS_GRADIENT_PASSES, _WEIGHTS_GRADIENT_KERNELS = 4, 2
"""The product of gradients with results (3), and its sum over rows (1)."""


def masking(block: Block, name: str, elements: float, *, in_place: bool) -> Iterator[MemoryBound]:
    """Zeros in so many elements, where the stack writes any.

    Args:
        block: Whose routed experts these are.
        name: Of what is masked.
        elements: Copies times their width.
        in_place: Whether forward does so without a copy.
    """
    if not block.masks_copies:
        return
    size = elements * block.expert_shape.element_bytes
    copied = 0.0 if in_place else _COPY_PASSES * size
    yield MemoryBound(f"{name}_copy", copied, _COPY_PASSES * size, Region.SEQUENCE)
    filled = _FILL_PASSES * size
    yield MemoryBound(
        f"{name}_mask", filled, filled, Region.SEQUENCE,
        strided=True, is_wide=block.plan.has_wide_experts,
    )  # fmt: skip


def add_weighing(block: Block, elements: float) -> None:
    """The product of so many results with the router's weights, in the results' format."""
    if not block.has_eager_experts:
        return
    shape, is_wide = block.expert_shape, block.plan.has_wide_experts
    block.save("expert_results", elements * shape.kept_bytes, Region.ROUTED)
    product, gradient = (
        passes * elements * shape.element_bytes
        for passes in (_WEIGHING_PASSES, _WEIGHTS_GRADIENT_PASSES)
    )
    block.pieces += (
        MemoryBound(
            "expert_weighing", product, product, Region.SEQUENCE, strided=True, is_wide=is_wide
        ),
        MemoryBound(
            "expert_weighing_gradient", 0.0, gradient, Region.SEQUENCE, _WEIGHTS_GRADIENT_KERNELS
        ),
    )
