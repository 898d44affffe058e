"""How long does a real step take on every rank, and what does it hold?

Warm-up steps first: DDP lays out its buckets anew after its first step, allocators and
caches fill. Then timed steps, each from a barrier to the end of the slowest rank. One
more step runs under torch's profiler for the picture (and, on a CPU, for the memory); its
time is not counted, because a profiler costs time.
"""

from __future__ import annotations

import datetime
import math
import os
import platform
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from simulator.described.job import Job
from simulator.processor import core_count, processor_name
from simulator.ranks.world import World, joined
from simulator.validate.torch_run.recorded_trace import Span, profiled_step
from simulator.validate.torch_run.run_comparison import Measured, RankMeasured
from simulator.validate.torch_run.train import Trainer, build_trainer

WARM_UP_STEPS = 3
"""DDP's buckets take two steps to settle."""


def measure(
    job: Job,
    world: World,
    steps: int,
    *,
    layer_sleep_s: float | None = None,
    trace: Path | None = None,
    on_step: Callable[[], None] = lambda: None,
) -> Measured | None:
    """Train the job for some steps; rank 0 gets the numbers of all, the others None.

    Args:
        job: As torch runs it.
        world: This rank among all.
        steps: Steps to time.
        layer_sleep_s: How long each layer sleeps in forward instead of computing [s].
        trace: Where rank 0 leaves its profile of one more step; None is nowhere.
        on_step: Called after each timed step.
    """
    with joined(world):
        trainer = build_trainer(job, world, layer_sleep_s)
        for _ in range(WARM_UP_STEPS):
            trainer.step()
        if world.is_gpu:
            torch.cuda.reset_peak_memory_stats()
        step_s: list[float] = []
        phases: list[dict[str, float]] = []
        for _ in range(steps):
            seconds, spans = _timed_step(trainer)
            step_s.append(_slowest(seconds, world))
            phases.append(_phase_sums(spans))
            on_step()
        memory = _gpu_memory(trainer) if world.is_gpu else {}
        traced = profiled_step(trainer, trace if world.rank == 0 else None)
        kept = kept_bytes(trainer)
        if traced.peak_extra_bytes is not None:
            memory["peak_allocated"] = math.fsum(kept.values()) + traced.peak_extra_bytes
        names = sorted({name for each in phases for name in each})
        own = RankMeasured(
            world.rank,
            trainer.grid.stage,
            {name: statistics.median(each.get(name, 0.0) for each in phases) for name in names},
            {**memory, **kept},
            traced.spans,
        )
        ranks, loads = _gathered(own, world), _expert_loads(trainer)
        if ranks is None:
            return None
        return Measured(step_s, ranks, environment(world), loads, layer_sleep_s)


def environment(world: World) -> dict[str, str]:
    """What a measurement rests on."""
    device = (
        torch.cuda.get_device_name(world.device)
        if world.is_gpu
        else f"{processor_name()}, {_threads(torch.get_num_threads())} of {core_count()} cores"
    )
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "device": device,
        "backend": world.backend,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "kernel": platform.release(),
        "load": f"{os.getloadavg()[0]:.1f}",
    }


def _threads(count: int) -> str:
    return "1 thread" if count == 1 else f"{count} threads"


def _timed_step(trainer: Trainer) -> tuple[float, list[Span]]:
    if trainer.world.backend != "fake":
        dist.barrier()
    if trainer.world.is_gpu:
        torch.cuda.synchronize()
    trainer.clock.begin()
    trainer.step()
    return trainer.clock.end()


def _slowest(seconds: float, world: World) -> float:
    if world.backend == "fake" or world.ranks == 1:
        return seconds
    longest = torch.tensor(seconds, dtype=torch.float64, device=world.device)
    dist.all_reduce(longest, dist.ReduceOp.MAX)
    return float(longest)


def _phase_sums(spans: Sequence[Span]) -> dict[str, float]:
    sums: dict[str, float] = {}
    for span in spans:
        sums[span.phase] = sums.get(span.phase, 0.0) + span.end_s - span.start_s
    return sums


def _expert_loads(trainer: Trainer) -> list[float]:
    rows = trainer.expert_rows
    if rows is None or trainer.world.backend == "fake":
        return []
    dist.all_reduce(rows)
    return [float(count) for count in rows]


def _gathered(own: RankMeasured, world: World) -> list[RankMeasured] | None:
    if world.backend == "fake" or world.ranks == 1:
        return [own]
    gathered: list[Any] | None = [None] * world.ranks if world.rank == 0 else None
    dist.gather_object(own, gathered)
    return gathered


def _gpu_memory(trainer: Trainer) -> dict[str, float]:
    device = trainer.world.device
    return {
        "peak_allocated": float(torch.cuda.max_memory_allocated(device)),
        "peak_reserved": float(torch.cuda.max_memory_reserved(device)),
    }


def kept_bytes(trainer: Trainer) -> dict[str, float]:
    """What lives from step to step on this rank's device, by owner [B]."""
    place = trainer.world.device.type
    optimizer = getattr(trainer.optimizer, "optim", trainer.optimizer)
    states = [
        value
        for state in optimizer.state.values()
        for value in state.values()
        if isinstance(value, Tensor) and value.dim() > 0
    ]
    buckets = [
        parameter
        for part in trainer.parts
        if isinstance(part, DistributedDataParallel)
        for name, parameter in part.module.named_parameters()
        if name not in part.parameters_to_ignore
    ]
    return {
        "weights": _bytes_on(place, trainer.parameters),
        "optimizer_states": _bytes_on(place, states),
        "communication": _bytes_on(place, buckets),
    }


def _bytes_on(place: str, tensors: Sequence[Tensor]) -> float:
    """What the tensors hold in device memory, or of what is offloaded in none [B]."""
    parts = (each.to_local() if hasattr(each, "to_local") else each for each in tensors)
    return float(sum(each.nbytes for each in parts if each.device.type == place))
