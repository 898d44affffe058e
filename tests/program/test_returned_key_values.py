"""Keys and values that a model returns, and a loop that holds what its model returned."""

from __future__ import annotations

import pytest

from simulator.described.job import Job
from simulator.program.ir import Kind, total_bytes
from simulator.program.states.returned_logits import returned_key_values
from simulator.results.simulation import run_step
from tests.jobs import small_job

LAYERS, TOKENS, WIDTH = 4, 64, 32
"""Of the small model: its keys, or values, are half as wide as its rows."""
ALL_BYTES = 2.0 * LAYERS * TOKENS * 2 * WIDTH


def a_job(**stack) -> Job:
    return small_job(zero=0, global_batch=2, stack={"base": "torch", **stack})


@pytest.mark.parametrize(
    ("is_named", "are_returned", "held"),
    [(True, True, ALL_BYTES), (True, False, 0), (False, True, 0), (False, False, 0)],
)
def test_a_loop_holds_keys_and_values_that_are_returned_if_it_names_them(
    is_named, are_returned, held
):
    job = a_job(keeps_returned_logits=is_named, hands_out_key_values=are_returned)
    assert total_bytes(returned_key_values(job)) == held


def test_those_of_the_microbatch_before_are_there_while_forward_runs():
    plain, returning = (
        run_step(a_job(keeps_returned_logits=True, hands_out_key_values=returns)).timeline.program
        for returns in (False, True)
    )
    more = {
        (after.kind, total_bytes(after.holds) - total_bytes(before.holds))
        for before, after in zip(plain.operations, returning.operations, strict=True)
        if after.kind in (Kind.FORWARD, Kind.BACKWARD)
    }
    assert more == {(Kind.FORWARD, ALL_BYTES), (Kind.BACKWARD, 0.0)}


@pytest.mark.parametrize(("is_named", "copies"), [(False, 1), (True, 2)])
def test_torch_holds_those_of_two_microbatches_when_the_second_forward_ends(is_named, copies):
    torch = pytest.importorskip("torch")
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed._tools.mem_tracker import MemTracker

    size, seen = 2.0**20, []
    with FakeTensorMode():
        weight = torch.zeros(1, int(size / 4), requires_grad=True)
        with MemTracker() as tracker:

            def forward():
                keys = weight * 2
                loss = keys.square().sum()
                now = tracker.get_tracker_snapshot("current")[torch.device("cpu")]["Total"]
                seen.append(now)
                return loss, keys if is_named else None

            for _ in range(2):
                returned = forward()
                returned[0].backward()
                weight.grad = None
    assert seen[1] == pytest.approx(copies * size, rel=0.01)
