"""Which layers does each virtual pipeline stage hold?

How many each holds is said by :mod:`simulator.described.layer_counts`; here the runs are cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from simulator.described.job import Job
from simulator.described.layer_counts import layer_counts


class Slice(NamedTuple):
    """A contiguous run of layers, with the embedding or the head if they belong to it.

    Attributes:
        first, end: Layer indices, ``end`` excluded.
        has_embedding, has_head: Whether the run starts or ends the model.
        has_loss: Whether the loss is computed, after the head or on its own.
    """

    first: int
    end: int
    has_embedding: bool = False
    has_head: bool = False
    has_loss: bool = False


def stage_slices(job: Job, stages: int) -> tuple[Slice, ...]:
    """The run of layers of each of ``stages`` virtual stages, in order of the model."""
    return runs_of_counts(layer_counts(job, stages))


def runs_of_counts(counts: Sequence[int]) -> tuple[Slice, ...]:
    """The run of layers of each virtual stage that holds so many of them."""
    last = len(counts) - 1
    return tuple(
        Slice(
            end - count,
            end,
            has_embedding=stage == 0,
            has_head=stage == last,
            has_loss=stage == last,
        )
        for stage, (end, count) in enumerate(zip(accumulate(counts), counts, strict=True))
    )


def recomputed_layers(job: Job) -> frozenset[int]:
    """Layers that backward computes again, in part or as a whole, by index."""
    plan = job.plan
    if plan.recompute == "none":
        return frozenset()
    if plan.recompute_layers is None:
        return frozenset(range(job.model.layers))
    runs = stage_slices(job, plan.pp * plan.vpp)
    return frozenset(
        index
        for run in runs
        for index in range(run.first, min(run.end, run.first + plan.recompute_layers))
    )


def bf16_layers(job: Job) -> frozenset[int]:
    """Layers at either end whose products stay in bf16 where the others are narrower, by index."""
    plan, layers = job.plan, job.model.layers
    first, last = range(plan.first_bf16_layers), range(layers - plan.last_bf16_layers, layers)
    return frozenset((*first, *last))


def cut(run: Slice, max_layers: int) -> list[Slice]:
    """The run in pieces of at most ``max_layers`` layers, in order.

    The embedding stays with the first piece, head and loss with the last.
    """
    starts = list(range(run.first, run.end, max(1, max_layers))) or [run.first]
    ends = [*starts[1:], run.end]
    return [
        Slice(
            first,
            end,
            has_embedding=run.has_embedding and first == run.first,
            has_head=run.has_head and end == run.end,
            has_loss=run.has_loss and end == run.end,
        )
        for first, end in zip(starts, ends, strict=True)
    ]


def ends_apart(runs: list[Slice]) -> list[Slice]:
    """The runs with head and loss, where the last one has them, as pieces of their own."""
    *others, last = runs
    body = last._replace(has_head=False, has_loss=False)
    is_empty = last.first == last.end and not last.has_embedding
    layers = [] if is_empty and (last.has_head or last.has_loss) else [body]
    head = [Slice(last.end, last.end, has_head=True)] if last.has_head else []
    loss = [Slice(last.end, last.end, has_loss=True)] if last.has_loss else []
    return [*others, *layers, *head, *loss]
