"""Which ranks measure collectives together, and what do tables say of them?"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from simulator.calibrate.gpu.device_facts import device_facts
from simulator.errors import InputError
from simulator.ranks.world import AskedBackend, World, chosen_backend, own_world

_LAUNCH = "start it with torchrun --nproc-per-node N --no-python clustersim calibrate collectives"


@dataclass(frozen=True, slots=True)
class CollectiveWorld(World):
    """One of the processes that torchrun started.

    Attributes:
        ranks_per_node: Those that share a computer; the first of them have the lowest ranks.
        gpu: What the ranks run on, as tables spell it.
        library: Name and version of the library.
        date: Day, ISO 8601.
    """

    ranks_per_node: int
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


def launched_world(
    backend: AskedBackend, environment: Mapping[str, str] = os.environ
) -> CollectiveWorld:
    """This process among those of torchrun; :func:`.ranks.world.joined` lets them talk.

    Args:
        backend: Library of the collectives.
        environment: What torchrun set.

    Raises:
        InputError: There are no other ranks, or the backend cannot be had.
    """
    rank, ranks, local_ranks = _numbers(environment)
    own = own_world(chosen_backend(backend, local_ranks, None), ranks, rank)
    facts = device_facts(str(own.device))
    library = _library(own.backend)
    return CollectiveWorld(
        rank, ranks, own.backend, own.device, local_ranks, facts.name, library, facts.date
    )


def _numbers(environment: Mapping[str, str]) -> tuple[int, int, int]:
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    missing = [name for name in names if not environment.get(name, "").isdecimal()]
    if missing:
        rule = f"needs the ranks that torchrun starts; {', '.join(missing)} is not set"
        raise InputError.single("--measure", rule, hint=_LAUNCH)
    rank, ranks, _, local_ranks = (int(environment[name]) for name in names)
    if ranks < 2:
        raise InputError.single("--measure", "one rank has nobody to talk to", hint=_LAUNCH)
    if ranks % local_ranks:
        rule = f"needs as many ranks on every computer; {local_ranks} do not divide {ranks}"
        raise InputError.single("--measure", rule, hint=_LAUNCH)
    return rank, ranks, local_ranks


def _library(backend: str) -> str:
    if backend == "gloo":
        return f"gloo of torch {torch.__version__}"
    version = ".".join(str(part) for part in torch.cuda.nccl.version())  # type: ignore[no-untyped-call]
    return f"{'RCCL' if torch.version.hip else 'NCCL'} {version}"
