"""What goes on when memory is at its peak?"""

from __future__ import annotations

from simulator.engine.replay import replay
from simulator.results.memory import class_memory, peak_moment, peak_operation
from tests.jobs import EqualPasses, pipeline_program
from tests.tiny import tiny_profile


def test_the_peak_of_1f1b_is_in_a_backward_of_the_first_microbatch():
    costs = EqualPasses(saved_bytes=10.0, working_bytes=3.0)
    timeline = replay(pipeline_program("1f1b", 2, 1, 4, costs=costs))
    for index, memory in enumerate(class_memory(timeline, tiny_profile().device)):
        moment = peak_moment(timeline, index, memory.peak_time_s)
        assert moment == f"backward of microbatch 0, layer {index}"


def test_between_passes_nothing_is_computed():
    timeline = replay(pipeline_program("1f1b", 2, 1, 1))
    assert peak_operation(timeline, 0, 1.5) is None
    assert peak_moment(timeline, 0, 1.5) == "between passes"
