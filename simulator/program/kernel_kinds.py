"""Is a named part of an operation a matrix product, attention, or something else?"""

from __future__ import annotations

from enum import StrEnum

from simulator.cost.parameters import layer_kinds
from simulator.program.layer import (
    FlashAttention,
    Gemm,
    GridProduct,
    GroupedGemm,
    Piece,
    RingAttention,
)
from simulator.program.optimizer import NEWTON_SCHULZ
from simulator.program.stage import ENDS, StageCosts
from simulator.spec.job import Job


class KernelKind(StrEnum):
    """What a kernel computes, as a profile of a real run can tell, too."""

    GEMM = "gemm"
    ATTENTION = "attention"
    OTHER = "other"


def kernel_kinds(job: Job) -> dict[str, KernelKind]:
    """Kind of every part that computes, by its name; names that are missing are of others.

    Attention that is not fused is the products and the softmax that it is made of.
    """
    costs = StageCosts(job)
    pieces = [costs.layer_pieces(kind)[0] for kind in dict.fromkeys(layer_kinds(job.model))]
    pieces += [costs.unit_pieces(unit) for unit in ENDS]
    kinds = {piece.name: _kind(piece) for unit in pieces for piece in unit}
    return kinds | {NEWTON_SCHULZ: KernelKind.GEMM}


def _kind(piece: Piece) -> KernelKind:
    match piece:
        case Gemm() | GroupedGemm() | GridProduct():
            return KernelKind.GEMM
        case FlashAttention() | RingAttention():
            return KernelKind.ATTENTION
        case _:
            return KernelKind.OTHER
