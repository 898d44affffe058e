"""Does every operation of a timeline start after what it waits for?"""

from __future__ import annotations

import numpy as np

from simulator.engine.timeline import Timeline


def assert_waits_are_kept(timeline: Timeline) -> None:
    """Operations start after those that they name, and after the one before them on their lane."""
    start_s, end_s = timeline.operation_start_s, timeline.operation_end_s
    for index, operation in enumerate(timeline.program.operations):
        assert all(end_s[before] <= start_s[index] for before in operation.after)
    for lane in timeline.program.lanes.values():
        assert np.all(end_s[lane[:-1]] <= start_s[lane[1:]])
