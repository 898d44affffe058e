"""What does each stage of ZeRO cost inside a pipeline, per microbatch?

A pipeline adds up the gradients of many microbatches before it updates. ZeRO 0 and 1 exchange
once for all of them. ZeRO 2 keeps only shards of gradients, so it reduces after each. ZeRO 3
gathers the weights of its stage for each pass; torch keeps what a backward gathers for the next
forward, and whole gradients, which it reduces once. With R bytes per reduced and W per gathered
parameter, n copies and m microbatches, a GPU moves, times (n - 1)/n: 2 R, R + W, m R + W, and
R + (m + 1) W.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from simulator.described.job import Job
from simulator.results.simulation import run_step
from simulator.results.step import StepResult
from simulator.results.traffic import class_traffic

STAGES = (0, 1, 2, 3)


@dataclass(frozen=True)
class ZeroRun:
    """One stage of ZeRO with so many microbatches.

    Attributes:
        zero: The stage.
        microbatches: Per step and rank.
        step: The simulated step.
        moved_bytes: Data-parallel traffic through the links of the busiest GPU, one
            direction [B].
    """

    zero: int
    microbatches: int
    step: StepResult
    moved_bytes: float

    @property
    def peak_bytes(self) -> float:
        """Device memory of the fullest GPU [B]."""
        return self.step.peak_device_bytes


def zero_runs(job: Job, microbatches: Sequence[int]) -> tuple[ZeroRun, ...]:
    """Every stage of ZeRO with every number of microbatches, stage by stage.

    Args:
        job: A pipeline whose stack shards inside pipelines.
        microbatches: Per step and rank.

    Raises:
        InputError: The stack does not run a stage of ZeRO in a pipeline, or the schedule not
            so few microbatches.
    """
    return tuple(_run(job, zero, count) for zero in STAGES for count in microbatches)


def _run(job: Job, zero: int, microbatches: int) -> ZeroRun:
    sequences = microbatches * job.batch.micro_batch * job.dp
    step = run_step(job.replace({"plan.zero": zero, "batch.global": sequences}))
    moved = (
        math.fsum(
            total.port_bytes.get(port, 0.0)
            for total in traffic.totals
            if total.axis.startswith("dp")
            for port in ("scale_up", "fabric")
        )
        for traffic in class_traffic(step.timeline.program)
    )
    return ZeroRun(zero, microbatches, step, max(moved))
