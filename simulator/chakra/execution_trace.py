"""What does the execution trace of one rank say?

Nodes in the order in which the rank issues them, what each waits for, and the ranks of every
process group. Nothing here knows how that lies in a file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from simulator.cost.collectives import CollectiveKind

Scalar = bool | int | float | str


class NodeType(IntEnum):
    """What a node stands for, by Chakra's numbers."""

    METADATA = 1
    MEM_LOAD = 2
    MEM_STORE = 3
    COMP = 4
    COMM_SEND = 5
    COMM_RECV = 6
    COMM_COLL = 7


COMM_TYPES: Mapping[CollectiveKind, int] = {
    CollectiveKind.ALL_REDUCE: 0,
    CollectiveKind.REDUCE: 1,
    CollectiveKind.ALL_GATHER: 2,
    CollectiveKind.BROADCAST: 5,
    CollectiveKind.ALL_TO_ALL: 6,
    CollectiveKind.REDUCE_SCATTER: 7,
}
"""Chakra's number of each collective (``comm_type``)."""
REDUCE_SCATTER_BLOCK, BARRIER = 8, 9

# Attributes that Chakra's tools read.
COMM_TYPE, COMM_SIZE, GROUP = "comm_type", "comm_size", "pg_name"
SOURCE, TARGET, TAG = "comm_src", "comm_dst", "comm_tag"
IS_CPU, NUM_OPS = "is_cpu_op", "num_ops"

# Attributes of our own, which make a replay exact; others' traces do without them.
OPERATION = "clustersim.operation"
"""Neighbouring nodes of one number are one operation, which holds its stream throughout."""
STREAM, KIND, CATEGORY = "clustersim.stream", "clustersim.kind", "clustersim.category"
SECONDS = "clustersim.seconds"
"""Duration where whole microseconds would round it [s]."""
HIDDEN = "clustersim.hidden_seconds"
"""Part of a communication that runs beside computation and so adds nothing [s]."""
NUM_BYTES = "clustersim.num_bytes"
"""Message size as nccl-tests counts it [B]."""
CONTENDS = "clustersim.contends"
"""Whether a communication shares its links and multiprocessors with what runs beside it."""
STEP = "clustersim.step_seconds"
"""Duration of the step that a trace was written from [s]."""


@dataclass(frozen=True, slots=True)
class Node:
    """One thing that a rank does.

    Attributes:
        id: Its number, unique in the trace.
        name: For people.
        type: What it stands for.
        seconds: How long it took; 0 if unknown [s].
        waits_for: Nodes that must have ended, by id.
        attributes: Everything else, by name.
    """

    id: int
    name: str
    type: NodeType
    seconds: float = 0.0
    waits_for: tuple[int, ...] = ()
    attributes: Mapping[str, Scalar] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RankTrace:
    """All that one rank does.

    Attributes:
        rank: Whose it is.
        nodes: In the order of issue.
        groups: Ranks of each process group by its name, ascending.
        step_s: Duration of the step that it was written from; None if unknown [s].
        file: Where it was read, for messages.
    """

    rank: int
    nodes: tuple[Node, ...]
    groups: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    step_s: float | None = None
    file: str = ""
