"""Which captured operations of a rank are one operation of the program?

The default stream is the compute stream. Whatever runs beside it, on the code's own streams or
on NCCL's, queues on one more in the order of issue, as collectives of one communicator do. A
collective on NCCL's that the compute stream waits for before it does anything else runs on it.
Copies to the host and from it run on the compute stream if they are issued there, else in a queue
for each direction, behind what was issued on their stream before.
Kernels of one layer and phase that nothing comes between are one block.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from simulator.capture.host_link import is_host_copy, stream_beside
from simulator.capture.table import FIRST_BESIDE, Call, Exchange, RankTable
from simulator.program.ir import Kind, Stream


@dataclass(slots=True)
class Block:
    """Captured operations that run one after another.

    Attributes:
        stream: Where.
        members: Their numbers, ascending.
        exchange: What it exchanges; None of kernels and copies.
        copy: What it copies to the host or from it; None of others.
        waits: Captured operations that must have ended.
    """

    stream: Stream
    members: list[int]
    exchange: Exchange | None
    copy: Call | None
    waits: list[int] = field(default_factory=list)

    @property
    def is_of_kernels(self) -> bool:
        """Whether it neither exchanges nor copies."""
        return self.exchange is None and self.copy is None


def blocks_of(table: RankTable, stage: int, stages: dict[int, int]) -> list[Block]:
    """The blocks of a rank, in the order in which their first operations were issued.

    Args:
        table: What the rank does.
        stage: Its place in the pipeline.
        stages: Place of every captured rank in the pipeline.
    """
    copies = _copies(table)
    streams = list(_streams(table, stage, stages, copies))
    waits = _waits(table, streams, copies)
    awaited = {before for befores in waits.values() for before in befores}
    keys = _keys(table)
    last: dict[Stream, Block] = {}
    blocks = []
    for index, stream in enumerate(streams):
        number, copy = int(table.exchange[index]), copies.get(index)
        block = last.get(stream)
        is_kernel = number < 0 and copy is None
        if block is not None and is_kernel and index not in waits and block.is_of_kernels:
            before = block.members[-1]
            if before not in awaited and keys[before] == keys[index]:
                block.members.append(index)
                continue
        exchange = table.exchanges[number] if number >= 0 else None
        last[stream] = Block(stream, [index], exchange, copy, waits.get(index, []))
        blocks.append(last[stream])
    return blocks


def _copies(table: RankTable) -> dict[int, Call]:
    """Copies to the host and from it, by number of their operation."""
    calls = {number: call for number, call in enumerate(table.calls) if is_host_copy(call)}
    places = np.flatnonzero(np.isin(table.call, list(calls))).tolist() if calls else []
    return {index: calls[int(table.call[index])] for index in places}


def _waits(
    table: RankTable, streams: Sequence[Stream], copies: Mapping[int, Call]
) -> dict[int, list[int]]:
    """Captured operations that each waits for; of copies also those before on their stream."""
    waits: dict[int, list[int]] = {}
    for operation, before in table.waits.tolist():
        waits.setdefault(operation, []).append(before)
    last: dict[int, int] = {}
    for index, stream in enumerate(table.stream.tolist() if copies else ()):
        before = last.get(stream, index)
        if streams[before] is not streams[index] and (index in copies or before in copies):
            waits.setdefault(index, []).append(before)
        last[stream] = index
    return waits


def unit_of(path: str) -> str:
    """The layer, or other large part, that a module's path lies in: up to its first number."""
    words = path.split(".")
    for place, word in enumerate(words):
        if word.isdecimal():
            return ".".join(words[: place + 1])
    return words[0]


def layer_of(path: str) -> int:
    """Number of the layer that a module's path lies in; -1 if it is in none."""
    return next((int(word) for word in path.split(".") if word.isdecimal()), -1)


def _keys(table: RankTable) -> list[tuple[int, int]]:
    """Phase, and the layer or other large part of the model, of each operation."""
    units: dict[str, int] = {}
    of_path = [units.setdefault(unit_of(path), len(units)) for path in table.paths]
    of_operation = np.asarray(of_path, dtype=np.int64)[table.module]
    return list(zip(table.phase.tolist(), of_operation.tolist(), strict=True))


def _streams(
    table: RankTable, stage: int, stages: dict[int, int], copies: Mapping[int, Call]
) -> Iterator[Stream]:
    """The lane of each operation."""
    at_once = _waited_for_at_once(table)
    for index, (stream, number) in enumerate(
        zip(table.stream.tolist(), table.exchange.tolist(), strict=True)
    ):
        exchange = table.exchanges[number] if number >= 0 else None
        if exchange is not None and exchange.kind == Kind.SEND_RECV:
            yield _lane_of_transfer(exchange, stage, stages)
        elif stream == 0 or index in at_once:
            yield Stream.COMPUTE
        elif index in copies:
            yield stream_beside(copies[index])
        else:
            yield Stream.DATA_PARALLEL


def _lane_of_transfer(exchange: Exchange, stage: int, stages: dict[int, int]) -> Stream:
    other = stages.get(exchange.peer, stage)
    is_next = other == (stage + 1) % len(stages) and (other > stage or len(stages) > 2)
    if exchange.sends:
        return Stream.SEND_NEXT if is_next else Stream.SEND_PREVIOUS
    return Stream.RECV_NEXT if is_next else Stream.RECV_PREVIOUS


def _waited_for_at_once(table: RankTable) -> set[int]:
    """Exchanges of NCCL's streams between two neighbours on the compute stream.

    On a stream of the code's own, one begins where that stream is, which may be far behind.
    """
    first_wait: dict[int, int] = {}
    for operation, before in table.waits.tolist():
        if table.stream[operation] == 0 and table.stream[before] >= FIRST_BESIDE:
            first_wait.setdefault(before, operation)
    compute = np.flatnonzero(table.stream == 0)
    places = np.searchsorted(compute, np.arange(len(table.call)), side="right")
    following = np.append(compute, len(table.call))[places].tolist()
    return {before for before, waiting in first_wait.items() if following[before] == waiting}
