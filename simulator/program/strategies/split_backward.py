"""What does a backward hold between its two halves?

The input gradient computes all gradients of activations. What the weight gradient still
needs then are the inputs and the output gradients of products with weights; everything else,
such as attention's scores and dropout masks, can be freed. Gradients of norms and biases are
computed with the first half.

Source: Qi et al. (arXiv 2401.10241, section 2 and appendix: 32 h of 34 h + 5 a s bytes per
token), and the weight-gradient queues of Megatron-LM's and DeepSeek's implementations.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from simulator.program.ir import Memory, Owner, total_bytes
from simulator.program.layer.pieces import (
    Axis,
    Exchange,
    Gemm,
    GridProduct,
    GroupedGemm,
    Layer,
    Piece,
)


class Halves(NamedTuple):
    """Memory of a backward in two halves.

    Attributes:
        takes: What stays of the first half beyond what forward left.
        gives: What the first half frees.
        pending: What the second half frees.
    """

    takes: Memory
    gives: Memory
    pending: Memory


def whole_until_the_end(saved: Memory, restored: Memory) -> Halves:
    """Nothing is freed half-way, and what is computed again stays, too."""
    return Halves(restored, (), saved + restored)


def freed_half_way(saved: Memory, pending: Memory) -> Halves:
    """The first half leaves as much as is pending.

    Blocks that forward left stand for those that stay, as many as come nearest to it, so that
    what is computed again layer by layer is not counted beside what is freed layer by layer.
    """
    freed = total_bytes(saved) - total_bytes(pending)
    if freed < 0:
        takes, _ = _picked(pending, -freed)
        return Halves(takes, (), saved + takes)
    gives, stay = _picked(saved, freed)
    return Halves((), gives, stay)


def _picked(blocks: Memory, most_bytes: float) -> tuple[Memory, Memory]:
    """Blocks that make up so many bytes at most, the largest first, and the others."""
    picked: list[tuple[Owner, float]] = []
    others: list[tuple[Owner, float]] = []
    left = most_bytes
    for owner, size in sorted(blocks, key=lambda block: block[1], reverse=True):
        fits = size <= left
        (picked if fits else others).append((owner, size))
        left -= size if fits else 0.0
    return tuple(picked), tuple(others)


def pending_bytes(
    layer: Layer, tp: int, element_bytes: float, operand_bytes: float
) -> tuple[float, ...]:
    """Inputs and output gradients of a layer's products with weights, one block each [B].

    Args:
        layer: Pieces of one rank.
        tp: Tensor-parallel degree.
        element_bytes: Bytes of one activation [B].
        operand_bytes: Bytes of one operand of a product with a weight [B].
    """
    sizes: list[float] = []
    for index, piece in enumerate(layer.pieces):
        if isinstance(piece, GroupedGemm) and piece.trained_share:
            rows = piece.groups * piece.mean_rows
            bytes_each = element_bytes if piece.half_precision else operand_bytes
            sizes += [rows * piece.k * bytes_each, rows * piece.n * bytes_each]
        elif isinstance(piece, Gemm) and piece.has_weight and piece.trained_share:
            bytes_each = element_bytes if piece.half_precision else operand_bytes
            kept_rows = piece.m / tp if _gathers_again(layer.pieces, index) else piece.m
            sizes += [kept_rows * piece.k * bytes_each, piece.m * piece.n * bytes_each]
        elif isinstance(piece, GridProduct):
            # Of operands a rank keeps as large a part as of the weight.
            block = piece.block
            kept = piece.weights / (block.k * block.n)
            sizes += [kept * block.m * each * element_bytes for each in (block.k, block.n)]
    return tuple(sizes)


def _gathers_again(pieces: Sequence[Piece], index: int) -> bool:
    """Whether the input of a product is kept cut along the sequence, and gathered for each use."""
    before = pieces[index - 1] if index else None
    return isinstance(before, Exchange) and before.axis is Axis.TENSOR and before.gathers_again
