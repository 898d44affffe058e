"""Which collectives does each class of ranks issue in a step, in which order, how large?

The listing is in the order in which one rank issues them, which is the order of its
program. It holds what the plan makes ranks say to each other, hidden or not; how long that
takes is in the timeline.

A link's load over time spreads what a rank sends evenly over each operation's time, latency
included; exchanges inside a pass are spread over the pass. So a curve shows the mean load of each
operation, not the bursts inside it; its area is what :func:`class_traffic` lists for the port.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.engine.timeline import Timeline
from simulator.program.ir import Collective, Kind, Operation, Program


@dataclass(frozen=True, slots=True)
class TrafficTotal:
    """All collectives of one kind in groups of one degree, over one step of one rank.

    Attributes:
        axis: Degree of the plan that the groups belong to.
        message_bytes: Sum of their message sizes as nccl-tests counts them [B].
        sent_bytes: What a rank sends, see :func:`sent_bytes` [B].
        port_bytes: What passes each port of the rank, by port name [B].
    """

    axis: str
    kind: Kind
    ranks: int
    count: int
    message_bytes: float
    sent_bytes: float
    port_bytes: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class ClassTraffic:
    """What each rank of a class says to others in one step.

    Attributes:
        name: The class, for example ``stage 3``.
        totals: By degree, kind and group, in the order of their first use.
    """

    name: str
    ranks: int
    totals: tuple[TrafficTotal, ...]

    @property
    def port_bytes(self) -> Mapping[str, float]:
        """What passes each port of one rank [B]."""
        return _port_totals(self.totals)


def class_traffic(program: Program) -> tuple[ClassTraffic, ...]:
    """The traffic of every class of ranks, in order of the program."""
    return tuple(
        ClassTraffic(
            rank_class.name,
            rank_class.count,
            tuple(_traffic_totals(rank_collectives(program, index))),
        )
        for index, rank_class in enumerate(program.classes)
    )


def rank_collectives(program: Program, rank_class: int = 0) -> Iterator[Collective]:
    """Every collective that a rank of the class issues in one step, in order.

    A transfer is listed with its sender, and what follows its arrival with its receiver.
    """
    for operation in program.operations:
        if all(lane[0] != rank_class for lane in operation.lanes):
            continue
        is_transfer, sends = operation.kind is Kind.SEND_RECV, operation.lanes[0][0] == rank_class
        for collective in operation.work.collectives:
            if not is_transfer or sends == (collective.kind is Kind.SEND_RECV):
                yield collective


def _traffic_totals(collectives: Iterable[Collective]) -> list[TrafficTotal]:
    """The collectives added up by degree, kind and size of the group."""
    groups: dict[tuple[str, Kind, int], list[Collective]] = {}
    for collective in collectives:
        key = collective.axis, collective.kind, collective.ranks
        groups.setdefault(key, []).append(collective)
    return [
        TrafficTotal(
            axis,
            kind,
            ranks,
            count=len(group),
            message_bytes=math.fsum(collective.num_bytes for collective in group),
            sent_bytes=math.fsum(map(sent_bytes, group)),
            port_bytes=_port_totals(group),
        )
        for (axis, kind, ranks), group in groups.items()
    ]


def sent_bytes(collective: Collective) -> float:
    """The least that a rank must send, on average over the group [B].

    2 (n-1)/n of the message for an all_reduce, (n-1)/n for all_gather, reduce_scatter,
    all_to_all, broadcast and reduce, and all of it for a transfer to one other rank.

    Source: Chan et al., "Collective communication: theory, practice, and experience",
    2007, table 1; nccl-tests, doc/PERFORMANCE.md.
    """
    if collective.kind is Kind.SEND_RECV:
        return collective.num_bytes
    passes = 2 if collective.kind is Kind.ALL_REDUCE else 1
    return passes * collective.num_bytes * (collective.ranks - 1) / collective.ranks


def _port_totals(items: Iterable[Collective | TrafficTotal]) -> dict[str, float]:
    totals: dict[str, float] = {}
    for item in items:
        for port, num_bytes in item.port_bytes.items():
            totals[port] = totals.get(port, 0.0) + num_bytes
    return totals


@dataclass(frozen=True)
class LinkLoad:
    """What one rank of a class sends through one port.

    Attributes:
        capacity_bytes_per_s: What the port carries in large collectives, what is left of it
            for this class [B/s].
        time_s: Moments at which the rate changes, shape (changes,) [s].
        bytes_per_s: Rate from each moment on, shape (changes,) [B/s].
    """

    rank_class: int
    port: str
    capacity_bytes_per_s: float
    time_s: NDArray[np.float64]
    bytes_per_s: NDArray[np.float64]


def link_loads(timeline: Timeline) -> tuple[LinkLoad, ...]:
    """The load of every port that anything is sent through, by class and port."""
    program = timeline.program
    sent: dict[tuple[int, str], list[tuple[int, float]]] = {}
    for index, operation in enumerate(program.operations):
        for rank_class, port, num_bytes in _sendings(operation):
            sent.setdefault((rank_class, port), []).append((index, num_bytes))
    return tuple(
        LinkLoad(rank_class, port, _capacity(timeline, rank_class, port), *_curve(timeline, rows))
        for (rank_class, port), rows in sorted(sent.items())
    )


def _sendings(operation: Operation) -> Iterator[tuple[int, str, float]]:
    """(class, port, bytes) of everything that an operation sends.

    A transfer is its sender's, and what follows its arrival its receivers'.
    """
    is_transfer, sender = operation.kind is Kind.SEND_RECV, operation.lanes[0][0]
    classes = {rank_class for rank_class, _ in operation.lanes}
    for collective in operation.work.collectives:
        sends = collective.kind is Kind.SEND_RECV
        senders = {sender} if is_transfer and sends else classes
        if is_transfer and not sends:
            senders = classes - {sender}
        yield from _through(senders, collective.port_bytes)
    traffic = operation.work.traffic
    if traffic is not None and not operation.work.collectives:
        yield from _through({sender} if is_transfer else classes, traffic.port_bytes)


def _through(
    senders: set[int], port_bytes: Mapping[str, float]
) -> Iterator[tuple[int, str, float]]:
    for port, num_bytes in port_bytes.items():
        if num_bytes > 0:
            yield from ((rank_class, port, num_bytes) for rank_class in sorted(senders))


def _capacity(timeline: Timeline, rank_class: int, port: str) -> float:
    program = timeline.program
    share = program.classes[rank_class].port_shares.get(port, 1.0)
    return program.ports.get(port, np.inf) * share


def _curve(
    timeline: Timeline, rows: list[tuple[int, float]]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The sum of rectangles, as moments and the rate from each on."""
    ids = np.asarray([index for index, _ in rows], dtype=np.int64)
    num_bytes = np.asarray([size for _, size in rows])
    start_s, end_s = timeline.operation_start_s[ids], timeline.operation_end_s[ids]
    lasts = end_s > start_s
    rate = num_bytes[lasts] / (end_s - start_s)[lasts]
    moments = np.concatenate([[0.0], start_s[lasts], end_s[lasts]])
    steps = np.concatenate([[0.0], rate, -rate])
    time_s, place = np.unique(moments, return_inverse=True)
    change = np.zeros(time_s.size)
    np.add.at(change, place, steps)
    bytes_per_s = np.cumsum(change)
    # What is left of a sum of many rates that cancel is rounding.
    bytes_per_s[np.abs(bytes_per_s) < 1e-9 * np.abs(steps).max()] = 0.0
    return time_s, bytes_per_s
