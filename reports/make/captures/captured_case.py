"""What is captured of a job that plain torch code trains, and what does torch's tracker count?

The code is that of ``clustersim validate torch``: a small model, parallelised by torch's own
means. Experts get equally many tokens each, as the simulator takes them to. Every rank runs in a
process of its own.
"""

from __future__ import annotations

import multiprocessing
import warnings
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from reports.make.captures.cases import Case
from simulator.capture.make import device_values, merged, pipeline_of
from simulator.capture.recording.settle import KEPT_STEP
from simulator.capture.table import Capture
from simulator.described.job import Job


@dataclass(frozen=True)
class CapturedCase:
    """A case, captured.

    Attributes:
        job: As torch runs it.
        capture: One step of each stage.
        tracked_bytes: Peak that ``MemTracker`` counts over the same step, by rank [B].
    """

    job: Job
    capture: Capture
    tracked_bytes: dict[int, int]


def captured_case(case: Case) -> CapturedCase:
    """The case, captured rank by rank."""
    with TemporaryDirectory() as folder:
        first, first_bytes, job = _captured(case, 0, Path(folder))
        tracked, parts = {0: first_bytes}, [first]
        for rank in pipeline_of(first):
            part, tracked[rank], _ = _captured(case, rank, Path(folder))
            parts.append(part)
    return CapturedCase(job, merged(parts, case.name, job.cluster.profile.name), tracked)


def _captured(case: Case, rank: int, mailbox: Path) -> tuple[Capture, int, Job]:
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as process:
        return process.submit(captured_rank, case, rank, mailbox).result()


def captured_rank(case: Case, rank: int, mailbox: Path) -> tuple[Capture, int, Job]:
    """One rank of a case: its capture, its peak by torch's tracker [B], the job as torch runs it.

    Args:
        case: What is trained.
        rank: Which rank to be.
        mailbox: Folder that the ranks of a pipeline share.
    """
    from simulator.capture.recording.one_rank import captured, device_answers

    warnings.filterwarnings("ignore")
    peaks: list[int] = []
    jobs: list[Job] = []

    def train() -> None:
        trainer = _trainer(case, rank)
        jobs.append(trainer.job)
        with _tracker(trainer) as peak_bytes:
            for _ in range(KEPT_STEP + 2):
                peaks.append(peak_bytes(trainer.step))

    job = case.job()
    answers = device_answers(device_values(job.cluster.profile))
    found = captured(train, rank, job.cluster.gpus, answers, mailbox)
    return found.as_capture(job.cluster.gpus), peaks[KEPT_STEP], jobs[0]


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
def _tracker(trainer: Any) -> Iterator[Any]:
    """Gives a function that runs a step and returns the peak that torch counts [B]."""
    import torch
    from torch.distributed._tools.mem_tracker import MemTracker

    tracker = MemTracker()
    tracker.track_external(*trainer.parts, trainer.optimizer)

    def peak_bytes(step: Any) -> int:
        with tracker:
            step()
        found = tracker.get_tracker_snapshot("peak")[torch.device("cuda", 0)]["Total"]
        tracker.reset_mod_stats()
        return int(found)

    yield peak_bytes
