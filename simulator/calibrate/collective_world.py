"""Which ranks take part in measuring, where do they stand, and what joins them?"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.distributed as dist

from simulator.calibrate.device_facts import device_facts
from simulator.errors import InputError

BACKENDS = ("nccl", "gloo")

_LAUNCH = "start it with torchrun --nproc-per-node N --no-python clustersim calibrate collectives"


@dataclass(frozen=True, slots=True)
class World:
    """The processes that torchrun started.

    Attributes:
        rank: This process.
        ranks: All processes.
        ranks_per_node: Those that share a computer; the first of them have the lowest ranks.
        backend: Library of the collectives, as torch spells it.
        device: Where this rank's buffers lie.
        gpu: What the ranks run on, as tables spell it.
        library: Name and version of the library.
        date: Day, ISO 8601.
    """

    rank: int
    ranks: int
    ranks_per_node: int
    backend: str
    device: torch.device
    gpu: str
    library: str
    date: str

    @property
    def groups(self) -> list[int]:
        """Ranks of the groups that are measured, counted from the first.

        Powers of two inside one node, then the node, then powers of two of whole nodes,
        then all: which links part of a node would use is not known.
        """
        inside = [2**p for p in range(1, 16) if 2**p < self.ranks_per_node]
        nodes = self.ranks // self.ranks_per_node
        across = [2**p * self.ranks_per_node for p in range(16) if 2**p < nodes]
        return [size for size in dict.fromkeys([*inside, *across, self.ranks]) if size > 1]

    def nodes_of(self, ranks: int) -> int:
        """Computers that a group stands on."""
        return -(-ranks // self.ranks_per_node)


def join_world(backend: str | None, environment: Mapping[str, str] = os.environ) -> World:
    """Meet the other ranks; call :func:`leave_world` at the end.

    Args:
        backend: ``nccl`` or ``gloo``; by default nccl where there are GPUs.
        environment: What torchrun set.

    Raises:
        InputError: There are no other ranks, or the backend cannot be had.
    """
    rank, ranks, local_rank, local_ranks = _numbers(environment)
    chosen = _backend(backend, local_ranks)
    facts = device_facts(f"cuda:{local_rank}" if chosen == "nccl" else "cpu")
    dist.init_process_group(chosen, rank=rank, world_size=ranks)
    return World(
        rank, ranks, local_ranks, chosen, facts.device, facts.name, _library(chosen), facts.date
    )


def leave_world() -> None:
    """End all communication of this process."""
    dist.destroy_process_group()


def _numbers(environment: Mapping[str, str]) -> tuple[int, int, int, int]:
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    missing = [name for name in names if not environment.get(name, "").isdecimal()]
    if missing:
        rule = f"needs the ranks that torchrun starts; {', '.join(missing)} is not set"
        raise InputError.single("--measure", rule, hint=_LAUNCH)
    rank, ranks, local_rank, local_ranks = (int(environment[name]) for name in names)
    if ranks < 2:
        raise InputError.single("--measure", "one rank has nobody to talk to", hint=_LAUNCH)
    if ranks % local_ranks:
        rule = f"needs as many ranks on every computer; {local_ranks} do not divide {ranks}"
        raise InputError.single("--measure", rule, hint=_LAUNCH)
    return rank, ranks, local_rank, local_ranks


def _backend(wanted: str | None, local_ranks: int) -> str:
    if wanted is not None and wanted not in BACKENDS:
        raise InputError.single("--backend", f"must be {' or '.join(BACKENDS)}", wanted)
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if wanted == "gloo" or (wanted is None and not gpus):
        return "gloo"
    if not gpus or not dist.is_nccl_available():
        what = "finds no GPU" if not gpus else "was built without NCCL"
        rule = f"needs NCCL and GPUs, and torch {torch.__version__} {what}"
        raise InputError.single("--backend", rule, "nccl", "measure with --backend gloo")
    if local_ranks > gpus:
        rule = f"needs a GPU of its own for each of {local_ranks} ranks, and there are {gpus}"
        hint = f"torchrun --nproc-per-node {gpus}"
        raise InputError.single("--backend", rule, "nccl", hint)
    return "nccl"


def _library(backend: str) -> str:
    if backend == "gloo":
        return f"gloo of torch {torch.__version__}"
    version = ".".join(str(part) for part in torch.cuda.nccl.version())  # type: ignore[no-untyped-call]
    return f"{'RCCL' if torch.version.hip else 'NCCL'} {version}"
