"""What is captured of a job that plain torch code trains, and what does torch's tracker count?

The code is that of ``clustersim validate torch``: a small model, parallelised by torch's own
means. Experts get equally many tokens each, as the simulator takes them to. Every rank runs in a
process of its own.
"""

from __future__ import annotations

import multiprocessing
import warnings
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from reports.make.captures.cases import Case
from simulator.capture.make import device_values, merged, pipeline_of
from simulator.capture.recording.settle import MOST_STEPS
from simulator.capture.table import Capture
from simulator.described.job import Job


@dataclass(frozen=True)
class CapturedCase:
    """A case, captured.

    Attributes:
        job: As torch runs it.
        capture: One step of each stage.
        tracked_bytes: Peak that ``MemTracker`` counts over the same step, by rank [B]; empty where
            it cannot follow: microbatches of a pipeline that are under way together.
    """

    job: Job
    capture: Capture
    tracked_bytes: Mapping[int, int]


def captured_case(case: Case) -> CapturedCase:
    """The case, captured rank by rank."""
    with TemporaryDirectory() as folder:
        parts = [_in_a_process(case, 0, Path(folder))]
        others = pipeline_of(parts[0].capture)
        parts += [_in_a_process(case, rank, Path(folder)) for rank in others]
    job = parts[0].job
    merge = merged([part.capture for part in parts], case.name, job.cluster.profile.name)
    tracked = {rank: num_bytes for part in parts for rank, num_bytes in part.tracked_bytes.items()}
    return CapturedCase(job, merge, tracked)


def _in_a_process(case: Case, rank: int, mailbox: Path) -> CapturedCase:
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as process:
        return process.submit(captured_rank, case, rank, mailbox).result()


def captured_rank(case: Case, rank: int, mailbox: Path) -> CapturedCase:
    """One rank of a case, captured in this process.

    Args:
        case: What is trained.
        rank: Which rank to be.
        mailbox: Folder that the ranks of a pipeline share.
    """
    warnings.filterwarnings("ignore")
    jobs: list[Job] = []

    def train() -> None:
        trainer = _trainer(case, rank)
        jobs.append(trainer.job)
        for _ in range(MOST_STEPS):
            trainer.step()

    capture = _captured(train, case, rank, mailbox)
    job = jobs[0]
    if job.plan.pp > 1:
        return CapturedCase(job, capture, {})
    peaks: list[int] = []

    def train_tracked() -> None:
        trainer = _trainer(case, rank)
        with _tracker(trainer) as peak_bytes:
            peaks.extend(peak_bytes() for _ in range(MOST_STEPS))

    _captured(train_tracked, case, rank, mailbox)
    return CapturedCase(job, capture, {rank: peaks[-1]})


def _captured(run: Callable[[], None], case: Case, rank: int, mailbox: Path) -> Capture:
    from simulator.capture.recording.one_rank import captured, device_answers

    job = case.job()
    answers = device_answers(device_values(job.cluster.profile))
    return captured(run, rank, job.cluster.gpus, answers, mailbox).as_capture(job.cluster.gpus)


def _trainer(case: Case, rank: int) -> Any:
    import torch
    import torch.distributed as dist

    from simulator.ranks.world import World
    from simulator.validate.torch_run.reference_model import RoutedExperts
    from simulator.validate.torch_run.supported_plan import as_torch_runs_it, check_strategies
    from simulator.validate.torch_run.train import build_trainer

    dist.init_process_group("nccl")
    job = case.job()
    world = World(rank, job.cluster.gpus, "nccl", torch.device("cuda", 0))
    check_strategies(job, world)
    trainer = build_trainer(as_torch_runs_it(job, world).job, world)
    for part in trainer.parts:
        for module in part.modules():
            if isinstance(module, RoutedExperts):
                module.is_even = True
    return trainer


@contextmanager
def _tracker(trainer: Any) -> Iterator[Callable[[], int]]:
    """Gives a function that runs a step and returns the peak that torch counts [B].

    What DTensor computes to plan shardings is no part of a step; the tracker leaves it out where it
    runs under fake tensors of its own. What it knows of modules is for one forward alone.
    """
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed._tools.mem_tracker import MemTracker
    from torch.distributed.tensor._sharding_prop import ShardingPropagator

    from simulator.capture.recording.absent_streams import replaced

    tracker, plan = MemTracker(), ShardingPropagator._propagate_tensor_meta_non_cached
    tracker.track_external(*trainer.parts, trainer.optimizer)

    def planned(*args: Any, **kwargs: Any) -> Any:
        with FakeTensorMode():
            return plan(*args, **kwargs)

    def peak_bytes() -> int:
        with tracker:
            trainer.step()
        found = tracker.get_tracker_snapshot("peak")[torch.device("cuda", 0)]["Total"]
        tracker.reset_mod_stats()
        return int(found)

    def forward(module: Any, *args: Any, **kwargs: Any) -> Any:
        if module is trainer.parts[0]:
            tracker.reset_mod_stats()
        return run(module, *args, **kwargs)

    run = torch.nn.Module.__call__
    places = {
        (ShardingPropagator, "_propagate_tensor_meta_non_cached"): planned,
        (torch.nn.Module, "__call__"): forward,
    }
    with replaced(places):
        yield peak_bytes
