"""Which collectives do DeepSpeed and InternEvo reduce gradients and hand out weights by?"""

from __future__ import annotations

import pytest

from simulator.program.build import build_program
from simulator.program.grid.stage_layers import stage_slices
from simulator.program.ir import Kind
from simulator.program.states.gather_units import Units
from tests.program.test_data_parallel import GATHERED, data_job, exchanges, parameters


@pytest.mark.parametrize(("ranks", "shards"), [(4, 4), (64, 64), (8, 2)])
def test_internevo_all_reduces_gradients_and_every_owner_broadcasts_its_parameters_at_once(
    ranks, shards
):
    """Owners hold whole tensors, so there are no more of them than tensors."""
    job = data_job(ranks, zero=1, zero_group=shards, stack="internevo")
    program = build_program(job)
    issued = [c for op in exchanges(program) for c in op.work.collectives]
    sent = [c for c in issued if c.kind is Kind.BROADCAST]
    (run,) = stage_slices(job, 1)
    tensors = len(Units(job).counts(run))
    assert {c.kind for c in issued} == {Kind.ALL_REDUCE, Kind.BROADCAST}
    assert len(sent) == min(shards, tensors)
    assert {c.ranks for c in sent} == {shards}
    assert sum(c.num_bytes for c in sent) == pytest.approx(GATHERED * parameters(job))


@pytest.mark.parametrize("zero", [1, 2, 3])
def test_deepspeed_all_reduces_whole_gradients_in_zero_1_and_2_since_its_version_0_12(zero):
    """use_multi_rank_bucket_allreduce is its default then, whatever reduce_scatter says."""
    newest, older = (
        {op.kind for op in exchanges(build_program(data_job(4, zero=zero, stack=stack)))}
        for stack in ("deepspeed", "deepspeed@0.11")
    )
    assert (Kind.ALL_REDUCE in newest, Kind.REDUCE_SCATTER in newest) == (zero < 3, zero == 3)
    assert (Kind.ALL_REDUCE in older, Kind.REDUCE_SCATTER in older) == (False, True)


def test_deepspeed_copies_gradients_into_a_bucket_divides_them_and_copies_them_to_be_reduced():
    """Three times 2 bytes read and 2 written for each of them, at 1 GB/s, or twice before 0.12."""
    jobs = [data_job(4, zero=1, stack=stack) for stack in ("deepspeed", "deepspeed@0.11")]
    copied_s = [
        sum(
            part.seconds
            for op in build_program(job).operations
            for part in op.work.parts
            if part.name == "bucket_copy"
        )
        for job in jobs
    ]
    assert copied_s == pytest.approx(
        [12 * parameters(jobs[0]) / 1e9, 8 * parameters(jobs[0]) / 1e9], rel=1e-3
    )
