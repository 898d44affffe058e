"""Are the passes of a step those that its timeline holds?"""

from __future__ import annotations

import numpy as np
import pytest

from simulator.engine.timeline import Timeline
from simulator.program.ir import Category, Kind, Operation, Program, RankClass, Stream, Work
from simulator.results.passes import Pass, Span, step_passes
from simulator.schedule import Phase

COMPUTE = (0, Stream.COMPUTE)


def timeline(*operations: tuple[Kind, int, int, float, float]) -> Timeline:
    """Operations of one compute stream: kind, microbatch, chunk, start, end."""
    program = Program([RankClass("stage 0", 0, 1, 0)])
    for kind, microbatch, chunk, _, _ in operations:
        program.add(
            Operation(
                kind, (COMPUTE,), Work(1.0), Category.FORWARD, microbatch=microbatch, chunk=chunk
            )
        )
    times = np.array([each[3:] for each in operations])
    return Timeline(program, times[:, 0], times[:, 1])


def test_pieces_of_a_pass_count_as_one_and_updates_stand_apart():
    (rank,) = step_passes(
        timeline(
            (Kind.FORWARD, 0, 0, 0.0, 1.0),
            (Kind.FORWARD, 0, 0, 1.5, 2.0),
            (Kind.FORWARD, 0, 1, 2.0, 4.0),
            (Kind.BACKWARD_INPUT, 0, 1, 4.0, 7.0),
            (Kind.OPTIMIZER, -1, -1, 7.0, 9.0),
        )
    )
    assert rank.name == "stage 0"
    assert rank.passes == [
        Pass(Phase.FORWARD, 0, 0, 0.0, 2.0),
        Pass(Phase.FORWARD, 1, 0, 2.0, 4.0),
        Pass(Phase.BACKWARD_INPUT, 1, 0, 4.0, 7.0),
    ]
    assert rank.others == [Span(7.0, 9.0)]


def test_the_mean_of_a_phase_is_that_of_a_microbatch_on_all_chunks():
    (rank,) = step_passes(
        timeline(
            (Kind.FORWARD, 0, 0, 0.0, 1.0),
            (Kind.FORWARD, 0, 1, 1.0, 3.0),
            (Kind.FORWARD, 1, 0, 3.0, 4.0),
            (Kind.FORWARD, 1, 1, 4.0, 8.0),
        )
    )
    assert rank.mean_s(Phase.FORWARD) == pytest.approx((3.0 + 5.0) / 2)
    assert rank.mean_s(Phase.BACKWARD) == 0.0
    assert rank.busy_s == pytest.approx(8.0)
