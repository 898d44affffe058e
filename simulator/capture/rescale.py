"""What changes about a captured step when there are more data-parallel ranks, or fewer?

Every rank does the same work on its own sequences. Groups of data ranks are larger; shards of
parameters, gradients and optimizer states are smaller. Groups that lie across data ranks, such as
pipelines where stages are the slowest axis, keep their size and lie further apart.

Ignores: rounding of shards to whole rows, and buckets that a framework would choose by the size
of the group.
"""

from __future__ import annotations

from dataclasses import dataclass

from simulator.capture.table import Capture
from simulator.errors import InputError


@dataclass(frozen=True)
class Scale:
    """A number of ranks for a captured step.

    Attributes:
        gpus: All ranks.
        factor: That over the captured number.
        axis: Degree that grows; empty where nothing does.
        shrink: Factor on what is sharded over data ranks.
    """

    gpus: int
    factor: float
    axis: str
    shrink: float


def scaled(capture: Capture, gpus: int | None) -> Scale:
    """The capture on so many ranks; by default as it was captured.

    Raises:
        InputError: The step has no data ranks, or their number would not be whole.
    """
    if gpus is None or gpus == capture.world:
        return Scale(capture.world, 1.0, "", 1.0)
    sizes = {
        each.axis: len(capture.groups[each.group])
        for table in capture.tables
        for each in table.exchanges
    }
    axis = next((name for name in ("dp_replicate", "dp") if name in sizes), "")
    data_ranks = sizes.get(axis, 1)
    others = capture.world // data_ranks
    if not axis and others != capture.world:
        raise InputError.single("--gpus", "the captured step has no data-parallel ranks", gpus)
    if gpus < 1 or gpus % others:
        hint = f"give a multiple of {others}, the ranks that share one copy of the model"
        raise InputError.single("--gpus", "does not hold whole copies of the model", gpus, hint)
    factor = gpus / capture.world
    return Scale(gpus, factor, axis, 1 / factor if axis == "dp" else 1.0)


def scaled_group(capture: Capture, group: int, axis: str, scale: Scale) -> tuple[int, ...]:
    """Ranks of a group on the scale's number of ranks."""
    ranks = capture.groups[group]
    if scale.factor == 1 or len(ranks) < 1:
        return ranks
    if len(ranks) == capture.world:
        return tuple(range(scale.gpus))
    stride = ranks[1] - ranks[0] if len(ranks) > 1 else 1
    data = _data_group(capture, scale.axis)
    if axis == scale.axis or ranks == data:
        count = round(len(ranks) * scale.factor)
        return tuple(ranks[0] + i * stride for i in range(count))
    reach = (data[1] - data[0]) * len(data) if len(data) > 1 else capture.world
    if stride >= reach:
        stride = round(stride * scale.factor)
    return tuple(ranks[0] + i * stride for i in range(len(ranks)))


def _data_group(capture: Capture, axis: str) -> tuple[int, ...]:
    for table in capture.tables:
        for each in table.exchanges:
            if each.axis == axis:
                return capture.groups[each.group]
    return ()
