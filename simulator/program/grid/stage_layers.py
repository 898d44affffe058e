"""Which layers does each virtual pipeline stage hold?

Layers, multi-token-prediction modules, and the embedding and loss where the plan counts
them, are dealt out in equal contiguous runs. What does not divide leaves the ends of the
pipeline one layer short, because they also hold the embedding and the loss (as Llama 3 405B
was laid out, arXiv 2407.21783, section 3.3.2); some frameworks leave its first stages short. A
plan may also name every stage's layers itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from simulator.described.job import Job
from simulator.described.plan.layout_text import layers_per_stage
from simulator.errors import InputError


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
    return runs_of_counts(_layer_counts(job, stages))


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


def _layer_counts(job: Job, stages: int) -> list[int]:
    plan, layers = job.plan, job.model.layers
    if plan.layout is not None:
        return list(layers_per_stage(plan.layout))
    if plan.first_stage_layers or plan.last_stage_layers:
        return _counts_with_given_ends(job, stages)
    last_units = plan.account_for_loss + job.model.multi_token_layers
    units = layers + plan.account_for_embedding + last_units
    counts = [-(-units // stages)] * stages
    short = sum(counts) - units
    for index in _shorter_first(stages, from_first=job.choices.short_stages_come_first)[:short]:
        counts[index] -= 1
    counts[0] -= plan.account_for_embedding
    counts[-1] -= last_units
    if counts[-1] < 0:
        raise InputError.single(
            "plan.pp",
            f"leaves the last of {stages} stages fewer than the {last_units} units it must hold: "
            "multi-token-prediction modules, and the loss where it counts",
            plan.pp,
            "lower plan.pp or plan.vpp",
        )
    return counts


def _shorter_first(stages: int, *, from_first: bool) -> list[int]:
    """Stages in the order in which they go without a layer."""
    if from_first:
        return list(range(stages))
    return sorted(range(stages), key=lambda i: (min(i, stages - 1 - i), -i))


def _counts_with_given_ends(job: Job, stages: int) -> list[int]:
    plan, layers = job.plan, job.model.layers
    ends = [(0, plan.first_stage_layers), (stages - 1, plan.last_stage_layers)]
    given = {index: count for index, count in ends if count}
    left, open_stages = layers - sum(count for _, count in ends), stages - len(given)
    fits = left >= open_stages and left % open_stages == 0 if open_stages else left == 0
    if not fits:
        raise InputError.single(
            "plan.first_stage_layers" if plan.first_stage_layers else "plan.last_stage_layers",
            f"leaves {left} layers for {open_stages} other stages, which do not divide evenly",
            plan.first_stage_layers or plan.last_stage_layers,
        )
    return [given.get(index) or left // open_stages for index in range(stages)]


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
