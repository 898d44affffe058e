"""Which kernels cast the operands of 8- and 4-bit products?

A product has three operands in each of two layouts: the input and the weight forward, the output's
gradient and the weight, by columns, for the input's gradient, and the output's gradient and the
input, by columns, for the weight's. What moves is read once in 16 bits for every kernel, and
written once for every layout.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from simulator.program.layer.pieces import MemoryBound, Region, Split

Maker = Literal["norm", "activation", "other"]
"""What made the input of a product."""

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
        made_by: What made the input.
    """

    tokens: int
    n: int
    k: int
    products: int
    split: Split
    made_by: Maker = "other"

    @property
    def inputs(self) -> int:
        """Elements of the input."""
        return self.tokens * self.k

    @property
    def outputs(self) -> int:
        """Elements of the outputs."""
        return self.tokens * self.n

    @property
    def weights(self) -> int:
        """Elements of the weights."""
        return self.n * self.k

    @property
    def weight_region(self) -> Region:
        """How tensor parallelism divides the weights."""
        return Region.WHOLE if self.split is Split.NONE else Region.TENSOR

    @property
    def input_region(self) -> Region:
        """How tensor parallelism divides the input, once it is gathered."""
        return Region.TENSOR if self.split is Split.ROW else Region.WHOLE

    @property
    def output_region(self) -> Region:
        """How tensor parallelism divides the outputs, before they are added up."""
        return Region.WHOLE if self.split is Split.ROW else Region.TENSOR


@dataclass(frozen=True, slots=True)
class Casting:
    """How a stack casts what has one scale, or one for each block.

    Attributes:
        element: Bytes of one activation or weight [B].
        operand: Bytes of one cast operand [B].
        reads_twice: Whether an operand is read for its maximum before it is cast.
        finds: Makers that find the maximum of what they make.
        casts: Makers that cast it.
        apart: Whether each layout of an input or of a gradient has a kernel of its own.
        weights_apart: The same of weights.
        casts_weights: Whether weights are cast in every pass.
        to_four_bits: Whether operands have 4 bits.
    """

    element: float
    operand: float
    reads_twice: bool
    finds: frozenset[Maker | Literal["gradient"]] = frozenset()
    casts: frozenset[Maker] = frozenset()
    apart: bool = False
    weights_apart: bool = False
    casts_weights: bool = False
    to_four_bits: bool = False

    def _maximum(self, maker: Maker | Literal["gradient"] | None = None) -> float:
        return self.element if self.reads_twice and maker not in self.finds else 0.0

    @property
    def _one(self) -> float:
        return self.element + self.operand

    @property
    def _both(self) -> float:
        return self.element + 2 * self.operand

    def input_bytes(self, maker: Maker) -> tuple[float, float]:
        """Moved per element of an input, forward and backward [B]."""
        if maker in self.casts and not self.reads_twice:
            return 0.0, 0.0
        maximum = self._maximum(maker)
        return (maximum + self._one, self._one) if self.apart else (maximum + self._both, 0.0)

    @property
    def gradient_bytes(self) -> float:
        """Moved per element of an output's gradient, backward [B]."""
        return self._maximum("gradient") + (2 * self._one if self.apart else self._both)

    @property
    def weight_bytes(self) -> tuple[float, float]:
        """Moved per element of a weight, forward and backward [B]."""
        if not self.casts_weights:
            return 0.0, 0.0
        both = (self._one, self._one) if self.weights_apart else (self._both, 0.0)
        return self._maximum() + both[0], both[1]


def scaled_casts(name: str, of: Operands, casting: Casting) -> Iterator[MemoryBound]:
    """Casts around products whose operands have one scale each, or one for each block.

    Input and gradient are cast before they are gathered. What reads an operand for its maximum is
    taken to be as quick as what casts it.

    Args:
        name: Of the products.
        of: What they multiply.
        casting: How.

    Source: torchao, ``testing/training/roofline_utils.py``, which lists the kernels of each of its
    recipes with what they read and write; Transformer Engine, ``quantizer.cpp``.
    """
    forward, again = casting.input_bytes(of.made_by)
    region = Region.TENSOR if of.split is Split.ROW else Region.SEQUENCE
    backward = again * of.inputs + casting.gradient_bytes * of.outputs
    kernels = 2 if casting.apart else 1
    four = casting.to_four_bits
    yield MemoryBound(
        f"{name}_cast", forward * of.inputs, backward, region, kernels, to_four_bits=four
    )
    if casting.casts_weights:
        forward, again = casting.weight_bytes
        yield MemoryBound(
            f"{name}_weight_cast", forward * of.weights, again * of.weights, of.weight_region,
            to_four_bits=four,
        )  # fmt: skip


def row_casts(
    name: str, of: Operands, element: float, operand: float, *, casts_columns: bool = True
) -> list[MemoryBound]:
    """Casts around a product whose operands have a scale for every row.

    The forward product needs maxima over rows of the input, the input gradient over rows of
    the output's gradient, and the weight gradient over columns of both, each of a tensor
    that is read for its maxima and read again to be cast. Input gradients are scaled by a
    kernel of their own. Nothing is cast before it is gathered. Weights need maxima over rows
    forward and over columns backward. Scaling their gradients is left out.

    Args:
        name: Of the product.
        of: What it multiplies.
        element: Bytes of one activation [B].
        operand: Bytes of one cast operand [B].
        casts_columns: Whether gradients of weights are 8-bit products, too; else weights have, by
            columns, one scale, which is the largest of those of their rows.

    Source: torchao, ``float8/config.py`` (``rowwise`` and ``rowwise_with_gw_hp``) and
    ``float8_ops.py``: without fast accumulation, as in backward, the scales are applied to what
    cuBLAS returns.
    """
    by_rows, by_columns = 2 * element + operand, element + operand
    again = by_columns if casts_columns else 0.0
    weight = MemoryBound(
        f"{name}_weight_cast", of.weights * by_rows, of.weights * by_columns, of.weight_region, 2
    )
    casts, maxima = [weight], [("weight", of.weights, of.weight_region)]
    sides = (
        ("input", of.inputs, of.input_region, of.products * 2 * element),
        ("output", of.outputs, of.output_region, 0.0),
    )
    for side, elements, region, scaled in sides:
        of_gradient = side == "output"
        forward = 0.0 if of_gradient else elements * by_rows
        backward = elements * (again + (by_rows if of_gradient else scaled))
        casts.append(MemoryBound(f"{name}_{side}_cast", forward, backward, region, kernels=2))
        maxima.append((side, elements, region))
    if casts_columns:
        casts += [
            MemoryBound(f"{name}_{side}_maxima", 0.0, count * element, region, reduces_rows=True)
            for side, count, region in maxima
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
    inputs = of.products * of.inputs * (scaled + cast)
    weights = of.weights * (scaled + cast)
    gradients = of.outputs * (scaled + 2 * cast)
    kernels = of.products * _EAGER_CAST_KERNELS
    return [
        MemoryBound(f"{name}_input_cast", inputs, inputs, of.input_region, kernels),
        MemoryBound(f"{name}_weight_cast", weights, weights, of.weight_region, kernels),
        MemoryBound(f"{name}_output_cast", 0.0, gradients, of.output_region, kernels + of.products),
    ]
