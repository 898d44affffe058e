"""What does one rank run of a layer?"""

from __future__ import annotations

from dataclasses import replace

from simulator.cost.rates import FULL_BYTES
from simulator.described.job import Job
from simulator.program.grid.expert_tokens import ExpertShare
from simulator.program.grid.rank_groups import expert_group
from simulator.program.layer.block import Shape
from simulator.program.layer.pieces import ContextSplit, Layer, Piece
from simulator.program.states.resident import padded_vocab
from simulator.program.strategies.expert_parallel import expert_parallel
from simulator.program.strategies.grid_parallel import grid_parallel
from simulator.program.strategies.tensor_parallel import tensor_parallel


def divided(layer: Layer, job: Job, shape: Shape, share: ExpertShare | None) -> Layer:
    """The strategy passes, in order."""
    plan = job.plan
    if plan.cp > 1:
        sum_ratio = FULL_BYTES / shape.element_bytes if plan.stack.fp32_ring_sums else 1.0
        split = ContextSplit(plan.cp, plan.cp_heads, shape.element_bytes, sum_ratio)
        layer = context_parallel(layer, plan.cp_method, split)
    layer = _shared_by_tensor_ranks(layer, job, shape)
    return expert_parallel(
        layer,
        expert_group(job),
        plan.expert_tp,
        experts=job.model.experts,
        element_bytes=shape.element_bytes,
        dispatcher=plan.ep_dispatch,
        share=share,
        count_kernels=plan.stack.expert_count_kernels,
        sends_weights=plan.stack.sends_router_weights,
        overlaps_shared=plan.overlap_shared_expert,
    )


def _shared_by_tensor_ranks(layer: Layer, job: Job, shape: Shape) -> Layer:
    plan = job.plan
    if plan.tensor_grid is None:
        return tensor_parallel(
            layer,
            job.choices.tensor_ranks,
            sequence_parallel=plan.cuts_sequence,
            element_bytes=shape.element_bytes,
            gathered_bytes=shape.gemm_bytes if plan.stack.gathers_casted else None,
            keeps_gathered=plan.stack.keeps_gathered,
        )
    return grid_parallel(
        layer,
        plan.tensor_grid,
        element_bytes=shape.element_bytes,
        keeps_gathered=plan.stack.keeps_gathered,
        norm_sums=2 if job.model.normalisation == "layernorm" else 1,
        vocabulary=padded_vocab(job) * job.model.hidden,
    )


def context_parallel(layer: Layer, method: str, split: ContextSplit) -> Layer:
    """The layer of one of several ranks that share a sequence, by the rules of its parts.

    Args:
        layer: A layer built for the rank's own part of the sequence.
        method: A ``plan.cp_method`` that all its parts have a rule for.
        split: How the ranks share it.
    """
    pieces: tuple[Piece, ...] = layer.pieces
    for rules in layer.context:
        pieces = tuple(new for piece in pieces for new in rules[method](piece, split))
    return replace(layer, pieces=pieces)
