"""What does one rank do by its trace, operation by operation, and what does that cost?

Computation takes as long as was recorded; every communication is priced anew, from its bytes and
from where its ranks sit. What was hidden of it stays hidden by as many seconds. Where a trace does
not name streams, computation, collectives, sends and receives have one each.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

import numpy as np

from simulator.chakra import execution_trace as names
from simulator.chakra.execution_trace import (
    BARRIER,
    COMM_TYPES,
    REDUCE_SCATTER_BLOCK,
    Node,
    NodeType,
    RankTrace,
    Scalar,
)
from simulator.cost.collectives import (
    NO_COST,
    CollectiveCost,
    CollectiveKind,
    Group,
    collective_cost,
    send_recv_cost,
)
from simulator.described.cluster.network import Network
from simulator.described.job import Job
from simulator.errors import InputError, UnsupportedError
from simulator.program.communication import communication_work
from simulator.program.grid.rank_groups import (
    Axis,
    copy_axes,
    rank_axes,
    ranks_along,
    replica_axes,
    shard_axes,
    spread_over,
)
from simulator.program.ir import COMMUNICATION, Category, Kind, Part, Stream, Work

_KINDS: Mapping[int, CollectiveKind] = {
    **{number: kind for kind, number in COMM_TYPES.items()},
    REDUCE_SCATTER_BLOCK: CollectiveKind.REDUCE_SCATTER,
    BARRIER: CollectiveKind.ALL_REDUCE,
}

_BARRIER_BYTES = 4.0

_COMMUNICATES = (NodeType.COMM_SEND, NodeType.COMM_RECV, NodeType.COMM_COLL)

_STREAMS: Mapping[NodeType, Stream] = {
    NodeType.COMP: Stream.COMPUTE,
    NodeType.MEM_LOAD: Stream.TO_DEVICE,
    NodeType.MEM_STORE: Stream.TO_HOST,
    NodeType.COMM_SEND: Stream.SEND_NEXT,
    NodeType.COMM_RECV: Stream.RECV_PREVIOUS,
    NodeType.COMM_COLL: Stream.DATA_PARALLEL,
}


def group_ranks(job: Job, rank: int, axis: str, ranks: int) -> tuple[int, ...]:
    """The ranks of the group that a collective of one rank runs in, ascending.

    Args:
        job: Its plan.
        rank: One of them.
        axis: The collective's ``axis``.
        ranks: How many they are.

    Raises:
        UnsupportedError: The group does not follow from the grid of ranks alone.
    """
    for axes in _candidates(job, axis):
        found = ranks_along(rank, axes)
        if len(found) == ranks:
            return found
    rule = f"has exchanges ({axis}) in groups that a trace cannot name"
    raise UnsupportedError.single("plan", rule, hint="remove it")


def _candidates(job: Job, axis: str) -> Sequence[Sequence[Axis]]:
    """Axes that a name may stand for; the number of ranks tells which."""
    dense, expert = rank_axes(job), rank_axes(job, experts=True)
    cp, heads = dense["cp"], job.plan.cp_heads
    shards = shard_axes(job)
    known: Mapping[str, Sequence[Sequence[Axis]]] = {
        "tp": [[dense["tp"]]],
        "cp": [[cp], [Axis(cp.ranks // heads, cp.stride * heads)]],
        "cp-heads": [[Axis(heads, cp.stride)]],
        "ep": [[expert["ep"]]],
        "etp": [[expert["tp"]]],
        "all": [[dense["tp"], dense["pp"], *shards], [dense["tp"], dense["pp"]]],
    }
    for name, experts in (("dp", False), ("edp", True)):
        copies = [copy_axes(job, experts=experts), shard_axes(job, experts=experts)]
        replicas = [replica_axes(job, experts=experts)]
        known = {**known, name: copies, f"{name}_shard": copies[1:], f"{name}_replicate": replicas}
    return known.get(axis, [])


def group_on(ranks: Sequence[int], network: Network) -> Group:
    """How some ranks, ascending, sit on a network that is as the job takes it.

    Domains and leafs hold consecutive ranks, as in :mod:`simulator.program.grid.rank_groups`; leafs
    and pods are those of the first rank.
    """
    first = ranks[0]

    def near(gpus: int) -> int:
        return sum(rank // gpus == first // gpus for rank in ranks) if gpus else len(ranks)

    up, fabric = network.scale_up, network.fabric
    local = near(up.gpus)

    def nodes_below(gpus: int) -> int:
        below = near(gpus)
        return -(-below // local) if below < len(ranks) else 0

    fewest, unequal_nodes = spread_over(np.asarray(ranks), up.gpus)
    return Group(
        len(ranks),
        fewest,
        nodes_below(fabric.leaf.gpus),
        nodes_below(fabric.pod.gpus),
        tuple(rank ^ first for rank in ranks[1:local]) if up.kind == "full-mesh" else (),
        unequal_nodes,
    )


@dataclass(slots=True)
class RankPart:
    """What one rank does of an operation.

    Attributes:
        number: Class of the rank.
        nodes: Its nodes.
        stream: Where they run.
        work: Their cost.
        key: What meets on other ranks; None where the rank is by itself.
    """

    number: int
    nodes: tuple[Node, ...]
    stream: Stream
    work: Work
    key: Hashable

    @property
    def sends(self) -> bool:
        """Whether it is the end of a transfer that sends."""
        return self.nodes[0].type is NodeType.COMM_SEND


@dataclass
class RankReader:
    """Cuts one rank's trace into operations.

    Attributes:
        number: Class of the rank.
        trace: What it recorded.
        network: The links that communication is priced on.
        all_ranks: All ranks with a trace.
    """

    number: int
    trace: RankTrace
    network: Network
    all_ranks: tuple[int, ...]
    _met: Counter[Hashable] = field(default_factory=Counter)
    _costs: dict[Hashable, CollectiveCost] = field(default_factory=dict)

    def operations(self) -> list[RankPart]:
        """What the rank does, in the order of its trace."""
        runs = groupby(enumerate(self.trace.nodes), key=lambda pair: _operation_of(*pair))
        return [self._part(tuple(node for _, node in run)) for _, run in runs]

    def _part(self, nodes: tuple[Node, ...]) -> RankPart:
        keys = [self._key(node) for node in nodes]
        computes = any(node.type is NodeType.COMP for node in nodes)
        meets = [
            key
            for node, key in zip(nodes, keys, strict=True)
            if key is not None and (node.type is NodeType.COMM_COLL or not computes)
        ]
        stream = self._stream(nodes[0])
        return RankPart(self.number, nodes, stream, self._work(nodes), next(iter(meets), None))

    def _stream(self, node: Node) -> Stream:
        if node.type is NodeType.COMP and node.attributes.get(names.IS_CPU) is True:
            return Stream.HOST
        given = node.attributes.get(names.STREAM)
        return Stream(str(given)) if given in set(Stream) else _STREAMS[node.type]

    def _key(self, node: Node) -> Hashable:
        """What a communication is called by all of its ranks."""
        if node.type is NodeType.COMM_COLL:
            called: Hashable = ("group", self._ranks(node))
        elif node.type in _COMMUNICATES:
            tag = node.attributes.get(names.TAG, 0)
            called = ("pair", *self._ends(node), tag)
        else:
            return None
        self._met[called] += 1
        return called, self._met[called]

    def _ranks(self, node: Node) -> tuple[int, ...]:
        """Ranks of a node's process group; all where it names none."""
        name = node.attributes.get(names.GROUP)
        if name is None or name == "":
            return self.all_ranks
        ranks = self.trace.groups.get(str(name))
        if ranks is None:
            raise self._fault(node, f"names the process group {name}, which is not listed")
        return ranks

    def _ends(self, node: Node) -> tuple[int, int]:
        """Rank that sends and rank that receives; a missing one is the rank itself.

        Chakra's converter of PyTorch's traces names neither, but a group; of two ranks it tells.
        """
        own = self.trace.rank
        if not {names.SOURCE, names.TARGET} & node.attributes.keys():
            ranks = self._ranks(node) if names.GROUP in node.attributes else ()
            if len(ranks) != 2 or own not in ranks:
                rule = "names neither comm_src nor comm_dst, nor a process group of two ranks"
                raise self._fault(node, rule, node.name)
            other = sum(ranks) - own
            return (own, other) if node.type is NodeType.COMM_SEND else (other, own)
        ends = [node.attributes.get(name, own) for name in (names.SOURCE, names.TARGET)]
        if not all(type(end) is int and end >= 0 for end in ends) or own not in ends:
            raise self._fault(node, "must be between this rank and another", ends)
        return int(ends[0]), int(ends[1])

    # Costs

    def _work(self, nodes: tuple[Node, ...]) -> Work:
        computes = any(node.type not in _COMMUNICATES for node in nodes)
        sends = any(node.type is NodeType.COMM_SEND for node in nodes)
        exchanged, parts = [], []
        for node in nodes:
            if node.type not in _COMMUNICATES:
                parts.append(Part(node.name, category_of(node), node.seconds))
                continue
            cost = NO_COST if node.type is NodeType.COMM_RECV and sends else self._cost(node)
            hidden_s = self._number(node, names.HIDDEN, 0.0)
            cost = replace(cost, seconds=max(0.0, cost.seconds - hidden_s))
            exchanged.append((kind_of(node).value, cost))
            parts.append(Part(node.name, category_of(node), cost.seconds))
        flop = math.fsum(self._number(node, names.NUM_OPS, 0.0) for node in nodes)
        seconds = math.fsum(part.seconds for part in parts)
        contends = nodes[0].attributes.get(names.CONTENDS, not computes)
        if not exchanged or contends is not True:
            return Work(seconds, tuple(parts), flop)
        num_bytes = self._number(nodes[0], names.NUM_BYTES, 0.0)
        work = communication_work(exchanged, num_bytes, category_of(nodes[0]))
        return replace(work, seconds=seconds, parts=tuple(parts))

    def _cost(self, node: Node) -> CollectiveCost:
        num_bytes = self._number(node, names.COMM_SIZE, 0.0)
        if node.type is not NodeType.COMM_COLL:
            num_bytes = self._number(node, names.NUM_BYTES, num_bytes)
            # A hop of a ring is as wide as the ring: others cross its links at the same time.
            inside = node.attributes.get(names.GROUP) in self.trace.groups
            ranks = self._ranks(node) if inside else tuple(sorted(set(self._ends(node))))
            return self._once("send_recv", num_bytes, ranks)
        ranks, number = self._ranks(node), node.attributes.get(names.COMM_TYPE)
        kind = _KINDS.get(number) if type(number) is int else None
        if kind is None:
            rule = f"is a collective (comm_type) that is not modelled; known: {sorted(_KINDS)}"
            raise self._fault(node, rule, number)
        if number == BARRIER:
            return self._once(kind.value, _BARRIER_BYTES, ranks)
        if not num_bytes:
            # Text converters write an exchange that there is none of as one of no bytes.
            return NO_COST
        if kind is CollectiveKind.ALL_GATHER:
            num_bytes *= len(ranks)
        return self._once(kind.value, self._number(node, names.NUM_BYTES, num_bytes), ranks)

    def _once(self, kind: str, num_bytes: float, ranks: tuple[int, ...]) -> CollectiveCost:
        key = kind, num_bytes, ranks
        if key not in self._costs:
            group = group_on(ranks, self.network)
            if kind == "send_recv":
                self._costs[key] = send_recv_cost(num_bytes, group, self.network)
            else:
                self._costs[key] = collective_cost(
                    CollectiveKind(kind), num_bytes, group, self.network
                )
        return self._costs[key]

    def _number(self, node: Node, name: str, default: float) -> float:
        """A number of 0 or more among the attributes."""
        value: Scalar = node.attributes.get(name, default)
        if isinstance(value, bool | str) or not 0 <= value < float("inf"):
            raise self._fault(node, f"must have a number of 0 or more as {name}", value)
        return float(value)

    def _fault(self, node: Node, rule: str, value: object = None) -> InputError:
        return InputError.single(f"node {node.id}", rule, value, file=self.trace.file)


def _operation_of(place: int, node: Node) -> Hashable:
    """What neighbouring nodes of one operation have in common."""
    number = node.attributes.get(names.OPERATION)
    return ("alone", place) if number is None else ("operation", number)


def kind_of(node: Node) -> Kind:
    """What a node does, for colours and tables."""
    given = node.attributes.get(names.KIND)
    if given in set(Kind):
        return Kind(str(given))
    if node.type is NodeType.COMM_COLL:
        number = node.attributes.get(names.COMM_TYPE)
        if type(number) is int and number in _KINDS:
            return Kind(_KINDS[number].value)
        return Kind.ALL_REDUCE
    copies = {NodeType.MEM_LOAD: Kind.COPY_TO_DEVICE, NodeType.MEM_STORE: Kind.COPY_TO_HOST}
    return Kind.SEND_RECV if node.type in _COMMUNICATES else copies.get(node.type, Kind.FORWARD)


def category_of(node: Node) -> Category:
    """Where a node's time is booked: a communication's never as computation."""
    given = node.attributes.get(names.CATEGORY)
    category = Category(str(given)) if given in set(Category) else None
    if node.type in _COMMUNICATES:
        usual = Category.DATA_PARALLEL if node.type is NodeType.COMM_COLL else Category.PIPELINE
        return category if category in COMMUNICATION else usual
    usual = Category.FORWARD if node.type is NodeType.COMP else Category.OFFLOAD
    return category or usual
