"""How does a timeline become the numbers that people ask for?"""

from __future__ import annotations

from typing import NamedTuple

from simulator.cost.flop import hardware_flop_per_token, model_flop_per_token
from simulator.cost.kernel_time import peak_flop_per_s
from simulator.described.cluster.hardware import ErrorBand
from simulator.described.job import Job
from simulator.engine.timeline import Timeline
from simulator.program.build import Steps
from simulator.program.grid.stage_layers import recomputed_layers
from simulator.program.ir import COMMUNICATION, Category
from simulator.program.run.order import asynchrony, job_schedule
from simulator.results.host_memory import host_memory
from simulator.results.memory.owners import class_memory
from simulator.results.steady import cut_memory, cut_timeline, steady_window
from simulator.results.step import StepResult
from simulator.results.waits import class_breakdowns, compute_waits, mean_over_ranks

_ALONE = Steps(0, 0)


def summarise(job: Job, timeline: Timeline, steps: Steps = _ALONE) -> StepResult:
    """Everything about one simulated step of a job.

    Where there are several kinds of GPUs, no error is known and no band is given.

    Args:
        job: What was simulated.
        timeline: When everything ran.
        steps: The steps that ran around the one of interest.
    """
    memory = class_memory(timeline, job.cluster.profile.device)
    if steps.total > 1:
        window = steady_window(timeline, steps)
        timeline = cut_timeline(timeline, *window)
        memory = tuple(cut_memory(each, *window) for each in memory)
    step_time_s = timeline.step_time_s
    waits = compute_waits(timeline)
    breakdowns = class_breakdowns(timeline, waits)
    breakdown = mean_over_ranks(timeline, breakdowns)
    exposed = {category: s for category, s in breakdown.items() if category in COMMUNICATION}
    pools = job.cluster.pools or (job.cluster,)
    band = None if len(pools) > 1 else job.cluster.profile.step_time_band
    throughput = _throughput(job, step_time_s)
    return StepResult(
        timeline=timeline,
        step_time_s=step_time_s,
        step_time_band_s=_band_s(step_time_s, band),
        tokens_per_s_per_gpu=throughput.tokens_per_s_per_gpu,
        model_tflops_per_gpu=throughput.model_flop_per_s_per_gpu / 1e12,
        mfu=throughput.mfu,
        hfu=throughput.hfu,
        bubble_fraction=breakdown.get(Category.BUBBLE, 0.0) / step_time_s,
        breakdown_s=breakdown,
        exposed_comm_s=exposed,
        class_breakdown_s=breakdowns,
        waits=waits,
        memory=memory,
        capacity_bytes=min(pool.profile.device.memory_bytes for pool in pools),
        title=job.title,
        asynchrony=asynchrony(job, job_schedule(job)),
        host=host_memory(job, timeline.program),
    )


class _Throughput(NamedTuple):
    """What the average GPU of a job gets done.

    Attributes:
        tokens_per_s_per_gpu: Tokens of the batch.
        model_flop_per_s_per_gpu: What the model needs for them [FLOP/s].
        mfu, hfu: That, and what is executed for them, as shares of the dense peak.
    """

    tokens_per_s_per_gpu: float
    model_flop_per_s_per_gpu: float
    mfu: float
    hfu: float


def _throughput(job: Job, step_time_s: float) -> _Throughput:
    """The throughput of a job whose step takes so long.

    MFU and HFU relate :func:`model_flop_per_token` and :func:`hardware_flop_per_token` to
    the dense peak of the format that the plan computes in, of the average GPU.
    """
    plan, seq_len, gpus = job.plan, job.batch.seq_len, job.cluster.gpus
    pools = job.cluster.pools or (job.cluster,)
    peaks = (pool.gpus * peak_flop_per_s(pool.profile, plan.precision) for pool in pools)
    peak = sum(peaks) / gpus
    tokens_per_s_per_gpu = job.batch.tokens / step_time_s / gpus
    model_rate = tokens_per_s_per_gpu * model_flop_per_token(job.model, seq_len)
    hardware_flop = hardware_flop_per_token(
        job.model,
        seq_len,
        plan.recompute,
        job.choices.selective_policy,
        modules=plan.recompute_modules,
        stops_early=job.choices.recompute_stops_early,
        repeated_share=len(recomputed_layers(job)) / job.model.layers,
    )
    hfu = tokens_per_s_per_gpu * hardware_flop / peak
    return _Throughput(tokens_per_s_per_gpu, model_rate, model_rate / peak, hfu)


def _band_s(step_time_s: float, band: ErrorBand | None) -> tuple[float, float] | None:
    return (band.fastest * step_time_s, band.slowest * step_time_s) if band else None
