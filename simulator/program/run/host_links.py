"""What do copies between GPU, host memory and NVMe, and the work of CPUs, become in a program?

Copies in the two directions, reads, writes and the CPUs are streams of their own; what they
share of a node is in :mod:`simulator.cost.host`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from simulator.cost.host import (
    HOST_MEMORY,
    NVME_READ,
    NVME_WRITE,
    TO_DEVICE,
    TO_HOST,
    copy_s,
    host_update_s,
)
from simulator.described.job import Job
from simulator.program.ir import (
    Category,
    Kind,
    Memory,
    Operation,
    Part,
    Program,
    Stream,
    Traffic,
    Work,
)

_LINKS: Mapping[str, tuple[Kind, Stream]] = MappingProxyType(
    {
        TO_HOST: (Kind.COPY_TO_HOST, Stream.TO_HOST),
        TO_DEVICE: (Kind.COPY_TO_DEVICE, Stream.TO_DEVICE),
        NVME_READ: (Kind.NVME_READ, Stream.NVME_READ),
        NVME_WRITE: (Kind.NVME_WRITE, Stream.NVME_WRITE),
    }
)
"""What a copy over each link is, and the stream that it runs on."""


class HostLinks:
    """Appends copies and the work of CPUs to a program; equal ones share their cost."""

    def __init__(self, job: Job, program: Program) -> None:
        self._cluster = job.cluster
        self._program = program
        self._works: dict[tuple[str, float], Work] = {}

    def copy(
        self,
        rank: int,
        link: str,
        num_bytes: float,
        after: Sequence[int] = (),
        *,
        layers: tuple[int, int] = (-1, -1),
        takes: Memory = (),
        gives: Memory = (),
    ) -> int:
        """A copy over one of the links of :mod:`simulator.cost.host`; its id."""
        kind, stream = _LINKS[link]
        if (link, num_bytes) not in self._works:
            seconds = copy_s(self._cluster, link, num_bytes)
            latency_s = self._cluster.profile.kernels.launch_s
            traffic = Traffic(dict.fromkeys((link, HOST_MEMORY), num_bytes), latency_s)
            part = Part(link, Category.OFFLOAD, seconds)
            work = Work(seconds, (part,), num_bytes=num_bytes, traffic=traffic)
            self._works[link, num_bytes] = work
        operation = Operation(
            kind, ((rank, stream),), self._works[link, num_bytes], Category.OFFLOAD, tuple(after),
            layers=layers, takes=takes, gives=gives,
        )  # fmt: skip
        return self._program.add(operation)

    def compute(self, rank: int, name: str, num_bytes: float, after: Sequence[int]) -> int:
        """Work of a rank's CPU cores that passes over so much memory; its id."""
        if (name, num_bytes) not in self._works:
            seconds = host_update_s(self._cluster, num_bytes)
            part = Part(name, Category.OPTIMIZER, seconds)
            traffic = Traffic({HOST_MEMORY: num_bytes})
            work = Work(seconds, (part,), num_bytes=num_bytes, traffic=traffic)
            self._works[name, num_bytes] = work
        lanes, work = ((rank, Stream.HOST),), self._works[name, num_bytes]
        operation = Operation(Kind.OPTIMIZER, lanes, work, Category.OPTIMIZER, tuple(after))
        return self._program.add(operation)
