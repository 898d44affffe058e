"""How does a cube of ranks multiply matrices (3D tensor parallelism)?

Each of q x q x q ranks holds 1/q^3 of the input A, of the weight B and of the result C. Lines
of ranks along one side gather A, along another B; each rank multiplies a (m/q, k/q) block with
a (k/q, n/q) block, and lines along the third side scatter the sums of C:

    C = A B        all_gather A (input), all_gather B (weight), reduce_scatter C (output)
    A' = C' B^T    all_gather C' (output), reduce_scatter A' (input)
    B' = A^T C'    reduce_scatter B' (weight)

A ring moves (q - 1) / q^3 of a matrix per rank in each of the six: 6 (q - 1) / q^3 if A and B
stay as they were gathered, as Colossal-AI keeps them (``keeps_gathered`` of the stack). Else
they are gathered again, and activations take 1/q^3 of the memory, as in the paper.

The result lies as the input of the next product does with the sides input and output
exchanged, so the products of a block take turns.

Ignores: adding up the gradients of biases and of the weights of norms, h / q numbers each.

Source: arXiv 2105.14450; ``Linear3D`` and "3D Tensor Parallelism, Efficiency" in the
documentation of Colossal-AI.
"""

from __future__ import annotations

from dataclasses import replace

from simulator.cost.collectives import CollectiveKind
from simulator.described.plan.plan_blocks import TensorGrid
from simulator.program.layer.pieces import Axis, Gemm, GridProduct, Move, Split


def cube_product(
    gemm: Gemm, grid: TensorGrid, element_bytes: float, *, keeps_gathered: bool
) -> GridProduct:
    """One rank's part of a product and what moves for it.

    Args:
        gemm: The product of a single device.
        grid: The ranks.
        element_bytes: Bytes of one activation or weight on the wire [B].
        keeps_gathered: Whether gathered inputs and weights stay for backward.
    """
    q = grid.side
    block = replace(gemm, m=gemm.m // q, n=gemm.n // q, k=gemm.k // q)
    source, target = Axis.INPUT, Axis.OUTPUT
    if gemm.split is Split.ROW:
        source, target = target, source
    gather, scatter = CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER
    input_bytes = block.m * block.k * element_bytes
    weight_bytes = block.k * block.n * element_bytes
    result_bytes = block.m * block.n * element_bytes
    # Products apart gather their input, and scatter its gradient, each on its own.
    inputs = Move("input", source, gather, input_bytes, gemm.products)
    weights = Move("weights", Axis.WEIGHT, gather, weight_bytes)
    return GridProduct(
        name=gemm.name,
        block=block,
        steps=1,
        weights=block.k * block.n / q,
        forward=(inputs, weights, Move("result", target, scatter, result_bytes)),
        input_gradient=(
            Move("result_gradient", target, gather, result_bytes),
            *(() if keeps_gathered else (weights,)),
            Move("input_gradient", source, scatter, input_bytes, gemm.products, hides=True),
        ),
        weight_gradient=(
            *(() if keeps_gathered else (inputs,)),
            Move("weight_gradient", Axis.WEIGHT, scatter, weight_bytes),
        ),
    )


def gathered_bytes(product: GridProduct) -> tuple[float, float]:
    """Input and weight as one rank has them while it multiplies [B]."""
    inputs, weights, _ = product.forward
    return inputs.num_bytes, weights.num_bytes


def scattered_bytes(product: GridProduct) -> float:
    """The partial result before its sums are scattered [B]."""
    return product.forward[-1].num_bytes
