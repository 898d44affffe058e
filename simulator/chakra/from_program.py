"""What does each rank of a simulated step do, as an execution trace?

Computation becomes nodes of its own duration, and every collective inside and beside it a
node with its bytes and process group. What of a collective hides behind computation stays
hidden by as many seconds when the trace is replayed.

Simplified: an operation's kernels of one name are together, not layer by layer, as the
simulator books them. A rank's trace says what it waits for of its own; where the simulator
makes it wait for what only others do (tied embeddings are reduced when all stages are done),
that passes unsaid. Memory is left out; Chakra has no field for it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from simulator.chakra import execution_trace as names
from simulator.chakra.execution_trace import COMM_TYPES, Node, NodeType, RankTrace, Scalar
from simulator.chakra.rank_parts import group_on, group_ranks
from simulator.cost.collectives import (
    CollectiveCost,
    CollectiveKind,
    collective_cost,
    send_recv_cost,
)
from simulator.described.job import Job
from simulator.errors import Fault, InputError, UnsupportedError
from simulator.program.build import steps_around
from simulator.program.grid.rank_groups import rank_axes
from simulator.program.ir import COMMUNICATION, Category, Collective, Kind, Operation, Program

_COMPUTES = frozenset(
    {Kind.FORWARD, Kind.BACKWARD, Kind.BACKWARD_INPUT, Kind.BACKWARD_WEIGHT, Kind.OPTIMIZER}
)


def check_traceable(job: Job) -> None:
    """Refuse a job whose step is more than computation and exchanges of equal ranks.

    Raises:
        UnsupportedError: With every reason.
    """
    plan = job.plan
    reasons = {
        "plan.schedule": steps_around(job).total > 1 and "has no end of a step",
        "plan.offload": plan.offload.is_used and "uses shared links to the host",
        "plan.data_parallel": not job.choices.data_parallelism.reduces_by_collectives
        and "needs hosts besides the ranks",
        "plan.expert_load": plan.expert_load is not None and "makes ranks wait unequally",
        "plan.tp_method": plan.tensor_grid is not None and "has collectives along lines of a grid",
        "perturbations": bool(job.perturbations) and "slows down links that only this cluster has",
    }
    faults = [
        Fault(path, f"cannot be expressed by an execution trace: it {reason}", hint="remove it")
        for path, reason in reasons.items()
        if reason
    ]
    if faults:
        raise UnsupportedError(faults)


def rank_traces(
    job: Job, program: Program, ranks: Sequence[int] | None, step_s: float | None
) -> Iterator[RankTrace]:
    """The traces of some ranks, one at a time.

    Args:
        job: What was simulated.
        program: Its program, one class per stage.
        ranks: Whose; None for the first rank of each class, which stand for all.
        step_s: What the step took [s].

    Raises:
        InputError: The job has no such rank.
        UnsupportedError: It exchanges in groups that a trace cannot name.
    """
    for rank in [c.first_rank for c in program.classes] if ranks is None else ranks:
        if not 0 <= rank < job.cluster.gpus:
            rule = f"must be below the {job.cluster.gpus} GPUs of the job"
            raise InputError.single("--ranks", rule, rank)
        yield _RankWriter(job, program, rank).trace(step_s)


@dataclass(frozen=True, slots=True)
class _Piece:
    """Computation, or collectives one after another with what they add.

    Attributes:
        seconds: Duration, or what the collectives add [s].
        category: Where that is booked.
        collectives: None where it is computation.
    """

    seconds: float
    category: Category
    collectives: Sequence[Collective] | None = None


@dataclass
class _RankWriter:
    """Turns what one rank does into nodes."""

    job: Job
    program: Program
    rank: int
    groups: dict[str, tuple[int, ...]] = field(default_factory=dict)
    nodes: list[Node] = field(default_factory=list)

    def trace(self, step_s: float | None) -> RankTrace:
        own = self._own_class()
        spans: dict[int, tuple[int, int]] = {}
        for index, operation in enumerate(self.program.operations):
            stream = next((stream for owner, stream in operation.lanes if owner == own), None)
            if stream is None:
                continue
            first = len(self.nodes)
            for node in self._nodes(operation, own):
                known = {names.OPERATION: index, names.STREAM: stream.value}
                attributes = {**node.attributes, **known, names.KIND: operation.kind.value}
                self._add(node.name, node.type, node.seconds, attributes)
            spans[index] = (first, len(self.nodes))
        self._add_waits(spans)
        return RankTrace(self.rank, tuple(self.nodes), self.groups, step_s)

    def _add(self, name: str, kind: NodeType, seconds: float, what: dict[str, Scalar]) -> None:
        self.nodes.append(Node(len(self.nodes) + 1, name, kind, seconds, (), what))

    def _own_class(self) -> int:
        stage = self._stage_of(self.rank)
        return next(i for i, c in enumerate(self.program.classes) if c.stage == stage)

    def _stage_of(self, rank: int) -> int:
        axis = rank_axes(self.job)["pp"]
        return rank // axis.stride % axis.ranks

    def _peer(self, rank_class: int) -> int:
        """The rank at the same place of another class's stage."""
        stages = self.program.classes[rank_class].stage - self._stage_of(self.rank)
        return self.rank + stages * rank_axes(self.job)["pp"].stride

    # Nodes of an operation

    def _nodes(self, operation: Operation, own: int) -> Iterator[Node]:
        name = _name(operation)
        contends = operation.work.traffic is not None
        left = operation.work.flop
        for piece in _pieces(operation):
            shared: dict[str, Scalar] = {
                names.CATEGORY: piece.category.value, names.CONTENDS: contends,
            }  # fmt: skip
            if piece.collectives is None:
                attributes = {**shared, names.IS_CPU: False, names.NUM_OPS: round(left)}
                left = 0.0
                yield Node(0, name, NodeType.COMP, piece.seconds, (), attributes)
                continue
            yield from self._exchanges(operation, own, piece, shared, name)

    def _exchanges(
        self,
        operation: Operation,
        own: int,
        piece: _Piece,
        shared: dict[str, Scalar],
        name: str,
    ) -> Iterator[Node]:
        """Nodes of collectives; what they add beyond their prices is computation."""
        assert piece.collectives is not None
        ranks = [self._ranks(operation, each) for each in piece.collectives]
        costs = [self._cost(each, its) for each, its in zip(piece.collectives, ranks, strict=True)]
        total_s = math.fsum(cost.seconds for cost in costs)
        hidden = max(0.0, 1 - piece.seconds / total_s) if total_s else 0.0
        for each, its, cost in zip(piece.collectives, ranks, costs, strict=True):
            attributes: dict[str, Scalar] = {
                **shared,
                names.NUM_BYTES: each.num_bytes,
                names.GROUP: self._group_name(each.axis, its),
                **({names.HIDDEN: hidden * cost.seconds} if hidden else {}),
            }
            yield from self._issued(operation, own, each, its, attributes)
        if piece.seconds > total_s:
            yield Node(0, name, NodeType.COMP, piece.seconds - total_s, (), dict(shared))

    def _issued(
        self,
        operation: Operation,
        own: int,
        each: Collective,
        ranks: tuple[int, ...],
        attributes: dict[str, Scalar],
    ) -> Iterator[Node]:
        if each.kind is not Kind.SEND_RECV:
            kind = CollectiveKind(each.kind.value)
            # Chakra counts what a rank puts in.
            given = each.num_bytes / (len(ranks) if kind is CollectiveKind.ALL_GATHER else 1)
            attributes |= {names.COMM_TYPE: COMM_TYPES[kind], names.COMM_SIZE: round(given)}
            yield Node(0, each.name, NodeType.COMM_COLL, 0.0, (), attributes)
            return
        attributes[names.COMM_SIZE] = round(each.num_bytes)
        if operation.kind is Kind.SEND_RECV:
            source, target = (self._peer(lane[0]) for lane in (operation.lanes[0],
                                                               operation.lanes[-1]))  # fmt: skip
            yield _sent(
                each.name, source, target, attributes, is_sender=operation.lanes[0][0] == own
            )
            return
        place = ranks.index(self.rank)
        following, before = ranks[(place + 1) % len(ranks)], ranks[place - 1]
        yield _sent(each.name, self.rank, following, dict(attributes), is_sender=True)
        yield _sent(each.name, before, self.rank, attributes, is_sender=False)

    def _ranks(self, operation: Operation, each: Collective) -> tuple[int, ...]:
        if each.axis == "pp":
            return tuple(sorted(self._peer(rank_class) for rank_class, _ in operation.lanes))
        return group_ranks(self.job, self.rank, str(each.axis), each.ranks)

    def _cost(self, each: Collective, ranks: tuple[int, ...]) -> CollectiveCost:
        network = self.job.cluster.network
        group = group_on(ranks, network)
        if each.kind is Kind.SEND_RECV:
            return send_recv_cost(each.num_bytes, group, network)
        return collective_cost(CollectiveKind(each.kind.value), each.num_bytes, group, network)

    def _group_name(self, axis: str, ranks: tuple[int, ...]) -> str:
        """Name of a process group: its axis and its first rank, which tell it from others."""
        name = f"{axis}-{len(ranks)}-{ranks[0]}"
        self.groups[name] = ranks
        return name

    # Order

    def _add_waits(self, spans: dict[int, tuple[int, int]]) -> None:
        """A node waits for the one before it on its stream, and what its operation waits for."""
        previous: dict[Scalar, int] = {}
        for index, (first, end) in spans.items():
            stream = self.nodes[first].attributes[names.STREAM]
            waits = [previous[stream]] if stream in previous else []
            waits += self._ends_before(index, spans)
            for at in range(first, end):
                node = self.nodes[at]
                waits_for = tuple(dict.fromkeys(waits)) if at == first else (node.id - 1,)
                self.nodes[at] = Node(
                    node.id, node.name, node.type, node.seconds, waits_for, node.attributes
                )
            previous[stream] = self.nodes[end - 1].id

    def _ends_before(self, index: int, spans: dict[int, tuple[int, int]]) -> Iterator[int]:
        """Last nodes of what an operation waits for; what only others do passes unsaid."""
        for before in self.program.operations[index].after:
            if before in spans:
                yield self.nodes[spans[before][1] - 1].id


def _sent(
    name: str, source: int, target: int, attributes: dict[str, Scalar], *, is_sender: bool
) -> Node:
    ends = {names.SOURCE: source, names.TARGET: target, names.TAG: 0}
    kind = NodeType.COMM_SEND if is_sender else NodeType.COMM_RECV
    return Node(0, name, kind, 0.0, (), {**attributes, **ends})


def _name(operation: Operation) -> str:
    """What an operation is, for people."""
    words = [operation.kind.value]
    if operation.microbatch >= 0:
        words.append(f"microbatch {operation.microbatch}")
    if operation.layers[0] >= 0:
        words.append(f"layers {operation.layers[0]} to {operation.layers[1] - 1}")
    return " ".join(words)


def _pieces(operation: Operation) -> Iterator[_Piece]:
    """Computation and exchanges of an operation, in the order of its parts."""
    work = operation.work
    if operation.kind not in _COMPUTES:
        yield _Piece(work.seconds, operation.category, work.collectives or None)
        return
    computed_s, left = 0.0, list(work.collectives)
    booked: dict[str, float] = {}
    for part in work.parts:
        if part.category in COMMUNICATION:
            booked[part.name] = booked.get(part.name, 0.0) + part.seconds
    for part in work.parts:
        issued = _issued_by(part.name, left) if part.name in booked else []
        if not issued:
            # The first part of a name stands for all of them.
            if part.name in booked or part.category not in COMMUNICATION:
                computed_s += part.seconds
            continue
        left = [each for each in left if each not in issued]
        if computed_s:
            yield _Piece(computed_s, operation.category)
            computed_s = 0.0
        yield _Piece(booked.pop(part.name), part.category, issued)
    if computed_s or not work.parts:
        yield _Piece(computed_s, operation.category)


def _issued_by(name: str, left: Sequence[Collective]) -> list[Collective]:
    """What a part of that name stands for: the hops of a ring have names of their own."""
    issued = [each for each in left if each.name == name]
    if issued or not name.endswith("_ring"):
        return issued
    return [each for each in left if each.name.startswith(f"{name.removesuffix('_ring')}.")]
