"""How do ranks on a square, on several squares, or on a cube multiply matrices?

**2D (SUMMA).** Rank (i, j) of q x q holds block (i, j) of the input A, of the weight B and of the
result C: tokens are cut along the columns of the square, widths along its rows. In step l of q, the
ranks of column l broadcast their blocks of A along their rows, those of row l their blocks of
B along their columns, and every rank adds the product of what it got to its block of C.

    C = A B        broadcast A in rows, broadcast B in columns
    A' = C' B^T    broadcast B in columns, reduce A' in rows
    B' = A^T C'    broadcast A in rows, reduce B' in columns

Each moves q blocks of S / q^2 per matrix of size S, so a layer of width h with T tokens moves
(7 T h + 12 h^2) / q elements forward (inputs h + h + h + 4 h wide, weights 3 + 1 + 4 + 4 h^2)
and twice that backward. Optimus counts log2(q) times as much, because it prices a broadcast
as a tree of whole messages; here rings pass them on in pieces. The output matrix is the
embedding's table, kept with the vocabulary along the columns of the square, so there C = A B^T
forward.

**2.5D (Tesseract).** Of d squares of q x q ranks each takes 1/d of the tokens and runs SUMMA on
them with its own copy of the weights. Squares saw different tokens, so the gradient of a weight is
added up over the depth: one all_reduce of h^2 / q^2 elements for a weight of h^2, after each
product (a framework may do that once per step, together with the data-parallel reduction). All
three directions pass 3 (X / d + W) / q elements of inputs X and weights W along rows and columns.

**3D.** Each of q x q x q ranks holds 1/q^3 of A, of B and of C. Lines of ranks along one side
gather A, along another B; each rank multiplies a (m/q, k/q) block with a (k/q, n/q) block, and
lines along the third side scatter the sums of C:

    C = A B        all_gather A (input), all_gather B (weight), reduce_scatter C (output)
    A' = C' B^T    all_gather C' (output), reduce_scatter A' (input)
    B' = A^T C'    reduce_scatter B' (weight)

A ring moves (q - 1) / q^3 of a matrix per rank in each of the six: 6 (q - 1) / q^3 if A and B
stay as they were gathered, as Colossal-AI keeps them (``keeps_gathered`` of the stack). Else
they are gathered again, and activations take 1/q^3 of the memory, as in the paper. The result
lies as the input of the next product does with the sides input and output exchanged, so the
products of a block take turns.

Ignores: sending or adding up biases and the weights of norms, h / q numbers each.

Source: Optimus (arXiv 2104.05343), Tesseract (arXiv 2105.14500), 3D (arXiv 2105.14450);
``Matmul_AB_2D``, ``Matmul_ABT_2D``, ``Matmul_ATB_2D``, ``Linear2p5D``, ``Linear3D`` and the
documentation of Colossal-AI.
"""

from __future__ import annotations

from dataclasses import replace

from simulator.cost.collectives import CollectiveKind
from simulator.described.plan.plan_blocks import TensorGrid
from simulator.program.layer.pieces import Axis, Gemm, GridProduct, Move, Role, Split

_BUFFERS = 2
"""Blocks of each operand in flight: one is multiplied while the next one arrives."""


def summa_product(gemm: Gemm, grid: TensorGrid, element_bytes: float) -> GridProduct:
    """One rank's part of a product, its steps and what moves in them.

    Args:
        gemm: The product of a single device.
        grid: The ranks; those of other squares have other tokens.
        element_bytes: Bytes of one activation or weight on the wire [B].
    """
    q = grid.side
    block = replace(gemm, m=gemm.m // grid.token_ways, n=gemm.n // q, k=gemm.k // q)
    # Separate products share their input, but each is sent it, and sends its gradient.
    inputs = (block.m * block.k * element_bytes, q * gemm.products)
    weights = (block.k * block.n * element_bytes, q)
    results = (block.m * block.n * element_bytes, q)
    row, column = Axis.ROW, Axis.COLUMN
    send, add = CollectiveKind.BROADCAST, CollectiveKind.REDUCE
    send_weights = Move("weights", column, send, *weights)
    add_weights = Move("weight_gradient", column, add, *weights)
    if gemm.role is Role.LOGITS:
        send_results = Move("result_gradient", row, send, *results)
        forward = (send_weights, Move("result", row, add, *results))
        input_gradient = (send_results, send_weights)
        weight_gradient = (send_results, add_weights)
    else:
        send_inputs = Move("input", row, send, *inputs)
        forward = (send_inputs, send_weights)
        input_gradient = (send_weights, Move("input_gradient", row, add, *inputs))
        weight_gradient = (send_inputs, add_weights)
    return GridProduct(
        gemm.name, block, q, block.k * block.n, forward, input_gradient, weight_gradient
    )


def summa_buffer_bytes(product: GridProduct) -> tuple[float, ...]:
    """Blocks that a product holds beside its operands and its result [B]."""
    return tuple(_BUFFERS * move.num_bytes for move in product.forward)


def tesseract_product(gemm: Gemm, grid: TensorGrid, element_bytes: float) -> GridProduct:
    """One rank's part of a product; arguments as :func:`summa_product`."""
    product = summa_product(gemm, grid, element_bytes)
    if grid.depth == 1:
        return product
    num_bytes = product.weights * element_bytes
    copies = Move("weight_copies", Axis.DEPTH, CollectiveKind.ALL_REDUCE, num_bytes)
    return replace(product, weight_gradient=(*product.weight_gradient, copies))


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
    # Separate products gather their input, and scatter its gradient, each on its own.
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
