"""Which kernels cast the operands of 8-bit products where they are not cast as they are made?"""

from __future__ import annotations

from dataclasses import dataclass

from simulator.program.layer.pieces import MemoryBound, Region, Split

_EAGER_CAST_KERNELS = 6
"""Maximum, its lower bound, scale, scale in fp32, scaling and cast of one operand."""


@dataclass(frozen=True, slots=True)
class Operands:
    """What products with the same input multiply.

    Attributes:
        tokens: T, rows of input and output.
        n, k: Columns of the outputs together, and of the input.
        products: How many there are.
        split: How tensor parallelism divides their weights.
    """

    tokens: int
    n: int
    k: int
    products: int
    split: Split

    @property
    def inputs(self) -> int:
        """Elements of the input."""
        return self.tokens * self.k

    @property
    def outputs(self) -> int:
        """Elements of the outputs."""
        return self.tokens * self.n

    @property
    def input_region(self) -> Region:
        """How tensor parallelism divides the input, once it is gathered."""
        return Region.TENSOR if self.split is Split.ROW else Region.WHOLE

    @property
    def output_region(self) -> Region:
        """How tensor parallelism divides the outputs, before they are added up."""
        return Region.WHOLE if self.split is Split.ROW else Region.TENSOR


def row_casts(name: str, of: Operands, element: float, operand: float) -> list[MemoryBound]:
    """Casts around a product whose operands have a scale for every row.

    The forward product needs maxima over rows of the input, the input gradient over rows of
    the output's gradient, and the weight gradient over columns of both, each of a tensor
    that is read for its maxima and read again to be cast. Input gradients are scaled by a
    kernel of their own. Nothing is cast before it is gathered. Casts and scales of weights
    and their gradients are left out.

    Args:
        name: Of the product.
        of: What it multiplies.
        element: Bytes of one activation [B].
        operand: Bytes of one cast operand [B].

    Source: torchao, ``float8/config.py`` and ``float8_ops.py``: without fast accumulation,
    as in backward, the scales are applied to what cuBLAS returns.
    """
    casts = []
    sides = (
        ("input", of.inputs, of.input_region, of.products * 2 * element),
        ("output", of.outputs, of.output_region, 0.0),
    )
    for side, elements, region, scaled in sides:
        by_rows, by_columns = elements * (2 * element + operand), elements * (element + operand)
        of_gradient = side == "output"
        forward = 0.0 if of_gradient else by_rows
        backward = by_columns + (by_rows if of_gradient else elements * scaled)
        casts += [
            MemoryBound(f"{name}_{side}_cast", forward, backward, region, kernels=2),
            MemoryBound(
                f"{name}_{side}_maxima", 0.0, elements * element, region, reduces_rows=True
            ),
        ]
    return casts


def eager_casts(name: str, of: Operands, element: float, operand: float) -> list[MemoryBound]:
    """Casts around products whose operands are scaled and cast by eager kernels.

    One reads an operand for its maximum, one scales it, one casts it: input and weight for
    the output; the weight and, by columns, the input again for their gradients; and the
    output's gradient, scaled once, in both layouts. Separate products cast one input each.

    Args:
        name: Of the products.
        of: What they multiply.
        element: Bytes of one activation [B].
        operand: Bytes of one cast operand [B].
    """
    scaled, cast = 3 * element, element + operand
    weight_region = Region.WHOLE if of.split is Split.NONE else Region.TENSOR
    inputs = of.products * of.inputs * (scaled + cast)
    weights = of.n * of.k * (scaled + cast)
    gradients = of.outputs * (scaled + 2 * cast)
    kernels = of.products * _EAGER_CAST_KERNELS
    return [
        MemoryBound(f"{name}_input_cast", inputs, inputs, of.input_region, kernels),
        MemoryBound(f"{name}_weight_cast", weights, weights, weight_region, kernels),
        MemoryBound(f"{name}_output_cast", 0.0, gradients, of.output_region, kernels + of.products),
    ]
