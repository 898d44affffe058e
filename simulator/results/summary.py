"""How does a timeline become the numbers that people ask for?

Where ranks do not meet at the end of a step, the next one starts while the last one drains,
so a step has no end of its own. Several are run, and the one between two updates of the
first rank, in a full pipeline, stands for all: its length is the time per step.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from simulator.cost.kernel_time import peak_flop_per_s
from simulator.described.job import Job
from simulator.engine.timeline import Timeline
from simulator.program.build import Steps
from simulator.program.ir import COMMUNICATION, Category, Kind, Program, Stream
from simulator.program.layer.model_totals import model_flop_per_token
from simulator.program.price.executed_flop import hardware_flop_per_token
from simulator.program.run.order import asynchrony
from simulator.results.allocator.exchanges import KeptReserves
from simulator.results.fit_probability import job_spread
from simulator.results.host_memory import host_memory
from simulator.results.memory import class_memory
from simulator.results.step import ClassMemory, StepResult
from simulator.results.step_error import step_time_band_s
from simulator.results.waits import class_breakdowns, compute_waits, mean_over_ranks

_ALONE = Steps(0, 0)


def summarise(
    job: Job,
    timeline: Timeline,
    steps: Steps = _ALONE,
    kept: KeptReserves | None = None,
    shorter: Sequence[Program] = (),
) -> StepResult:
    """Everything about one simulated step of a job.

    Where there are several kinds of GPUs, no error is known and no band is given.

    ``steps`` ran around the one of interest; ``kept`` knows memory of jobs like this one, and
    ``shorter`` are its steps with shorter sequences.
    """
    memory = class_memory(timeline, job.cluster.profile.device, kept, shorter)
    if steps.total > 1:
        window = steady_window(timeline, steps)
        timeline = _cut_timeline(timeline, *window)
        memory = tuple(_cut_memory(each, *window) for each in memory)
    step_time_s = timeline.step_time_s
    waits = compute_waits(timeline)
    breakdowns = class_breakdowns(timeline, waits)
    breakdown = mean_over_ranks(timeline, breakdowns)
    exposed = {category: s for category, s in breakdown.items() if category in COMMUNICATION}
    pools = job.cluster.kinds
    return StepResult(
        timeline=timeline,
        step_time_s=step_time_s,
        step_time_band_s=step_time_band_s(job, step_time_s, breakdown),
        **_throughput(job, step_time_s),
        bubble_fraction=breakdown.get(Category.BUBBLE, 0.0) / step_time_s,
        breakdown_s=breakdown,
        exposed_comm_s=exposed,
        class_breakdown_s=breakdowns,
        waits=waits,
        memory=memory,
        capacity_bytes=min(pool.profile.device.memory_bytes for pool in pools),
        memory_spread=job_spread(job),
        title=job.title,
        asynchrony=asynchrony(job, job.choices.schedule),
        host=host_memory(job, timeline.program),
    )


def _throughput(job: Job, step_time_s: float) -> dict[str, float]:
    """What the average GPU gets done, as fields of the result.

    MFU, with and without what a causal mask leaves out, and HFU relate
    :func:`model_flop_per_token` and :func:`hardware_flop_per_token` to
    the dense peak of the format that the plan computes in.
    """
    plan, seq_len, gpus = job.plan, job.batch.seq_len, job.cluster.gpus
    pools = job.cluster.kinds
    peaks = (pool.gpus * peak_flop_per_s(pool.profile, plan.precision) for pool in pools)
    peak = math.fsum(peaks) / gpus
    tokens_per_s_per_gpu = job.batch.tokens / step_time_s / gpus
    model_rate = tokens_per_s_per_gpu * model_flop_per_token(job.model, seq_len)
    return {
        "tokens_per_s_per_gpu": tokens_per_s_per_gpu,
        "model_tflops_per_gpu": model_rate / 1e12,
        "mfu": model_rate / peak,
        "mfu_causal": tokens_per_s_per_gpu
        * model_flop_per_token(job.model, seq_len, masked=False)
        / peak,
        "hfu": tokens_per_s_per_gpu * hardware_flop_per_token(job) / peak,
    }


def steady_window(timeline: Timeline, steps: Steps) -> tuple[float, float]:
    """Start and end of the step between those that surround it [s]."""
    lane = timeline.program.lanes[0, Stream.COMPUTE]
    updates = [i for i in lane if timeline.program.operations[i].kind is Kind.OPTIMIZER]
    per_step = len(updates) // steps.total
    before = steps.before * per_step
    start = timeline.operation_end_s[updates[before - 1]]
    return float(start), float(timeline.operation_end_s[updates[before + per_step - 1]])


def _cut_timeline(timeline: Timeline, start_s: float, end_s: float) -> Timeline:
    """What happens in a window, counted from its start; what reaches out of it is cut off."""
    starts, ends = timeline.operation_start_s, timeline.operation_end_s
    kept = np.flatnonzero((ends > start_s) & (starts < end_s)).tolist()
    place = {index: position for position, index in enumerate(kept)}
    program = timeline.program
    operations = [
        replace(operation, after=tuple(place[i] for i in operation.after if i in place))
        for operation in map(program.operations.__getitem__, kept)
    ]
    lanes = {lane: [place[i] for i in ids if i in place] for lane, ids in program.lanes.items()}
    return Timeline(
        replace(program, operations=operations, lanes=lanes),
        np.clip(starts[kept], start_s, end_s) - start_s,
        np.clip(ends[kept], start_s, end_s) - start_s,
    )


def _cut_memory(memory: ClassMemory, start_s: float, end_s: float) -> ClassMemory:
    """The curves of a window, counted from its start; the peak stays that of the whole run."""
    time_s = memory.time_s
    first = int(np.searchsorted(time_s, start_s, side="right")) - 1
    past = int(np.searchsorted(time_s, end_s, side="right"))
    curves = {owner: curve[first:past] for owner, curve in memory.owner_bytes.items()}
    shown_s = np.maximum(time_s[first:past] - start_s, 0.0)
    total = sum(curves.values(), np.zeros(len(shown_s)))
    return replace(
        memory,
        time_s=shown_s,
        owner_bytes=curves,
        peak_time_s=float(shown_s[int(np.argmax(total))]),
    )
