"""How do torch's pipeline schedules run the stages of one rank?"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import (
    PipelineScheduleMulti,
    PipelineScheduleSingle,
    get_schedule_class,
)

from simulator.described.job import Job
from simulator.errors import UnsupportedError
from simulator.program.grid.stage_layers import Slice, stage_slices
from simulator.ranks.world import World
from simulator.validate.torch_run.rank_grid import Grid
from simulator.validate.torch_run.recorded_trace import Phase, PhaseClock
from simulator.validate.torch_run.supported_plan import DTYPES, SCHEDULES

Schedule = PipelineScheduleSingle | PipelineScheduleMulti

_PASSES: Mapping[str, Phase] = {
    "forward_one_chunk": "forward",
    "backward_one_chunk": "backward",
    "backward_weight_one_chunk": "backward",
}
"""Methods of a stage that compute, and the phase that each belongs to."""


def schedule_name(job: Job) -> str:
    """Our name of the job's schedule, its default filled in."""
    return job.choices.schedule.name


def stages_of_rank(job: Job, stage: int) -> list[int]:
    """Virtual stages of a pipeline rank, in order of the model."""
    placement, pp = job.choices.schedule.placement, job.plan.pp
    return [v for v in range(pp * job.plan.vpp) if placement.rank(v, pp) == stage]


def slices_of_rank(job: Job, stage: int) -> list[Slice]:
    """Layers of each virtual stage of a pipeline rank."""
    slices = stage_slices(job, job.plan.pp * job.plan.vpp)
    return [slices[v] for v in stages_of_rank(job, stage)]


def build_schedule(
    job: Job,
    grid: Grid,
    world: World,
    parts: Sequence[nn.Module],
    loss: Callable[[Tensor, Tensor], Tensor],
    clock: PhaseClock,
) -> Schedule:
    """Torch's schedule over the stages of this rank, whose phases the clock marks.

    Raises:
        UnsupportedError: Torch refuses these sizes.
    """
    numbers = stages_of_rank(job, grid.stage)
    stages = [
        _timed(_stage(job, grid, world, part, number), chunk, clock)
        for chunk, (number, part) in enumerate(zip(numbers, parts, strict=True))
    ]
    build = get_schedule_class(SCHEDULES[schedule_name(job)])
    is_single = issubclass(build, PipelineScheduleSingle)
    try:
        schedule: Schedule = build(
            stages[0] if is_single else stages, job.microbatches, loss_fn=loss
        )
    except ValueError as error:
        rule = f"torch's {build.__name__} refuses: {error}"
        raise UnsupportedError.single("plan.schedule", rule, schedule_name(job)) from error
    if world.backend == "fake":
        _take_shapes_as_given(schedule)
    return schedule


def _stage(job: Job, grid: Grid, world: World, part: nn.Module, number: int) -> PipelineStage:
    count = job.plan.pp * job.plan.vpp
    shapes = _shapes(job, number, count) if world.backend == "fake" else {}
    return PipelineStage(part, number, count, world.device, group=grid.pipeline_group, **shapes)


def _shapes(job: Job, number: int, count: int) -> dict[str, Any]:
    micro, length = job.batch.micro_batch, job.batch.seq_len // job.plan.cp
    cut = length // job.choices.tensor_ranks if job.plan.cuts_sequence else length
    dtype = DTYPES[job.plan.precision]

    def tensor(*shape: int) -> Tensor:
        return torch.empty(shape, dtype=dtype, device="meta", requires_grad=True)

    tokens = torch.empty((micro, length), dtype=torch.long, device="meta")
    hidden = tensor(micro, cut, job.model.hidden)
    return {
        "input_args": tokens if number == 0 else hidden,
        "output_args": tensor(micro, length, job.model.vocab) if number == count - 1 else hidden,
    }


def _timed(stage: PipelineStage, chunk: int, clock: PhaseClock) -> PipelineStage:
    for method, phase in _PASSES.items():
        setattr(stage, method, _marked(getattr(stage, method), phase, chunk, clock))
    return stage


def _marked(run: Callable[..., Any], phase: Phase, chunk: int, clock: PhaseClock) -> Any:
    @wraps(run)
    def marked(microbatch: int, *args: Any, **options: Any) -> Any:
        with clock.phase(phase, microbatch, chunk):
            return run(microbatch, *args, **options)

    return marked


def _take_shapes_as_given(schedule: Any) -> None:
    """Keeps torch from asking other ranks for the shapes, as it does from 2.13 on."""
    if not hasattr(schedule, "_warmup_p2p"):
        return
    from torch.distributed.pipelining._utils import InferenceMode

    def warm_up(stages: Sequence[Any], *_: object) -> None:
        for stage in stages:
            stage._inference_mode = InferenceMode.STATIC

    schedule._warmup_p2p = warm_up
