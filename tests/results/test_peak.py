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


def test_a_moment_of_a_split_backward_is_said_in_words():
    """Rank 1 of zb-h1: F0 from 1 to 2, then the gradient of its input, then that of its weights."""
    timeline = replay(pipeline_program("zb-h1", 2, 1, 2))
    spoken = [peak_moment(timeline, 1, at_s) for at_s in (1.5, 2.5, 3.5, 4.5)]
    assert spoken == [
        "forward of microbatch 0, layer 1",
        "backward input of microbatch 0, layer 1",
        "forward of microbatch 1, layer 1",
        "backward input of microbatch 1, layer 1",
    ]
