"""How busy is each link of a rank over the step?

What a rank sends through a port while an operation runs is spread evenly over the
operation's time, latency included; exchanges inside a pass are spread over the pass. So a
curve shows the mean load of each operation, not the bursts inside it; its area is what
:func:`simulator.results.traffic.class_traffic` lists for the port.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.engine.timeline import Timeline
from simulator.program.ir import Kind, Operation


@dataclass(frozen=True)
class LinkLoad:
    """What one rank of a class sends through one port.

    Attributes:
        rank_class: Class index.
        port: Name of the port.
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
