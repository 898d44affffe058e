"""Which part of a run without a flush is one step?

Where ranks do not meet at the end of a step, the next one starts while the last one drains,
so a step has no end of its own. Several are run, and the one between two updates of the
first rank, in a full pipeline, stands for all: its length is the time per step.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from simulator.engine.timeline import Timeline
from simulator.program.build import Steps
from simulator.program.ir import Kind, Stream
from simulator.results.step import ClassMemory


def steady_window(timeline: Timeline, steps: Steps) -> tuple[float, float]:
    """Start and end of the step between those that surround it [s]."""
    lane = timeline.program.lanes[0, Stream.COMPUTE]
    updates = [i for i in lane if timeline.program.operations[i].kind is Kind.OPTIMIZER]
    per_step = len(updates) // steps.total
    before = steps.before * per_step
    start = timeline.operation_end_s[updates[before - 1]]
    return float(start), float(timeline.operation_end_s[updates[before + per_step - 1]])


def cut_timeline(timeline: Timeline, start_s: float, end_s: float) -> Timeline:
    """What happens in a window, counted from its start; what reaches out of it is cut off."""
    starts, ends = timeline.operation_start_s, timeline.operation_end_s
    kept = np.flatnonzero((ends > start_s) & (starts < end_s)).tolist()
    place = {index: position for position, index in enumerate(kept)}
    program = timeline.program
    operations = [
        replace(operation, after=tuple(place[i] for i in operation.after if i in place))
        for operation in map(program.operations.__getitem__, kept)
    ]
    lanes = {lane: [place[i] for i in ids if i in place] for lane, ids in program.lanes.items()}
    return Timeline(
        replace(program, operations=operations, lanes=lanes),
        np.clip(starts[kept], start_s, end_s) - start_s,
        np.clip(ends[kept], start_s, end_s) - start_s,
    )


def cut_memory(memory: ClassMemory, start_s: float, end_s: float) -> ClassMemory:
    """The curves of a window, counted from its start; the peak stays that of the whole run."""
    time_s = memory.time_s
    first = int(np.searchsorted(time_s, start_s, side="right")) - 1
    past = int(np.searchsorted(time_s, end_s, side="right"))
    curves = {owner: curve[first:past] for owner, curve in memory.owner_bytes.items()}
    shown_s = np.maximum(time_s[first:past] - start_s, 0.0)
    total = sum(curves.values(), np.zeros(len(shown_s)))
    return replace(
        memory,
        time_s=shown_s,
        owner_bytes=curves,
        peak_time_s=float(shown_s[int(np.argmax(total))]),
    )
