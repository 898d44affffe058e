"""What does a backward hold between its two halves?

The input gradient computes all gradients of activations. What the weight gradient still
needs then are the inputs and the output gradients of products with weights; everything else,
such as attention's scores and dropout masks, can be freed. Gradients of norms and biases are
computed with the first half.

Source: Qi et al. (arXiv 2401.10241, section 2 and appendix: 32 h of 34 h + 5 a s bytes per
token), and the weight-gradient queues of Megatron-LM's and DeepSeek's implementations.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
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
            sizes += [rows * piece.k * operand_bytes, rows * piece.n * operand_bytes]
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


class BackwardPeak(NamedTuple):
    """Memory that backward of a layer holds at its most.

    Attributes:
        memory: What is held.
        in_attention: Whether that is while attention runs, after the MLP.
    """

    memory: Memory
    in_attention: bool = False


def backward_peak(layer: Layer, restored_bytes: Sequence[float]) -> BackwardPeak:
    """What backward holds beyond what forward left: gradients, and what was computed again.

    Its second part, the MLP, goes first; autograd frees what that read, so what was computed again
    for it is gone when the turn of attention comes.

    Args:
        layer: One rank's.
        restored_bytes: What exists again of each saved activation, and then anything else [B].
    """
    middle = layer.middle
    later = math.fsum(restored_bytes[middle : len(layer.saved)])
    of_all = temporaries(layer), tuple(restored_bytes)
    if layer.working_bytes or not later:
        return BackwardPeak(_working(*of_all))
    first, second = (
        replace(layer, saved=part) for part in (layer.saved[:middle], layer.saved[middle:])
    )
    kept = (*restored_bytes[:middle], *restored_bytes[len(layer.saved) :])
    turns = (
        BackwardPeak(_working(temporaries(second), of_all[1])),
        BackwardPeak(_working(temporaries(first), kept), in_attention=True),
    )
    return max(turns, key=lambda turn: total_bytes(turn.memory))


def checkpoint_ends(layer: Layer) -> Memory:
    """What a function holds that computes a layer again and then calls its backward.

    The layer's output and the gradient of it, until it returns; both are as large as its input.

    Source: ``CheckpointFunction.backward`` of ``torch.utils.checkpoint``, and those of Megatron-LM
    (``tensor_parallel/random.py``) and DeepSpeed (``activation_checkpointing``).
    """
    return ((Owner.TEMPORARIES, layer.input_bytes),) * 2


def _working(gradients: Memory, restored_bytes: Sequence[float]) -> Memory:
    return gradients + tuple((Owner.RECOMPUTE, size) for size in restored_bytes if size)


def temporaries(layer: Layer) -> Memory:
    """Gradients that backward holds.

    As large as the two largest saved activations (assumption: a gradient and its successor
    are alive at once), where the layer does not say.
    """
    largest = sorted((saved.num_bytes for saved in layer.saved), reverse=True)[:2]
    sizes = (*(layer.working_bytes or largest), *layer.buffer_bytes)
    return tuple((Owner.TEMPORARIES, size) for size in sizes)
