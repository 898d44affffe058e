"""What does the host replay as CUDA graphs, and what is left for it to launch kernel by kernel?

A graph holds kernels of shapes that do not change. What routed experts compute changes from step to
step unless they have a capacity, so that graphs of layers remove it.

Source: Megatron-Core, user guide of CUDA graphs (``cuda_graph_impl`` and ``cuda_graph_modules``).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from simulator.described.job import Job
from simulator.program.layer.pieces import Axis, Exchange, Layer, MemoryBound, Piece, Role


def captured_pieces(job: Job, layer: Layer, *, is_end: bool) -> Collection[Piece]:
    """Pieces that the host replays as a graph.

    Args:
        job: What its plan replays.
        layer: A layer, or an end of the model.
        is_end: Whether it is an end.
    """
    graphs, experts = job.plan.cuda_graphs, job.model.experts
    if graphs == "none" or (graphs == "layer" and is_end):
        return ()
    if graphs == "layer" and experts is not None and experts.capacity_factor is None:
        routed = _routed_pieces(layer)
        return [piece for piece in layer.pieces if piece not in routed]
    return layer.pieces


def without(layer: Layer, captured: Collection[Piece]) -> Layer:
    """The layer that the host launches by itself."""
    return replace(layer, pieces=tuple(each for each in layer.pieces if each not in captured))


def _routed_pieces(layer: Layer) -> Sequence[Piece]:
    """What is between sending tokens to their experts and having them back, both included."""
    ends, axes = (Role.PERMUTE, Role.UNPERMUTE), (Axis.EXPERT, Axis.EXPERT_TENSOR)
    found = [
        index
        for index, piece in enumerate(layer.pieces)
        if (isinstance(piece, MemoryBound) and piece.role in ends)
        or (isinstance(piece, Exchange) and piece.axis in axes)
    ]
    return layer.pieces[found[0] : found[-1] + 1] if found else ()
