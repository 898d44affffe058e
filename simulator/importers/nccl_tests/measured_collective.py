"""What does one measured collective say, whichever file it was read from?

Bytes follow nccl-tests: all_reduce and broadcast the buffer, all_gather the total output,
reduce_scatter the total input, all_to_all one rank's whole send buffer. Times are those
out of place, the project's convention, unless a table says otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from simulator.described.cluster.network import FabricKind

SEND_RECV = "send_recv"

KIND_OF_NAME: Mapping[str, str] = MappingProxyType(
    {
        "allreduce": "all_reduce",
        "allgather": "all_gather",
        "reducescatter": "reduce_scatter",
        "alltoall": "all_to_all",
        "bcast": "broadcast",
        "sendrecv": SEND_RECV,
        "sendreceive": SEND_RECV,
        "p2p": SEND_RECV,
        "pointtopoint": SEND_RECV,
    }
)
"""Collectives that tables spell otherwise than we do, small letters only."""


def kind_of(name: str) -> str:
    """The collective of a name such as ``AllReduce``, ``all-reduce`` or ``all_reduce_perf``."""
    plain = re.sub(r"[^a-z0-9]", "", name.lower())
    plain = re.sub(r"^(nccl|rccl)|(perf|test|inplace|outofplace)$", "", plain)
    return KIND_OF_NAME.get(plain, plain or name)


ALGORITHM_OF_NAME: Mapping[str, str] = MappingProxyType(
    {"ring": "ring", "tree": "tree", "nvls": "in_switch", "nvlstree": "in_switch"}
)
"""Key of our algorithms by NCCL's name in lower case."""


def algorithm_of(name: str) -> str:
    """Our algorithm of a cell such as ``NVLSTree``, ``NCCL_ALGO=Ring`` or ``Ring/Simple``.

    Empty where it names none of ours, or several of which the library chose.
    """
    words = re.findall(r"[a-z]+", re.sub(r"nvls[_ -]tree", "nvlstree", name.lower()))
    named = {ALGORITHM_OF_NAME[word] for word in words if word in ALGORITHM_OF_NAME}
    return named.pop() if len(named) == 1 else ""


@dataclass(frozen=True, slots=True)
class CollectiveRow:
    """One measured collective.

    Attributes:
        id: Name of the row.
        gpu: GPU as the table spells it.
        kind: Collective as ``CollectiveKind`` spells it, or ``send_recv``.
        num_bytes: Message size as nccl-tests counts it [B].
        ranks: GPUs that take part.
        nodes: Hosts they are in.
        gpus_per_node: GPUs per host that take part.
        nics_per_node: NICs of a host; None where unstated.
        nic_bytes_per_s: Line rate of a NIC, one way; None where unstated [B/s].
        fabric: Kind of network between nodes; None where unstated.
        algorithm: The only algorithm allowed, a key of ``ALGORITHMS``; empty if any.
        one_process: One process on one host launches on all GPUs in turn.
        calls: Library calls per GPU: a group call is one per send and receive.
        links: What joins the GPUs of a node, as the table spells it.
        seconds: Measured time [s].
        source: Who measured, where a table of many sources says so.
        by_channel: The library queues each channel by itself.
        says_start: Whether one process or several launched is known.
        one_call: Each call is timed by itself, from the host's launch on.
    """

    id: str
    gpu: str
    kind: str
    num_bytes: float
    ranks: int
    nodes: int
    gpus_per_node: int
    nics_per_node: int | None
    nic_bytes_per_s: float | None
    fabric: FabricKind | None
    algorithm: str
    one_process: bool
    calls: int
    links: str
    seconds: float
    source: str = ""
    by_channel: bool = False
    says_start: bool = True
    one_call: bool = False


def calls_per_gpu(kind: str, ranks: int, library: str) -> int:
    """Library calls per GPU: NCCL's all-to-all is a group of sends and receives.

    Args:
        kind: Collective as we spell it.
        ranks: GPUs that take part.
        library: Name and version of the library; RCCL has an all-to-all of its own.
    """
    return 2 * ranks if kind == "all_to_all" and "RCCL" not in library else 1


def bus_share(kind: str, ranks: int) -> float | None:
    """Bus bandwidth over the rate of the message size, as nccl-tests defines both.

    Multiplied by bytes over seconds it is what a ring moves through one port. None for
    collectives that nccl-tests does not have.

    Source: nccl-tests doc/PERFORMANCE.md.
    """
    if kind == "all_reduce":
        return 2 * (ranks - 1) / ranks
    if kind in ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"):
        return (ranks - 1) / ranks
    return 1.0 if kind in ("broadcast", "reduce", SEND_RECV) else None
