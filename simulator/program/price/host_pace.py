"""How long does a device wait for the host that launches its kernels one after another?

A host launches without waiting for the device, so what it gains on long kernels is not lost on
short ones behind them, but nothing makes up for kernels in front that it launched too late: the
product with the vocabulary ends a forward whose layers were bound by launches, and adds all its
time. Both start a pass together (assumption): whatever the host was ahead when the pass before
ended is left out, as where a framework reads something back from the device in between. Where it
does so after every layer, or a profiler does, each layer takes as long as it takes alone.

A CUDA graph holds kernels of shapes that do not change, which the host launches as one. What routed
experts compute changes from step to step unless they have a capacity, so that graphs of layers
remove it. Graphs of routers alone leave attention to the host, too.

Source: the waiting time of a queue (Lindley, Proc. Cambridge Phil. Soc. 48, 1952); Megatron-Core,
user guide of CUDA graphs (``cuda_graph_impl`` and ``cuda_graph_modules``).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from functools import cache
from typing import NamedTuple

from simulator.described.cluster.hardware import HardwareProfile
from simulator.described.job import Job
from simulator.facts import shipped_facts
from simulator.program.layer.pieces import Axis, Exchange, Layer, MemoryBound, Piece, Role
from simulator.units import parse_quantity

_QUEUED_LAUNCHES = 1024
"""Launches that a CUDA stream takes before its host waits. Users measure about 1,000
(stackoverflow.com/questions/53970187)."""

_ROUTER = ("router", "routing")
"""Pieces that score experts and choose them."""

SLOW_HOST = 2.0
"""How many times as long as usual a slow host may take to launch a layer's kernels (assumption)."""


class Launched(NamedTuple):
    """Equal pieces of a pass, one after another.

    Attributes:
        times: How many.
        device_s: One of them on the device [s].
        host_s: Launching one of them [s].
    """

    times: int
    device_s: float
    host_s: float


def launched(
    profile: HardwareProfile, times: int, device_s: float, host_s: float, launches: int
) -> Launched:
    """Equal pieces as the device of a system meets them.

    A GPU computes while its host launches ahead. A processor that launches its own kernels does
    one after the other: all host work comes on top, but for the bare launches, which are in its
    kernels' times as these are measured.

    Args:
        profile: The system.
        times: How many pieces.
        device_s: Kernels and exchanges of one, one after another [s].
        host_s: Host work of one, bare launches included [s].
        launches: How many launches are in one.
    """
    if profile.device.launches_itself:
        device_s = launches * profile.kernels.launch_s
    return Launched(times, device_s, host_s)


def waiting_s(queue: Iterable[Launched], *, launches_ahead: bool = True) -> float:
    """Time in which the device has nothing to do, from the first launch to its last kernel [s].

    Args:
        queue: What is launched, in order.
        launches_ahead: Whether a piece is launched before the device has finished the one before.
    """
    waited_s = ahead_s = 0.0
    for piece in queue:
        later_s = piece.times * (piece.host_s - piece.device_s)
        waited_s += max(0.0, later_s - ahead_s)
        if launches_ahead:
            ahead_s = max(0.0, ahead_s - later_s)
    return waited_s


@cache
def eager_layer_s() -> float:
    """Time in which a host launches a layer's kernels one by one, forward and backward [s]."""
    return parse_quantity(shipped_facts("step_errors")["eager_layer"]["value"], "s")


def unhidden_layers(layers: float, device_s: float) -> float:
    """Layers whose host work a device would wait for, of so many that it passes through.

    The device's own time hides what it lasts of the work of a host that is :data:`SLOW_HOST` times
    as slow as one that launches kernels one by one.

    Args:
        layers: Layers, forward and backward; one direction counts as its share.
        device_s: What the device takes for all of them [s].
    """
    return max(0.0, layers - device_s / (SLOW_HOST * eager_layer_s()))


def unpredicted_wait_s(layer_wait_s: float, layers: float, queue: Iterable[Launched]) -> float:
    """What own runs say that a device waits for its host beyond [s].

    Args:
        layer_wait_s: For each layer, forward and backward, that hides none of it [s].
        layers: How many; one direction counts as its share.
        queue: What is launched for them.
    """
    if not layer_wait_s:
        return 0.0
    device_s = math.fsum(pieces.times * pieces.device_s for pieces in queue)
    return layer_wait_s * unhidden_layers(layers, device_s)


def launched_ahead(queue: Sequence[tuple[Launched, int]], *, hosts_wait: bool = False) -> list[int]:
    """How many of each unit's passes are launched while the device is at none of them.

    Assumed: the host is a whole queue ahead once, in the first step, when collectives wait for
    ranks that start later. Where hosts wait for each other instead, a host is ahead of a device
    that is slower than it, and after many layers by a whole queue.

    Args:
        queue: Each unit, as often as it is there, and the launches of one, the last one first.
        hosts_wait: Whether no host launches a collective before all others do.
    """
    device_s = math.fsum(pieces.times * pieces.device_s for pieces, _ in queue)
    host_s = math.fsum(pieces.times * pieces.host_s for pieces, _ in queue)
    if hosts_wait and host_s >= device_s:
        return [0 for _ in queue]
    queued, ahead = _QUEUED_LAUNCHES, []
    for pieces, launches in queue:
        ahead.append(min(pieces.times, queued // launches) if launches else pieces.times)
        queued -= ahead[-1] * launches
    return ahead


def captured_pieces(job: Job, layer: Layer, *, is_end: bool) -> Collection[Piece]:
    """Pieces that the host replays as a graph.

    Args:
        job: What its plan replays.
        layer: A layer, or an end of the model.
        is_end: Whether it is an end.
    """
    graphs, experts = job.plan.cuda_graphs, job.model.experts
    if graphs == "none" or (graphs != "full" and is_end):
        return ()
    if graphs == "router":
        return [piece for piece in layer.pieces if piece.name in _ROUTER]
    if graphs == "layer" and experts is not None and experts.capacity_factor is None:
        routed = _routed_pieces(layer)
        return [piece for piece in layer.pieces if piece not in routed]
    return layer.pieces


def without(layer: Layer, captured: Collection[Piece]) -> Layer:
    """The layer that the host launches by itself."""
    return replace(layer, pieces=tuple(each for each in layer.pieces if each not in captured))


def _routed_pieces(layer: Layer) -> Sequence[Piece]:
    """What is between sending tokens to their experts and having them back, both included."""
    ends, axes = (Role.PERMUTE, Role.UNPERMUTE), (Axis.EXPERT, Axis.EXPERT_TENSOR)
    found = [
        index
        for index, piece in enumerate(layer.pieces)
        if (isinstance(piece, MemoryBound) and piece.role in ends)
        or (isinstance(piece, Exchange) and piece.axis in axes)
    ]
    return layer.pieces[found[0] : found[-1] + 1] if found else ()
