"""How does a square of ranks multiply matrices (2D tensor parallelism, SUMMA)?

Rank (i, j) of q x q holds block (i, j) of the input A, of the weight B and of the result C:
tokens are cut along the columns of the square, widths along its rows. In step l of q, the
ranks of column l broadcast their blocks of A along their rows, those of row l their blocks of
B along their columns, and every rank adds the product of what it got to its block of C.

    C = A B        broadcast A in rows, broadcast B in columns
    A' = C' B^T    broadcast B in columns, reduce A' in rows
    B' = A^T C'    broadcast A in rows, reduce B' in columns

Each moves q blocks of S / q^2 per matrix of size S, so a layer of width h with T tokens moves
(7 T h + 12 h^2) / q elements forward (inputs h + h + h + 4 h wide, weights 3 + 1 + 4 + 4 h^2)
and twice that backward. Optimus counts log2(q) times as much, because it prices a broadcast
as a tree of whole messages; here rings pass them on in pieces.

The output matrix is the embedding's table, kept with the vocabulary along the columns of the
square, so there C = A B^T forward.

Ignores: sending biases and the weights of norms, h / q numbers each.

Source: Optimus (arXiv 2104.05343), its algorithms for AB, AB^T and A^T B;
``Matmul_AB_2D``, ``Matmul_ABT_2D`` and ``Matmul_ATB_2D`` of Colossal-AI.
"""

from __future__ import annotations

from dataclasses import replace

from simulator.cost.collectives import CollectiveKind
from simulator.described.plan.plan_blocks import TensorGrid
from simulator.program.layer.pieces import Axis, Gemm, GridProduct, Move

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
    # Products apart share their input, but each is sent it, and sends its gradient.
    inputs = (block.m * block.k * element_bytes, q * gemm.products)
    weights = (block.k * block.n * element_bytes, q)
    results = (block.m * block.n * element_bytes, q)
    row, column = Axis.ROW, Axis.COLUMN
    send, add = CollectiveKind.BROADCAST, CollectiveKind.REDUCE
    send_weights = Move("weights", column, send, *weights)
    add_weights = Move("weight_gradient", column, add, *weights)
    if gemm.name == "head":
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
