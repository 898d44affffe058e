"""What is going on when a rank's memory is at its peak?"""

from __future__ import annotations

from simulator.engine.timeline import Timeline
from simulator.program.ir import Operation, Stream


def peak_operation(timeline: Timeline, rank_class: int, time_s: float) -> Operation | None:
    """What the class computes at a moment; None where it waits."""
    for index in timeline.program.lanes.get((rank_class, Stream.COMPUTE), []):
        if timeline.operation_start_s[index] <= time_s < timeline.operation_end_s[index]:
            return timeline.program.operations[index]
    return None


def peak_moment(timeline: Timeline, rank_class: int, time_s: float) -> str:
    """A moment in words, such as ``backward of microbatch 3, layers 16 to 31``."""
    operation = peak_operation(timeline, rank_class, time_s)
    if operation is None:
        return "between passes"
    words = str(operation.kind).replace("_", " ")
    if operation.microbatch >= 0:
        words += f" of microbatch {operation.microbatch}"
    first, end = operation.layers
    if first < 0:
        return words
    if first == end:
        return f"{words}, head or loss"
    return (
        f"{words}, layer {first}" if end == first + 1 else f"{words}, layers {first} to {end - 1}"
    )
