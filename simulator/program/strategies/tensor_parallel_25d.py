"""How do several squares of ranks multiply matrices (2.5D tensor parallelism, Tesseract)?

Of d squares of q x q ranks each takes 1/d of the tokens and runs SUMMA on them with its own
copy of the weights (:mod:`simulator.program.strategies.tensor_parallel_2d`). Blocks of inputs are d
times smaller than on one square of as many tokens, those of weights are not. Squares saw different
tokens, so the gradient of a weight is added up over the depth: one all_reduce of h^2 / q^2 elements
for a weight of h^2, after each product (a framework may do that once per step, together with the
data-parallel reduction).

For a matrix X of inputs and one of weights W, all three directions pass 3 (X / d + W) / q
elements along rows and columns: 3 (q - 1) (d + 1) / (d q) times one matrix where both are
equal and every hop of an unpipelined ring counts, as in Colossal-AI's documentation.

Ignores: sending biases and the weights of norms, h / q numbers each.

Source: Tesseract (arXiv 2105.14500); ``Linear2p5D`` and "2.5D Tensor Parallelism, Efficiency"
in the documentation of Colossal-AI.
"""

from __future__ import annotations

from dataclasses import replace

from simulator.cost.collectives import CollectiveKind
from simulator.described.plan.plan_blocks import TensorGrid
from simulator.program.layer.pieces import Axis, Gemm, GridProduct, Move
from simulator.program.strategies.tensor_parallel_2d import summa_product


def tesseract_product(gemm: Gemm, grid: TensorGrid, element_bytes: float) -> GridProduct:
    """One rank's part of a product; arguments as :func:`summa_product`."""
    product = summa_product(gemm, grid, element_bytes)
    if grid.depth == 1:
        return product
    num_bytes = product.weights * element_bytes
    copies = Move("weight_copies", Axis.DEPTH, CollectiveKind.ALL_REDUCE, num_bytes)
    return replace(product, weight_gradient=(*product.weight_gradient, copies))
