"""Which ranks run a job for real, on which device, and over which library?"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from simulator.errors import InputError

Backend = Literal["nccl", "gloo", "fake"]
AskedBackend = Literal["auto", "nccl", "gloo", "fake"]

FP8_CAPABILITY = (8, 9)
"""Compute capability from which matrix units multiply in fp8: Ada."""


@dataclass(frozen=True, slots=True)
class World:
    """One rank among all.

    Attributes:
        rank: Its number.
        ranks: How many there are.
        backend: What carries their messages; ``fake`` carries none, so that one rank runs
            as if the others were there.
        device: Where it computes.
    """

    rank: int
    ranks: int
    backend: Backend
    device: torch.device

    @property
    def is_gpu(self) -> bool:
        """Whether it computes on a GPU."""
        return self.device.type == "cuda"


def launched_ranks() -> int | None:
    """How many ranks torchrun started; None in a process that it did not start."""
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        return None
    return int(os.environ["WORLD_SIZE"])


def check_world_size(gpus: int, launched: int | None) -> None:
    """Refuses a world that is not the job's.

    Raises:
        InputError: torchrun started another number of ranks than the job has GPUs.
    """
    if launched is not None and launched != gpus:
        raise InputError.single(
            "cluster.gpus",
            f"must equal the {launched} ranks that torchrun started",
            gpus,
            f"start {gpus} (torchrun --nproc-per-node), or set cluster.gpus={launched}",
        )


def chosen_backend(asked: AskedBackend, gpus: int, launched: int | None) -> Backend:
    """The library to use, NCCL where every rank can have a GPU.

    Args:
        asked: What the user wants; ``auto`` takes the fastest that is there.
        gpus: Ranks of the job.
        launched: Ranks that torchrun started, if it did.

    Raises:
        InputError: What was asked for is not there, or has too few GPUs.
    """
    local = torch.cuda.device_count() if torch.cuda.is_available() else 0
    needed = gpus if launched is None else int(os.environ.get("LOCAL_WORLD_SIZE", launched))
    if asked == "auto":
        return "nccl" if local >= needed and dist.is_nccl_available() else "gloo"
    if asked == "nccl":
        if not dist.is_nccl_available():
            rule = f"torch {torch.__version__} is built without NCCL"
            hint = "install a CUDA build of torch, or use --backend gloo"
            raise InputError.single("--backend", rule, asked, hint)
        if local < needed:
            rule = f"needs one GPU per rank: {needed} here, but torch finds {local}"
            hint = (
                "use --backend gloo on CPUs, --backend fake for one rank of many, "
                "or start on more nodes with torchrun"
            )
            raise InputError.single("--backend", rule, asked, hint)
    if asked == "gloo" and not dist.is_gloo_available():
        raise InputError.single("--backend", "torch is built without gloo", asked)
    return asked


def own_world(backend: Backend, ranks: int, rank: int) -> World:
    """This process's place among all."""
    if backend == "gloo" or not torch.cuda.is_available():
        return World(rank, ranks, backend, torch.device("cpu"))
    local = 0 if backend == "fake" else int(os.environ.get("LOCAL_RANK", rank))
    return World(rank, ranks, backend, torch.device("cuda", local))


@contextlib.contextmanager
def joined(world: World) -> Iterator[None]:
    """Be that rank: the process group is there inside."""
    if world.is_gpu:
        torch.cuda.set_device(world.device)
    if world.backend == "fake":
        from torch.testing._internal.distributed.fake_pg import FakeStore

        dist.init_process_group("fake", store=FakeStore(), rank=world.rank, world_size=world.ranks)
    elif "MASTER_ADDR" in os.environ:
        dist.init_process_group(world.backend, rank=world.rank, world_size=world.ranks)
    else:
        dist.init_process_group(
            world.backend, store=HashStore(), rank=world.rank, world_size=world.ranks
        )
    try:
        yield
    finally:
        dist.destroy_process_group()
