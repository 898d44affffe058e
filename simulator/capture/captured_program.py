"""How does a captured step become a program on some cluster?

One class of ranks for each captured rank, in the blocks of :mod:`.merged_operations`. Both ends
of a transfer are one operation: the k-th of a pair on one rank meets the k-th on the other. Kernels
wait for the host, which launches them one after another and takes for each what Python, autograd
and DTensors do around it (``facts/host_work.yaml``). The host waits for copies that block it.

Ignores: that streams beside the compute stream may overtake each other, and that the host waits
where the code reads a value back.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from simulator.capture.exchange_work import ExchangeCosts, category_of
from simulator.capture.host_link import (
    host_copy_work,
    is_host_copy,
    is_waited_for,
    kind_of_copy,
)
from simulator.capture.kernel_cost import Cost, kernel_cost
from simulator.capture.merged_operations import Block, blocks_of, layer_of
from simulator.capture.rescale import Scale
from simulator.capture.table import Call, Capture, Exchange, Phase, RankTable
from simulator.cost.host import host_ports_bytes_per_s
from simulator.described.cluster.hardware import HardwareProfile
from simulator.described.job import Cluster
from simulator.errors import InputError
from simulator.facts import host_launches
from simulator.program.ir import Category, Kind, Operation, Part, Program, RankClass, Stream, Work

_PHASES: Mapping[Phase, tuple[Kind, Category]] = MappingProxyType(
    {
        Phase.FORWARD: (Kind.FORWARD, Category.FORWARD),
        Phase.RECOMPUTE: (Kind.FORWARD, Category.RECOMPUTE),
        Phase.BACKWARD: (Kind.BACKWARD, Category.BACKWARD),
        Phase.OPTIMIZER: (Kind.OPTIMIZER, Category.OPTIMIZER),
        Phase.OTHER: (Kind.FORWARD, Category.FORWARD),
    }
)
_OF_DTENSORS = "_c10d_functional"
"""Namespace of the exchanges that DTensors issue."""


@dataclass(frozen=True)
class RankCosts:
    """What the operations of one rank cost, and where they are in the program.

    Attributes:
        costs: Of each distinct call.
        seconds: Of each operation, alone, shape (operations,) [s].
        operation: The program's operation that holds it, of the same shape.
        offset_s: When it starts after that does, of the same shape [s].
    """

    costs: tuple[Cost, ...]
    seconds: NDArray[np.float64]
    operation: NDArray[np.int64]
    offset_s: NDArray[np.float64]


@dataclass(frozen=True)
class CapturedProgram:
    """A program, and what it was made of.

    Attributes:
        program: What the ranks do.
        ranks: Costs of each captured rank, by class.
    """

    program: Program
    ranks: tuple[RankCosts, ...]


def captured_program(capture: Capture, profile: HardwareProfile, scale: Scale) -> CapturedProgram:
    """The captured step on a profile.

    Args:
        capture: The step.
        profile: The system.
        scale: How many ranks there are.

    Raises:
        InputError: The device lacks a number format, or a transfer has no other end.
    """
    cluster = Cluster(profile=profile, gpus=scale.gpus)
    count = scale.gpus // len(capture.tables)
    classes = tuple(
        RankClass(f"stage {stage}", stage, count, table.rank)
        for stage, table in enumerate(capture.tables)
    )
    ports = {**cluster.network.ports_bytes_per_s, **_host_ports(capture, cluster)}
    program = Program(classes=classes, ports=ports, device=profile.device, common=profile.common)
    exchanges = ExchangeCosts(capture, cluster.network, scale)
    stages = {table.rank: stage for stage, table in enumerate(capture.tables)}
    ranks = [
        _Rank(stage, table, stages, exchanges, cluster, scale.shrink)
        for stage, table in enumerate(capture.tables)
    ]
    transfers = _Transfers()
    for rank in ranks:
        rank.add_to(program, transfers)
    transfers.check()
    for index, waits in transfers.waits:
        program.operations[index].after += waits()
    return CapturedProgram(program, tuple(rank.result() for rank in ranks))


def _host_ports(capture: Capture, cluster: Cluster) -> Mapping[str, float]:
    """Links to the host, where anything passes them."""
    copies = any(is_host_copy(call) for table in capture.tables for call in table.calls)
    return host_ports_bytes_per_s(cluster) if copies else {}


@dataclass
class _Transfers:
    """Transfers that one end has come to, and what waits for what.

    Attributes:
        waits: Operations of the program, and what gives the ones they wait for.
    """

    waits: list[tuple[int, _Waits]] = field(default_factory=list)
    _open: dict[tuple[int, int], list[_End]] = field(default_factory=dict)

    def met(self, end: _End) -> _End | None:
        """The other end of a transfer; None where this is the first to come."""
        key = (end.rank.stage, end.other) if end.sends else (end.other, end.rank.stage)
        waiting = self._open.setdefault(key, [])
        if waiting and waiting[0].sends is not end.sends:
            return waiting.pop(0)
        waiting.append(end)
        return None

    def check(self) -> None:
        """Refuse transfers without another end.

        Raises:
            InputError: There are some.
        """
        for (source, target), ends in self._open.items():
            if ends:
                rule = f"{len(ends)} transfers from stage {source} to {target} have only one end"
                raise InputError.single("capture", rule, hint="capture every stage: --ranks auto")


@dataclass(frozen=True)
class _End:
    """One end of a transfer."""

    rank: _Rank
    block: Block
    other: int
    sends: bool


@dataclass(frozen=True)
class _Waits:
    """What blocks wait for, known when all operations are there."""

    ends: tuple[tuple[_Rank, Block], ...]
    launches: tuple[int, ...]

    def __call__(self) -> tuple[int, ...]:
        found = dict.fromkeys(self.launches)
        for rank, block in self.ends:
            found |= dict.fromkeys(int(rank.operation[i]) for i in block.waits)
        return tuple(found)


class _Rank:
    """Adds what one captured rank does to a program."""

    def __init__(
        self,
        stage: int,
        table: RankTable,
        stages: dict[int, int],
        exchanges: ExchangeCosts,
        cluster: Cluster,
        shrink: float,
    ) -> None:
        self.stage, self._table, self._stages, self._exchanges = stage, table, stages, exchanges
        self._launch_s = cluster.profile.kernels.launch_s
        self._copies = {
            call: host_copy_work(call, cluster, shrink)
            for call in filter(is_host_copy, table.calls)
        }
        self._costs = tuple(self._cost(call, cluster.profile, shrink) for call in table.calls)
        count = len(table.call)
        self.operation = np.full(count, -1, dtype=np.int64)
        self._offset_s = np.zeros(count)
        self._seconds = self._times()
        self._pending = 0
        self._held_up_by: tuple[int, ...] = ()
        self._works: dict[tuple[object, ...], Work] = {}

    def _cost(self, call: Call, profile: HardwareProfile, shrink: float) -> Cost:
        copy = self._copies.get(call)
        if copy is None:
            return kernel_cost(call, profile, shrink)
        return Cost(copy.seconds, 0.0, copy.parts[0].name)

    def _times(self) -> NDArray[np.float64]:
        table = self._table
        kernels = np.asarray([cost.seconds for cost in self._costs])[table.call]
        exchanged = [self._exchanges.work(e, table.rank).seconds for e in table.exchanges]
        return np.where(table.exchange < 0, kernels, np.asarray([*exchanged, 0.0])[table.exchange])

    def add_to(self, program: Program, transfers: _Transfers) -> None:
        """Add everything; transfers when their other end has come."""
        for block in blocks_of(self._table, self.stage, self._stages):
            launch = self._add_launch(program, block)
            if block.exchange is not None and block.exchange.peer >= 0:
                self._add_transfer(program, transfers, block, block.exchange)
                continue
            index = program.add(self._operation(block))
            self._place(block, index)
            transfers.waits.append((index, _Waits(((self, block),), (launch,))))
            if block.copy is not None and is_waited_for(block.copy):
                self._held_up_by = (index,)

    def result(self) -> RankCosts:
        """Costs and places of all operations."""
        return RankCosts(self._costs, self._seconds, self.operation, self._offset_s)

    def _add_launch(self, program: Program, block: Block) -> int:
        """The host launches what is left of the block before, and the first of this one."""
        first = self._table.calls[self._table.call[block.members[0]]].name
        operator_s = self._launch_s * host_launches("operator")
        of_dtensors = first.startswith(_OF_DTENSORS)
        first_s = self._launch_s * host_launches("dtensor_exchange") if of_dtensors else operator_s
        seconds = self._pending * operator_s + first_s
        self._pending = len(block.members) - 1
        work = self._works.get(("launch", seconds))
        if work is None:
            work = Work(seconds, (Part("launch", Category.HOST, seconds),))
            self._works["launch", seconds] = work
        lane = ((self.stage, Stream.HOST),)
        after, self._held_up_by = self._held_up_by, ()
        return program.add(Operation(Kind.FORWARD, lane, work, Category.HOST, after))

    def _add_transfer(
        self, program: Program, transfers: _Transfers, block: Block, exchange: Exchange
    ) -> None:
        other = self._stages.get(exchange.peer, -1)
        if other < 0:
            rule = (
                f"rank {self._table.rank} communicates with rank {exchange.peer}, which is not "
                "captured"
            )
            raise InputError.single("capture", rule, hint="capture every stage: --ranks auto")
        end = _End(self, block, other, exchange.sends)
        met = transfers.met(end)
        if met is None:
            return
        sender, receiver = (end, met) if end.sends else (met, end)
        lanes = (
            (sender.rank.stage, sender.block.stream),
            (receiver.rank.stage, receiver.block.stream),
        )
        work = self._exchanges.work(exchange, self._table.rank)
        index = program.add(Operation(Kind.SEND_RECV, lanes, work, category_of(exchange)))
        for each in (sender, receiver):
            each.rank._place(each.block, index)
        ends = tuple((each.rank, each.block) for each in (sender, receiver))
        transfers.waits.append((index, _Waits(ends, ())))

    def _operation(self, block: Block) -> Operation:
        table, first = self._table, block.members[0]
        lanes = ((self.stage, block.stream),)
        layer = layer_of(table.paths[table.module[first]])
        layers = (layer, layer + 1) if layer >= 0 else (-1, -1)
        if block.exchange is not None:
            work = self._exchanges.work(block.exchange, table.rank)
            kind, category = Kind(block.exchange.kind), category_of(block.exchange)
        elif block.copy is not None:
            work = self._copies[block.copy]
            kind, category = kind_of_copy(block.copy), Category.OFFLOAD
        else:
            kind, category = _PHASES[Phase(int(table.phase[first]))]
            work = self._kernels(block.members, category)
        return Operation(kind, lanes, work, category, layers=layers)

    def _kernels(self, members: Sequence[int], category: Category) -> Work:
        """Work of kernels that run one after another; the same calls share it."""
        calls = self._table.call[members]
        key = category, calls.tobytes()
        if key not in self._works:
            totals: dict[str, tuple[float, int]] = {}
            for cost in map(self._costs.__getitem__, calls.tolist()):
                seconds, repeats = totals.get(cost.name, (0.0, 0))
                totals[cost.name] = seconds + cost.seconds, repeats + 1
            parts = tuple(Part(name, category, s, n) for name, (s, n) in totals.items())
            flop = math.fsum(self._costs[number].flop for number in calls.tolist())
            self._works[key] = Work(math.fsum(part.seconds for part in parts), parts, flop=flop)
        return self._works[key]

    def _place(self, block: Block, index: int) -> None:
        members = block.members
        self.operation[members] = index
        ends = np.cumsum(self._seconds[members])
        self._offset_s[members] = ends - self._seconds[members]
