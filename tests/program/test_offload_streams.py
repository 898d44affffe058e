"""On which stream do gradients travel that DeepSpeed adds up on the GPU?"""

from __future__ import annotations

from itertools import pairwise

import pytest

from simulator.engine.replay import replay
from simulator.program.build import build_program
from simulator.program.ir import Kind
from tests.jobs import host_profile
from tests.program.offloading import offload_job

ZERO_OFFLOAD = {"stack": "deepspeed", "zero": 2, "offload": {"optimizer": "cpu"}}
PASSES = (Kind.FORWARD, Kind.BACKWARD)
COPIES = (Kind.COPY_TO_HOST, Kind.COPY_TO_DEVICE)


@pytest.mark.parametrize("zero", [2, 3])
def test_without_overlap_it_is_that_of_backward(zero):
    """``async_accumulate_grad_in_cpu_via_gpu`` issues its copies on the current stream."""
    slow = host_profile(pcie="10 MB/s")
    plan = {**ZERO_OFFLOAD, "zero": zero, "overlap_grad_reduce": False}
    timeline = replay(build_program(offload_job(gpus=4, global_batch=8, profile=slow, **plan)))
    operations = list(enumerate(timeline.program.operations))
    passes = [i for i, op in operations if op.kind in PASSES]
    for i, op in operations:
        if op.kind is Kind.COPY_TO_HOST:
            done_s = timeline.operation_end_s[i]
            assert all(timeline.operation_start_s[later] >= done_s for later in passes if later > i)


def test_pieces_are_added_up_one_after_the_other():
    """Copies back and forth of all pieces are on one stream, whichever that is."""
    timeline = replay(build_program(offload_job(gpus=4, global_batch=8, **ZERO_OFFLOAD)))
    operations = list(enumerate(timeline.program.operations))
    updates = [i for i, op in operations if op.kind is Kind.OPTIMIZER]
    copies = [i for i, op in operations if op.kind in COPIES and i < updates[0]]
    spans = sorted((timeline.operation_start_s[i], timeline.operation_end_s[i]) for i in copies)
    assert all(end <= start for (_, end), (start, _) in pairwise(spans))
