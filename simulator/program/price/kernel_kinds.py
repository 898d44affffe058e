"""Is a named part of an operation a matrix product, attention, or something else?"""

from __future__ import annotations

from enum import StrEnum

from simulator.described.job import Job
from simulator.program.layer.pieces import (
    FlashAttention,
    Gemm,
    GridProduct,
    GroupedGemm,
    Piece,
    RingAttention,
)
from simulator.program.price.stage_cost import StageCosts
from simulator.program.price.update_time import NEWTON_SCHULZ


class KernelKind(StrEnum):
    """What a kernel computes, as a profile of a real run can tell, too."""

    GEMM = "gemm"
    ATTENTION = "attention"
    OTHER = "other"


def kernel_kinds(job: Job) -> dict[str, KernelKind]:
    """Kind of every part that computes, by its name; names that are missing are of others.

    Attention that is not fused is the products and the softmax that it is made of.
    """
    kinds = {piece.name: _kind(piece) for piece in StageCosts(job).all_pieces()}
    return kinds | {NEWTON_SCHULZ: KernelKind.GEMM}


def _kind(piece: Piece) -> KernelKind:
    match piece:
        case Gemm() | GroupedGemm() | GridProduct():
            return KernelKind.GEMM
        case FlashAttention() | RingAttention():
            return KernelKind.ATTENTION
        case _:
            return KernelKind.OTHER
