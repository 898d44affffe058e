"""How long does a device wait where its host asks how many tokens each expert got?

Without a capacity nobody knows the sizes of exchanges and grouped products beforehand. A host that
reads them back launches nothing behind until the device has counted, and starts with an empty
queue: the device waits for each kernel that is launched later than those in front have run. So it
does once per layer, forward and where that is repeated; backward knows the sizes. What lies between
counting and asking runs meanwhile.

Ignores: ranks that wait for each other's hosts, and what hides behind another microbatch.

Source: the waiting time of a queue (Lindley, Proc. Cambridge Phil. Soc. 48, 1952); where frameworks
ask, see ``expert_waits`` in ``simulator/facts/stacks``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from simulator.described.job import Job
from simulator.program.layer.pieces import (
    Axis,
    Exchange,
    GroupedGemm,
    Layer,
    MemoryBound,
    Piece,
    Role,
)
from simulator.program.price.layer_time import Hiding, PassTime, piece_times
from simulator.program.price.piece_time import PieceTimer

_LAUNCHES_OF_AN_ANSWER = 2
"""Bare launches that reading a number back takes: the copy, and the host's return (assumption)."""


class Step(NamedTuple):
    """Something that the host launches.

    Attributes:
        device_s, host_s: What it takes on the device, and to be launched [s].
        launches: Kernels and exchanges.
    """

    device_s: float
    host_s: float
    launches: int


@dataclass(frozen=True)
class ExpertWaits:
    """Where the host of one layer asks.

    Attributes:
        before, after: What it has launched before it asks, and launches then.
        hidden_s: What the device still has to do when it has counted [s].
        times: How often it asks.
    """

    before: Sequence[PassTime]
    after: Sequence[PassTime]
    hidden_s: float
    times: int


def expert_waits(
    job: Job, layer: Layer, captured: Collection[Piece], timer: PieceTimer, hiding: Hiding
) -> ExpertWaits | None:
    """Where the host asks in a layer; None if it never does.

    Args:
        job: Its stack says who asks, and PyTorch itself does before it launches products one after
            another; graphs, processors and capacities leave nothing to ask for.
        layer: What one rank runs of it.
        captured: Pieces that the host replays as a graph.
        timer: What each piece takes.
        hiding: Which exchanges are hidden.
    """
    asks, experts = job.choices.expert_waits, job.model.experts
    asks_late = asks == "none" and job.plan.has_wide_experts
    asks = "layer" if asks_late else asks
    asked_at = next((i for i, piece in enumerate(layer.pieces) if _needs_sizes(piece)), None)
    if asks == "none" or asked_at is None or experts is None:
        return None
    has_sizes = experts.capacity_factor is not None or len(captured) == len(layer.pieces)
    if has_sizes or job.cluster.profile.device.launches_itself:
        return None
    times = piece_times(layer, timer, hiding, captured)
    between = range(_counted_at(layer.pieces) + 1, asked_at)
    hidden_s = sum(part.seconds for i in between for part in times[i].parts)
    if asks_late:
        hidden_s = 0.0  # The copy that it waits for is behind all of that.
    groups = max(p.groups for p in layer.pieces if isinstance(p, GroupedGemm))
    return ExpertWaits(
        times[:asked_at], times[asked_at:], hidden_s, groups if asks == "expert" else 1
    )


def stall_s(steps: Iterable[Step], answers_s: float, hidden_s: float) -> float:
    """Time that the device waits from one question to the next [s].

    No less than the host takes longer than the device.

    Args:
        steps: What is launched between them, in order.
        answers_s: Until the host has its answers [s].
        hidden_s: What the device does meanwhile [s].
    """
    launched_s = run_s = longest_s = 0.0
    for step in steps:
        if step.launches:
            # Each launch of a step takes as long, and gives the device as much to do.
            share = 1.0 / step.launches
            first_s = launched_s + share * step.host_s - run_s
            rest_s = (1.0 - share) * (step.host_s - step.device_s)
            longest_s = max(longest_s, first_s, first_s + rest_s)
        launched_s += step.host_s
        run_s += step.device_s
    return max(0.0, answers_s + longest_s - hidden_s, launched_s - run_s)


def answers_s(waits: ExpertWaits, launch_s: float) -> float:
    """Time that the answers of one layer take [s]."""
    return waits.times * _LAUNCHES_OF_AN_ANSWER * launch_s


def _needs_sizes(piece: Piece) -> bool:
    is_sent = isinstance(piece, Exchange) and piece.axis is Axis.EXPERT
    return isinstance(piece, GroupedGemm) or (is_sent and piece.name == "dispatch")


def _counted_at(pieces: Sequence[Piece]) -> int:
    """Behind which piece the counts are known."""
    permuted = next(
        i for i, p in enumerate(pieces) if isinstance(p, MemoryBound) and p.role is Role.PERMUTE
    )
    return permuted - 1
