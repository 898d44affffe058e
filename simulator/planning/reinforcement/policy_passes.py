"""How long does the policy take to train on sequences, and to say how probable they are?

Microbatches are as long as they are in the mean, and as many for each rank. Ignores that one rank
may have longer ones, and where ranks share a sequence (``cp``), that it holds several.
"""

from __future__ import annotations

import math
from collections import defaultdict
from statistics import median

from simulator.described.job import Job
from simulator.engine.timeline import STREAMS
from simulator.planning.reinforcement.sequences import Microbatches
from simulator.program.ir import Kind, Stream
from simulator.results.simulation import run_step
from simulator.results.step import StepResult

_ROUNDED_TO = 64
"""Tokens that the length of a microbatch is a multiple of (NeMo RL's ``sequence_length_round``)."""


def update_step(job: Job, batches: Microbatches) -> StepResult:
    """One update on these microbatches.

    Args:
        job: An update of longest sequences.
        batches: All of one update.
    """
    return run_step(_of_lengths(job, batches))


def forward_s(job: Job, batches: Microbatches) -> float:
    """Time of all microbatches forward through the policy, whose gradients nobody needs [s].

    Every microbatch takes the slowest stage as long as in training, once the pipeline is full;
    ``pp - 1`` shares of a virtual stage fill it.

    Args:
        job: An update of longest sequences.
        batches: All that are computed.
    """
    small = job.dp * job.plan.pp
    result = run_step(_of_lengths(job, batches, count=small))
    per_rank = math.ceil(batches.count / job.dp)
    stage_s = _stage_forward_s(result)
    return stage_s * (per_rank + (job.plan.pp - 1) / job.plan.vpp)


def _of_lengths(job: Job, batches: Microbatches, count: int = 0) -> Job:
    """The job with microbatches of their mean length, as many on each data-parallel rank."""
    ranks_of_a_stage = job.cluster.gpus // job.dp // job.plan.pp
    multiple = math.lcm(_ROUNDED_TO, 2 * ranks_of_a_stage)
    tokens = multiple * max(1, round(batches.mean_tokens / multiple))
    each = max(1, math.ceil((count or batches.count) / job.dp))
    fields = {"batch.global": each * job.dp, "batch.micro": 1, "batch.seq_len": tokens}
    if job.plan.cp == 1:
        fields["batch.document_len"] = min(tokens, max(1, round(batches.sequence_tokens)))
    return job.replace(fields)


def _stage_forward_s(result: StepResult) -> float:
    """The longest that a stage computes one microbatch forward, all its chunks together [s]."""
    timeline = result.timeline
    compute = STREAMS.index(Stream.COMPUTE)
    taken: dict[tuple[int, int], float] = defaultdict(float)
    rows = zip(
        timeline.rank_class, timeline.stream, timeline.operations,
        timeline.end_s - timeline.start_s, strict=True,
    )  # fmt: skip
    for rank_class, stream, operation, seconds in rows:
        if stream == compute and operation.kind is Kind.FORWARD:
            taken[int(rank_class), operation.microbatch] += float(seconds)
    by_class: dict[int, list[float]] = defaultdict(list)
    for (rank_class, _), seconds in taken.items():
        by_class[rank_class].append(seconds)
    return max(map(median, by_class.values()))
