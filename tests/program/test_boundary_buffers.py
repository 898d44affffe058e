"""Do the buffers of pipeline transfers take what frameworks make them take?"""

from __future__ import annotations

import pytest

from simulator.program.build import build_program
from simulator.program.ir import Owner
from simulator.program.run.boundary_buffers import BoundaryBuffers
from simulator.results.simulation import run_step
from simulator.schedule import Placement, schedule_info, schedule_order
from tests.jobs import small_job, small_model


def buffers_of(name: str, stages: int, chunks: int = 1, **ways: bool) -> BoundaryBuffers:
    """With boundaries of 1 B."""
    return BoundaryBuffers(1.0, stages, chunks, schedule_info(name).placement, **ways)


def held(name: str, rank: int, stages: int, chunks: int, microbatches: int, **ways) -> list[float]:
    """Boundaries held while each pass of a rank runs."""
    slots = schedule_order(name, stages, chunks, microbatches)[rank]
    around = buffers_of(name, stages, chunks, **ways).of_passes(slots)
    return [sum(size for _, size in around[s].holds) if s in around else 0.0 for s in slots]


def test_the_next_receive_and_the_last_send_are_under_way_beside_a_pass():
    """Last of two ranks: F0 B0 F1 B1; activations come from before, gradients go back."""
    assert held("1f1b", 1, 2, 1, 2) == [0, 1, 1, 0]
    # First rank, F0 F1 B0 B1: F1 beside the send of F0 and the receive for B0.
    assert held("1f1b", 0, 2, 1, 2) == [0, 2, 2, 0]


def test_blocking_sends_leave_nothing_under_way():
    assert not any(held("1f1b", 1, 4, 1, 8, blocking=True))


def test_a_turn_on_one_rank_takes_no_buffers():
    """The last rank of a V hands its first chunk's output to its second."""
    slots = schedule_order("zb-v", 1, 2, 4)[0]
    assert not BoundaryBuffers(1.0, 1, 2, Placement.V).of_passes(slots)


@pytest.mark.parametrize("microbatches", [4, 8])
def test_torch_has_two_buffers_per_microbatch_on_inner_stages_and_one_at_the_ends(microbatches):
    """``PipelineStage``: inputs of all stages but the first, gradients of all but the last.

    Of the inputs, those of microbatches in flight are booked as activations: p - r in 1F1B.
    """
    order = schedule_order("1f1b", 4, 1, microbatches)
    buffers = buffers_of("1f1b", 4, per_microbatch=True)
    totals = [sum(size for _, size in buffers.resident(slots, microbatches)) for slots in order]
    m = microbatches
    assert totals == [m, 2 * m - 3, 2 * m - 2, m - 1]


def test_torch_keeps_what_a_forward_sent_until_its_backward():
    slots = schedule_order("zb-h1", 2, 1, 2)[0]
    around = buffers_of("zb-h1", 2, per_microbatch=True).of_passes(slots)
    phases = {str(slot): (bool(b.takes), bool(b.gives)) for slot, b in around.items()}
    assert phases == {
        "0F0": (True, False), "0F1": (True, False), "0I0": (False, True), "0I1": (False, True),
    }  # fmt: skip


@pytest.mark.parametrize("per_microbatch", [False, True])
@pytest.mark.parametrize(
    ("schedule", "vpp"), [("interleaved-1f1b", 2), ("zb-h1", 1), ("zb-v", 2), ("chimera", 1)]
)
def test_buffers_of_transfers_are_held_at_the_peak(per_microbatch, schedule, vpp):
    stack = {"base": "megatron-core", "buffers_every_microbatch": per_microbatch}
    plan = {"schedule": schedule, "vpp": vpp, "stack": stack, "zero": 0}
    job = small_job(small_model(layers=8), gpus=4, pp=4, global_batch=8, **plan)
    program = build_program(job)
    assert any(Owner.COMMUNICATION in dict(op.holds + op.takes) for op in program.operations)
    peaks = [memory.by_owner.get(Owner.COMMUNICATION, 0.0) for memory in run_step(job).memory]
    assert sum(peaks) > 0
