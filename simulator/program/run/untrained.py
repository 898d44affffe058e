"""What does a step run and hold of a network that is not trained?

The reference of DPO and a teacher run forward on every microbatch before the network that is
trained. Nothing is kept of their activations; each layer is gone with the next. A reference leaves
a number per sequence, a teacher its logits, which are there until backward begins. Their weights
are kept as those of the trained network are, and sharded where these are; gathers run beside
forward, so that what they take longer than it delays it. The same network without its adapters has
no weights of its own; its adapters, which are small, are counted all the same.

Source: TRL, ``trainer/dpo_trainer.py``: ``compute_ref_log_probs`` under ``no_grad``, and
``null_ref_context``, which disables adapters; accelerate's ``prepare_model`` and DeepSpeed's
``prepare_deepspeed``, which shard a reference as ZeRO 3 says; arXiv 2305.18290, section 4.
Ignores: passes that compute all log-probabilities of a reference before training.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from heapq import nlargest

from simulator.cost.kernel_time import output_bytes
from simulator.described.job import Job
from simulator.program.grid.stage_layers import Slice, stage_slices
from simulator.program.ir import Category, Memory, Owner, Part, Work
from simulator.program.price.stage_cost import StageCosts
from simulator.program.states.data_parallel_collectives import Collectives
from simulator.program.states.gather_units import Units
from simulator.program.states.resident import (
    output_numel,
    resident_memory,
    slice_parameters,
    state_bytes,
)
from simulator.schedule.slots import Phase

_GATHERED_AT_ONCE = 2
"""Units whose weights are whole at a time: that of the layer that runs, and the next."""


@dataclass(frozen=True)
class UntrainedPass:
    """Forward of one microbatch.

    Attributes:
        work: Its cost.
        holds: Memory while it runs.
        keeps: Memory that it leaves until backward begins.
    """

    work: Work
    holds: Memory
    keeps: Memory


def untrained_memory(job: Job) -> Memory:
    """Weights of the network that is not trained, on one rank."""
    if job.reference in (None, "adapters-off"):
        return ()
    other = _untrained(job)
    parameters = slice_parameters(other, _whole(other))
    held = dict(resident_memory(other, parameters))
    return ((Owner.WEIGHTS, held[Owner.WEIGHTS]),)


def untrained_pass(job: Job) -> UntrainedPass | None:
    """What runs before the forward of every microbatch; None where nothing does."""
    if job.reference is None:
        return None
    other = job if job.reference == "adapters-off" else _untrained(job)
    run, costs = _whole(other), StageCosts(other)
    work, gathered = costs.work(run, Phase.FORWARD), _Gathers(other, run)
    waits_s = max(0.0, gathered.seconds - work.seconds)
    if waits_s:
        parts = (*work.parts, Part("gather", Category.DATA_PARALLEL, waits_s))
        work = replace(work, seconds=work.seconds + waits_s, parts=parts)
    keeps = () if isinstance(job.reference, str) else _logits(other)
    return UntrainedPass(work, costs.alone(run) + gathered.holds, keeps)


def _untrained(job: Job) -> Job:
    """The other network on the same ranks, all of it frozen."""
    model = job.model if isinstance(job.reference, str) else job.reference
    plan = job.plan.model_copy(update={"lora": None, "frozen": ("*",), "recompute": "none"})
    return job.model_copy(update={"model": model, "plan": plan, "reference": None})


def _whole(job: Job) -> Slice:
    (run,) = stage_slices(job, 1)
    return run


def _logits(job: Job) -> Memory:
    """What a teacher leaves, whose every logit the loss compares."""
    shape, plan = job.batch, job.plan
    numel = output_numel(job, shape.micro_batch * shape.seq_len) / plan.cp
    ranks = job.choices.tensor_ranks if plan.divides_loss else 1
    return ((Owner.LOGITS, numel / ranks * output_bytes(plan.precision)),)


class _Gathers:
    """Weights that come together while a forward runs."""

    def __init__(self, job: Job, run: Slice) -> None:
        units = Units(job)
        pieces = units.pieces(run) if job.choices.shards_weights else ()
        exchanges = Collectives(job, units)
        needs = [piece.needs for piece in pieces if piece.needs]
        self.seconds = math.fsum(exchanges.gather(each).seconds for each in needs)
        per = state_bytes(job).gathered
        sizes = (per * math.fsum(unit.parameters.total for unit in each) for each in needs)
        self.holds = tuple(
            (Owner.GATHERED_WEIGHTS, size) for size in nlargest(_GATHERED_AT_ONCE, sizes)
        )
