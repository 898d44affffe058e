"""What does each class of ranks do, in which order?

A :class:`Program` is the only thing engines, plots and exporters know. It holds one
list of operations per *class* of ranks that do the same. An operation occupies one or
more *lanes* (a lane is one stream of one class); a lane runs its operations first in,
first out, as CUDA streams do. An operation starts when it is at the head of all its
lanes and its dependencies have ended. A collective between classes is one operation on
several lanes: that is the rendezvous.

Nothing here knows what ZeRO or 1F1B is.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from simulator.described.cluster.common import Common, shipped_common
from simulator.described.cluster.hardware import Device
from simulator.described.plan.plan_blocks import AllocatorSettings


class Kind(StrEnum):
    """What an operation does, for colours, breakdowns and traces."""

    FORWARD = "forward"
    BACKWARD = "backward"
    BACKWARD_INPUT = "backward_input"
    BACKWARD_WEIGHT = "backward_weight"
    OPTIMIZER = "optimizer"
    SEND_RECV = "send_recv"
    ALL_REDUCE = "all_reduce"
    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_TO_ALL = "all_to_all"
    BROADCAST = "broadcast"
    REDUCE = "reduce"
    SCATTER = "scatter"
    GATHER = "gather"
    COPY_TO_HOST = "copy_to_host"
    COPY_TO_DEVICE = "copy_to_device"
    NVME_READ = "nvme_read"
    NVME_WRITE = "nvme_write"


class Stream(StrEnum):
    """The streams of one rank."""

    COMPUTE = "compute"
    DATA_PARALLEL = "data_parallel"
    SEND_NEXT = "send_next"
    RECV_PREVIOUS = "recv_previous"
    SEND_PREVIOUS = "send_previous"
    RECV_NEXT = "recv_next"
    TO_HOST = "to_host"
    TO_DEVICE = "to_device"
    HOST = "host"
    """The CPU cores that work for the rank."""
    NVME_READ = "nvme_read"
    NVME_WRITE = "nvme_write"


class _Word(StrEnum):
    """A text of a closed list; printed tables of results show the plain text."""

    __repr__ = str.__repr__


class Category(_Word):
    """Where the time of a step goes. The categories of a rank sum to the step."""

    FORWARD = "forward"
    BACKWARD = "backward"
    RECOMPUTE = "recompute"
    OPTIMIZER = "optimizer"
    HOST = "host"
    TENSOR_PARALLEL = "tensor_parallel"
    CONTEXT_PARALLEL = "context_parallel"
    EXPERT_PARALLEL = "expert_parallel"
    DATA_PARALLEL = "data_parallel"
    PIPELINE = "pipeline"
    OFFLOAD = "offload"
    BUBBLE = "bubble"


COMMUNICATION = frozenset(
    {
        Category.TENSOR_PARALLEL,
        Category.CONTEXT_PARALLEL,
        Category.EXPERT_PARALLEL,
        Category.DATA_PARALLEL,
        Category.PIPELINE,
        Category.OFFLOAD,
    }
)
"""Categories that count as exposed communication."""


class Owner(_Word):
    """Who holds memory."""

    WEIGHTS = "weights"
    STASHED_WEIGHTS = "stashed_weights"
    GRADIENTS = "gradients"
    GRADIENT_SHARDS = "gradient_shards"
    """Results count them as gradients."""
    MASTER_WEIGHTS = "master_weights"
    OPTIMIZER_STATES = "optimizer_states"
    ACTIVATIONS = "activations"
    RECOMPUTE = "recompute"
    TEMPORARIES = "temporaries"
    LOGITS = "logits"
    GATHERED_WEIGHTS = "gathered_weights"
    COMMUNICATION = "communication"
    PLACEHOLDER_GRADIENTS = "placeholder_gradients"
    WORKSPACES = "workspaces"
    """What libraries keep for themselves in torch's allocator."""


class Scope(StrEnum):
    """Which ranks of the stages that an operation names run it as one.

    The others run it, too, at the same time or not; they do not wait for each other.
    """

    RANK = "rank"
    """Each rank for itself, or with the ranks at its place in the other stages."""
    PASS = "pass"
    """Ranks that exchange activations inside a pass: tensor, context, expert parallel."""
    SHARDS = "shards"
    """Ranks that parameters are sharded over."""
    COPIES = "copies"
    """Ranks that hold the same parameters."""
    WORLD = "world"
    """All ranks of the stages."""


@dataclass(frozen=True, slots=True)
class Part:
    """A named piece of an operation's time, one kernel or collective per entry.

    Attributes:
        name: Kernel or collective, for example ``qkv`` or ``reduce_scatter``.
        category: Where its time is booked.
        seconds: Total over ``repeats`` [s].
        repeats: How often it runs inside the operation.
    """

    name: str
    category: Category
    seconds: float
    repeats: int = 1


@dataclass(frozen=True, slots=True)
class Collective:
    """One collective or transfer, as a rank issues it.

    Attributes:
        name: What it moves, for example ``attention_output.reduce``.
        kind: What the group does with it.
        axis: Degree of the plan that the group belongs to, for example ``tp``.
        ranks: How many take part.
        num_bytes: Message size as nccl-tests counts it [B].
        port_bytes: Bytes that pass each port of one rank, by port name.
    """

    name: str
    kind: Kind
    axis: str
    ranks: int
    num_bytes: float
    port_bytes: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Traffic:
    """What a communication puts on the shared ports of each rank.

    Attributes:
        port_bytes: Bytes that pass each port of one rank, by port name.
        latency_s: Part of the time that is waiting, not transferring [s].
        sm_count: Streaming multiprocessors held while it runs.
        link_bytes: Bytes that pass the link to each other rank of a full mesh.
    """

    port_bytes: Mapping[str, float]
    latency_s: float = 0.0
    sm_count: int = 0
    link_bytes: Mapping[int, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Work:
    """The cost of an operation, shared by all operations that do the same.

    Attributes:
        seconds: Duration alone on the machine [s]; the sum of the parts.
        parts: What the time is made of, in order.
        flop: Floating-point operations of one rank, including recomputation.
        num_bytes: Message size of a communication [B].
        traffic: Load on shared ports; None where nothing is shared.
        collectives: What is issued meanwhile, in order; hidden exchanges are among them.
    """

    seconds: float
    parts: tuple[Part, ...] = ()
    flop: float = 0.0
    num_bytes: float = 0.0
    traffic: Traffic | None = None
    collectives: tuple[Collective, ...] = ()


Memory = tuple[tuple[Owner, float], ...]
"""Blocks of memory, as (owner, bytes) pairs: one tensor each, or several that come and go
together."""


def total_bytes(memory: Iterable[tuple[Owner, float]]) -> float:
    """Sum over all blocks, whoever holds them [B]."""
    return math.fsum(size for _, size in memory)


class UnitBlocks(NamedTuple):
    """Blocks of equal layers or of an end of the model, as a pass comes by.

    Attributes:
        takes: What they keep.
        turns: What else they make, each group given back before the next is taken.
    """

    takes: Memory
    turns: tuple[Memory, ...]


Lane = tuple[int, Stream]
"""One stream of one rank class: (class index, stream)."""


@dataclass(slots=True)
class Operation:
    """One thing that one or more lanes do.

    Attributes:
        kind: What it does.
        lanes: Where it runs; all of them are held from start to end.
        work: Its cost.
        category: Where its time is booked when it delays the compute stream.
        after: Indices of operations that must have ended.
        microbatch, chunk: Pipeline coordinates; -1 where they have no meaning.
        layers: First and one past the last layer, (-1, -1) where meaningless.
        takes: Memory taken at the start and kept.
        gives: Memory given back at the end.
        holds: Memory held only while it runs, at its fullest moment.
        frees: Memory given back before that moment, and not again at the end.
        leaves: Memory taken at the end and kept.
        lingers: Memory given back before its fullest moment that nothing else can have until it
            ends: the allocator keeps it, tensors do not. It is of the operation's own stream.
        by_unit: Those blocks of ``takes`` that units keep, unit after unit until the fullest
            moment, each with what comes and goes meanwhile: only the allocator meets that.
        turns: Memory held before that, each group given back before the next is taken.
        scope: Which ranks run it as one, where classes are smaller than stages.
    """

    kind: Kind
    lanes: tuple[Lane, ...]
    work: Work
    category: Category
    after: tuple[int, ...] = ()
    microbatch: int = -1
    chunk: int = -1
    layers: tuple[int, int] = (-1, -1)
    takes: Memory = ()
    gives: Memory = ()
    holds: Memory = ()
    turns: tuple[Memory, ...] = ()
    scope: Scope = Scope.RANK
    frees: Memory = ()
    leaves: Memory = ()
    lingers: Memory = ()
    by_unit: tuple[UnitBlocks, ...] = ()

    def again(self, microbatch: int, after: tuple[int, ...]) -> Operation:
        """The same for another microbatch, if it is of any; what it waits for is its own."""
        # dataclasses.replace takes several times as long, and there are hundreds of thousands.
        return Operation(
            self.kind, self.lanes, self.work, self.category, after,
            microbatch if self.microbatch >= 0 else -1, self.chunk,
            self.layers, self.takes, self.gives, self.holds, self.turns, self.scope,
            self.frees, self.leaves, self.lingers, self.by_unit,
        )  # fmt: skip

    def elsewhere(self, lanes: tuple[Lane, ...], work: Work, after: tuple[int, ...]) -> Operation:
        """The same on other lanes, at another cost; what it waits for is its own."""
        return Operation(
            self.kind, lanes, work, self.category, after, self.microbatch, self.chunk,
            self.layers, self.takes, self.gives, self.holds, self.turns, self.scope,
            self.frees, self.leaves, self.lingers, self.by_unit,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class RankClass:
    """Ranks that do the same, simulated once.

    Attributes:
        name: For people, for example ``stage 3``.
        stage: Pipeline stage.
        count: How many ranks it stands for.
        first_rank: The lowest of them, its representative.
        resident: Memory held from before the step to after it.
        loading: The most that is held before the first step, where weights come from a checkpoint.
        starting: Taken beside what is resident and given back before the first step.
        first_states: What of ``resident`` only the first update makes, tensor by tensor.
        host, nvme: What one rank holds in its node's memory and on its drives.
        ranks: All of them, where the class is smaller than its stage.
        cause: Why it is a class of its own, for people.
        port_shares: Share that is left of some ports' capacity, by port name.
        role: What its ranks are, where others of their stage do something else.
        device: Its GPU, where the cluster has several kinds.
    """

    name: str
    stage: int
    count: int
    first_rank: int
    resident: Memory = ()
    loading: Memory = ()
    starting: Memory = ()
    first_states: Memory = ()
    host: Memory = ()
    nvme: Memory = ()
    ranks: tuple[int, ...] = ()
    cause: str = ""
    port_shares: Mapping[str, float] = field(default_factory=dict)
    role: str = ""
    device: Device | None = None


@dataclass(slots=True)
class Program:
    """All rank classes and what they do.

    Attributes:
        classes: The rank classes, in order of stage.
        operations: Every operation; indices into this list are the ids.
        lanes: Operation ids of each lane, in program order.
        ports: Capacity of each shared port of one rank [B/s], by port name.
        device: Where ranks compute whose class names no other; without any, communication never
            slows computing.
        common: How computing slows beside communication.
        allocator: How the caching allocator is set.
        outside: Device memory of one rank outside the allocator, beyond the driver's context,
            by cause [B].
        preallocated: Owners whose blocks lie in one buffer each, as large as they need at
            their most, that is there from the start.
        own_stream: Owners whose blocks are asked for on a stream of their own, so that no
            others can be made of them.
    """

    classes: tuple[RankClass, ...]
    operations: list[Operation] = field(default_factory=list)
    lanes: dict[Lane, list[int]] = field(default_factory=dict)
    ports: dict[str, float] = field(default_factory=dict)
    device: Device | None = None
    common: Common = field(default_factory=shipped_common)
    allocator: AllocatorSettings = field(default_factory=AllocatorSettings)
    outside: Mapping[str, float] = field(default_factory=dict)
    preallocated: frozenset[Owner] = frozenset()
    own_stream: frozenset[Owner] = frozenset()

    def add(self, operation: Operation) -> int:
        """Append the operation to all its lanes; returns its id."""
        index, lanes = len(self.operations), self.lanes
        self.operations.append(operation)
        for lane in operation.lanes:
            if lane in lanes:
                lanes[lane].append(index)
            else:
                lanes[lane] = [index]
        return index
